"""Errors of per-example clipping."""


class UnsupportedModelError(ValueError):
    """The model has a structure whose per-example gradients cannot be proved correct.

    The message names the layer, the reason and what to change.
    """


class ClippingMismatchError(RuntimeError):
    """Clipped gradients differ from gradients of the examples taken one by one."""
