"""Errors of per-example clipping."""

import tensorflow as tf


class UnsupportedModelError(ValueError):
    """Raised if the per-example gradients of a model cannot be proved correct.

    The message names the layer, the reason and what to change.
    """


class ClippingMismatchError(RuntimeError):
    """Raised if clipped gradients differ from the gradients of single examples."""


# TensorFlow errors that are caused by the machine or the process, not by the content of
# a record.
OF_THE_MACHINE = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.PermissionDeniedError,
    tf.errors.ResourceExhaustedError,
    tf.errors.UnavailableError,
    tf.errors.UnimplementedError,
)
