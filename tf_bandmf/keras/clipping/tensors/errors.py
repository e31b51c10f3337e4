"""Errors of per-example clipping."""

import tensorflow as tf


class UnsupportedModelError(ValueError):
    """The model has a structure whose per-example gradients cannot be proved correct.

    The message names the layer, the reason and what to change.
    """


class ClippingMismatchError(RuntimeError):
    """Clipped gradients differ from gradients of the examples taken one by one."""


# Errors that TensorFlow raises because of the machine or the process, not because of a
# record's content.
OF_THE_MACHINE = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.PermissionDeniedError,
    tf.errors.ResourceExhaustedError,
    tf.errors.UnavailableError,
    tf.errors.UnimplementedError,
)
