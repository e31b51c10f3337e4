"""The base classes of norm rules: how a kind of layer yields per-example gradients."""

import abc
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_bandmf.keras.clipping.factors import norms
from tf_bandmf.keras.clipping.factors.base import Factor, Instantiated
from tf_bandmf.keras.clipping.tensors import batches


@dataclasses.dataclass
class LayerCall:
    """One call of a tapped layer in the forward pass.

    Attributes:
      layer: the layer.
      variables: the trainable variables whose gradient is taken.
      original: the layer's own `call`.
      args: positional arguments of the call.
      kwargs: keyword arguments of the call.
      taps: tensors [B, ...] whose gradients the rule asked for.
      batched: for each tensor among the arguments, whether its first dimension is
        the batch.
      spread: repeats an output that all examples share, [B, ...]; the identity for
        other outputs.
      rows: how many rows a unit has: a rule may return gradients of units.
      notes: what the rule keeps from the forward pass.
      replaced: operations to which the rule gave a gradient of its own.
    """

    layer: Any
    variables: list[Any]
    original: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    batched: Sequence[bool] | None = None
    spread: Callable[[tf.Tensor], tf.Tensor] = tf.identity
    taps: list[tf.Tensor] = dataclasses.field(default_factory=list)
    rows: int = 1
    notes: dict[str, Any] = dataclasses.field(default_factory=dict)
    replaced: list[Any] = dataclasses.field(default_factory=list)

    def tap(self, tensor: tf.Tensor) -> tf.Tensor:
        """Asks for the gradient of a tensor; returns what to pass on instead.

        The copy matters: a layer may return one tensor twice, or its own input, and
        the gradient must be that of this output alone.
        """
        copy = self.spread(tensor)
        self.taps.append(copy)
        return copy

    def run(self) -> Any:
        """Calls the layer's own `call` with the recorded arguments."""
        return self.original(*self.args, **self.kwargs)

    def run_with(self, **attributes: Any) -> Any:
        """Calls the layer's own `call` as if the layer had other attributes.

        A copy of the layer has them: nothing else sees it.
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
    """Computes factors of per-example gradients for one kind of layer.

    Attributes:
      spreads: whether a call whose output is shared by all examples is handled.
      batched_input_only: whether the first argument must have a batch dimension.
      runs_again: whether the rule runs the layer a second time.
      opens: whether the rule is only for the layer's own variables, and the layers
        inside are tapped with their own rules.
    """

    spreads = False
    batched_input_only = True
    runs_again = False
    opens = False

    @abc.abstractmethod
    def supports(self, layer: Any, variables: Sequence[Any]) -> bool:
        """Whether the rule is exact for this layer and this trainable set."""

    @abc.abstractmethod
    def forward(self, call: LayerCall) -> Any:
        """Runs the layer, taps what the rule needs, returns the layer's output."""

    @abc.abstractmethod
    def factors(
        self, call: LayerCall, gradients: Sequence[tf.Tensor | None]
    ) -> Mapping[int, Factor]:
        """Returns factors by `id` of the Keras variable.

        Args:
          call: the recorded call.
          gradients: gradient of the summed losses for each tap, [B, ...]; None
            where the loss does not depend on the tap.
        """


def owns_only(variables: Sequence[Any], *covered: Any) -> bool:
    """Whether the trainable set lies within what a rule covers."""
    allowed = {id(variable) for variable in covered if variable is not None}
    return all(id(variable) in allowed for variable in variables)


def is_plain(layer: Any, *classes: type, adapted: bool = False) -> bool:
    """Whether a layer is exactly of one of these classes, `call` untouched.

    A subclass may compute anything: it is left to the rule of single examples.

    Args:
      layer: a built layer.
      classes: the classes.
      adapted: whether it may have an adapter (LoRA).
    """
    return (
        type(layer) in classes
        and "call" not in vars(layer)
        and (adapted or not getattr(layer, "lora_enabled", False))
        and getattr(layer, "quantization_mode", None) is None
    )


def inherits_unchanged(layer: Any, cls: type) -> bool:
    """Whether a layer is of a class, or of a subclass that changes nothing."""
    is_one = isinstance(layer, cls) and "call" not in vars(layer)
    return is_one and not overridden(layer, cls)


def overridden(layer: Any, cls: type) -> set[str]:
    """Names that the class of a layer overrides from a class that it derives from."""
    own = type(layer).__mro__[: type(layer).__mro__.index(cls)]
    return {
        name
        for subclass in own
        for name in vars(subclass)
        if not name.startswith("__") and hasattr(cls, name)
    }


class OneTapRule(Rule):
    """Base of the rules that tap one tensor, by default the layer's output."""

    def forward(self, call: LayerCall) -> Any:
        return call.tap(call.run())

    def factors(
        self, call: LayerCall, gradients: Sequence[tf.Tensor | None]
    ) -> Mapping[int, Factor]:
        (gradient,) = gradients
        return {} if gradient is None else self.factors_of(call, gradient)

    @abc.abstractmethod
    def factors_of(self, call: LayerCall, gradient: tf.Tensor) -> Mapping[int, Factor]:
        """Returns factors by `id` of the Keras variable.

        Args:
          call: the recorded call.
          gradient: gradient of the summed losses for the tap, [B, ...].
        """


class PreActivationRule(OneTapRule):
    """Base of the rules that tap a layer just before its activation.

    Attributes:
      is_product: whether the layer multiplies matrices. XLA cuts a product into parts,
        and would keep them for the gradient of the activation, which adds them up again.
    """

    is_product = False

    def forward(self, call: LayerCall) -> Any:
        outputs = call.run_with(activation=None)
        activation = call.layer.activation
        if activation is None:
            return call.tap(outputs)
        if self.is_product and norms.accelerator():
            (outputs,) = norms.pinned(outputs)
        return activation(call.tap(outputs))

    def of_bias(self, layer: Any, gradient: tf.Tensor) -> dict[int, Factor]:
        """The factor of the bias that is added before the activation, if there is one."""
        if layer.bias is None:
            return {}
        shape = kernel_shape(layer.bias)
        return {id(layer.bias): Instantiated(reduce_to_shape(gradient, shape))}


def reduce_to_shape(gradients: tf.Tensor, shape: Sequence[int]) -> tf.Tensor:
    """Sums per-example gradients over the dimensions along which a variable is spread.

    Args:
      gradients: [B, ...], gradients for something that a variable was added to.
      shape: shape of the variable, aligned to the last dimensions.

    Returns:
      Per-example gradients of the variable, [B, *shape], float32.

    Raises:
      ValueError: if the variable is spread along the batch in another way.
    """
    gradients = tf.cast(gradients, tf.float32)
    padded = [1] * (gradients.shape.rank - len(shape)) + list(shape)
    if len(padded) != gradients.shape.rank or padded[0] != 1:
        raise ValueError(
            f"A variable of shape {tuple(shape)} cannot be shared by all examples of "
            f"a tensor of shape {gradients.shape}."
        )
    axes = [axis for axis in range(1, len(padded)) if padded[axis] == 1]
    if axes:
        gradients = tf.reduce_sum(gradients, axis=axes)
    return batches.reshape_examples(gradients, *shape)


def kernel_shape(variable: Any) -> tuple[int, ...]:
    """Static shape of a Keras variable."""
    return tuple(variable.shape)
