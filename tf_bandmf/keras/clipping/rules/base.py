"""Base classes of norm rules, which compute per-example gradients of layers."""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_bandmf.keras.clipping.factors import norms
from tf_bandmf.keras.clipping.factors.base import Factor, Instantiated
from tf_bandmf.keras.clipping.tensors import batches
from tf_bandmf.keras.compat.keras_objects import kernel_of


@dataclasses.dataclass
class LayerCall:
    """A recorded call to a layer in the forward pass.

    Attributes:
      layer: the layer.
      variables: the trainable variables whose gradients the rule computes.
      original: the layer's own `call`.
      args: positional arguments of the call.
      kwargs: keyword arguments of the call.
      tape: the tape that records the forward pass from the taps on.
      taps: tensors [B, ...] for which the rule needs the gradients of the losses.
      batched: for each tensor among the arguments, True if its first axis is the batch
        axis.
      notes: values from the forward pass that the rule needs for the gradients.
      replaced: the operations to which the rule gave a custom gradient.
    """

    layer: Any
    variables: list[Any]
    original: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tape: tf.GradientTape
    batched: Sequence[bool] = ()
    taps: list[tf.Tensor] = dataclasses.field(default_factory=list)
    notes: dict[str, Any] = dataclasses.field(default_factory=dict)
    replaced: list[Any] = dataclasses.field(default_factory=list)

    def tap(self, tensor: tf.Tensor) -> tf.Tensor:
        """Requests the gradient of a tensor, and returns a copy to use in its place.

        If a layer returns the same tensor twice, or returns its input, one tensor has
        several uses. The gradient covers only the use of the copy.
        """
        copy = tf.identity(tensor)
        self.tape.watch(copy)
        self.taps.append(copy)
        return copy

    def run(self) -> Any:
        """Calls the layer's own `call` with the recorded arguments."""
        return self.original(*self.args, **self.kwargs)

    def run_with(self, **attributes: Any) -> Any:
        """Calls the layer's own `call` on a copy of the layer with changed attributes.

        The layer itself does not change.
        """
        copy = object.__new__(type(self.layer))
        vars(copy).update({**vars(self.layer), **attributes})
        function = self.original.__func__  # type: ignore[attr-defined]
        return function(copy, *self.args, **self.kwargs)

    @property
    def inputs(self) -> tf.Tensor:
        """The layer's first argument."""
        return self.args[0] if self.args else next(iter(self.kwargs.values()))


class Rule(abc.ABC):
    """Computes per-example gradients, in factored form, for one kind of layer.

    By default, a rule needs the gradient of one tensor, the output of the layer.

    Attributes:
      runs_again: True if the rule runs the layer again to compute gradients. If False,
        the first axis of the layer's first argument must be the batch axis.
      opens: True if the rule is only for the layer's own variables, and calls to its
        inner layers are recorded with their own rules.
    """

    runs_again = False
    opens = False

    @abc.abstractmethod
    def supports(self, layer: Any, variables: Sequence[Any]) -> bool:
        """Returns whether the rule is exact for a layer with these variables."""

    def forward(self, call: LayerCall) -> Any:
        """Runs the layer, requests gradients (`call.tap`), and returns the output."""
        return call.tap(call.run())

    @abc.abstractmethod
    def factors(self, call: LayerCall, *gradients: Any) -> Mapping[int, Factor]:
        """Returns a dictionary from the `id` of each Keras variable to its `Factor`.

        Args:
          call: the recorded call.
          gradients: for each tensor in `call.taps`, the gradient of the summed losses,
            [B, ...]; None if the losses do not depend on that tensor. At least one
            gradient is not None.
        """


def is_plain(layer: Any, *kinds: type | str, adapted: bool = False) -> bool:
    """Returns whether a layer's class is one of `kinds`, and its `call` is unchanged.

    Subclasses may compute anything, so this is False for them.

    Args:
      layer: a built layer.
      kinds: classes; or full names of classes, for packages that may not be installed.
      adapted: True if the layer may have an adapter (LoRA).
    """
    cls = type(layer)
    return (
        (cls in kinds or f"{cls.__module__}.{cls.__qualname__}" in kinds)
        and "call" not in vars(layer)
        and (adapted or not getattr(layer, "lora_enabled", False))
    )


def overridden(layer: Any, cls: type) -> set[str]:
    """Returns the names of the attributes of `cls` that the layer's class overrides."""
    ancestors = type(layer).__mro__
    return {
        name
        for subclass in ancestors[: ancestors.index(cls)]
        for name in vars(subclass)
        if not name.startswith("__") and hasattr(cls, name)
    }


class LayerRule(Rule):
    """Base class of rules for particular layer classes with known variables.

    Attributes:
      kinds: the layer classes, for `is_plain`.
      takes_adapters: True if the layers may have adapters (LoRA).
    """

    kinds: tuple[type | str, ...] = ()
    takes_adapters = False

    def supports(self, layer: Any, variables: Sequence[Any]) -> bool:
        """Returns whether `fits` is True, and `weights` contains all of `variables`."""
        if not self.fits(layer):
            return False
        weights = {id(variable) for variable in self.weights(layer)}
        return all(id(variable) in weights for variable in variables)

    def fits(self, layer: Any) -> bool:
        """Returns whether the layer computes what the rule assumes.

        Unless a subclass overrides this method, the layer must be plain (`is_plain`).
        """
        return is_plain(layer, *self.kinds, adapted=self.takes_adapters)

    @abc.abstractmethod
    def weights(self, layer: Any) -> Sequence[Any]:
        """Returns the variables whose gradients the rule computes.

        A variable that the layer lacks, such as a bias, is None.

        Args:
          layer: a layer for which `fits` is True.
        """


class PreActivationRule(LayerRule):
    """Base class of rules that use the gradient of the input of the activation.

    Attributes:
      is_product: True if the layer multiplies matrices. If so, `norms.pinned` is
        applied to the product. XLA splits the product into parts. Without `pinned`, it
        would store all parts until the gradient of the activation is computed.
    """

    is_product = False

    def weights(self, layer: Any) -> Sequence[Any]:
        return kernel_of(layer), layer.bias

    def forward(self, call: LayerCall) -> Any:
        outputs = call.run_with(activation=None)
        activation = call.layer.activation
        if activation is None:
            return call.tap(outputs)
        if self.is_product and norms.accelerator():
            (outputs,) = norms.pinned(outputs)
        return activation(call.tap(outputs))


def of_spread(
    variable: Any, gradient: tf.Tensor, spread: Sequence[int] | None = None
) -> dict[int, Factor]:
    """Returns the gradients of a variable that was broadcast and added (a bias).

    Args:
      variable: the Keras variable, or None if there is none.
      gradient: [B, ...], gradients for the tensor to which the variable was added.
      spread: the shape in which the variable was added, aligned to the last axes; by
        default its own shape.

    Returns:
      A dictionary from the variable's `id` to its factor; empty without a variable.
    """
    if variable is None:
        return {}
    shape = tuple(variable.shape)
    spread = shape if spread is None else spread
    gradient = tf.cast(gradient, tf.float32)
    padded = [1] * (gradient.shape.rank - len(spread)) + list(spread)
    axes = [axis for axis in range(1, len(padded)) if padded[axis] == 1]
    if axes:
        gradient = tf.reduce_sum(gradient, axis=axes)
    return {id(variable): Instantiated(batches.reshape_examples(gradient, *shape))}
