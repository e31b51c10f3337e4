"""The rule for every layer that has no rule of its own.

The layer alone is differentiated on one example at a time, vectorized. That is exact
for any layer that treats examples separately, and costs memory for one gradient of
the layer per example.
"""

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.factors.base import Factor, Instantiated
from tf_bandmf.keras.clipping.independence.map_examples import map_examples
from tf_bandmf.keras.clipping.rules.base import LayerCall, Rule
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.clipping.tensors.variables import tensorflow_variable
from tf_bandmf.keras.compat.keras_objects import (
    AUTOCAST_SCOPE,
    CALL_CONTEXT,
    EXTRAS,
    global_state,
)
from tf_bandmf.keras.compat.seeds import (
    DrawsInFunction,
    per_example_seeds,
    recorded_draws,
    replayed_draws,
)


class GenericRule(Rule):
    """Differentiates the layer on each example separately."""

    batched_input_only = False
    runs_again = True

    def supports(self, layer: Any, variables: Sequence[Any]) -> bool:
        return True

    def forward(self, call: LayerCall) -> Any:
        call.notes["scope"] = _Scope()
        call.notes["seeds"] = []
        try:
            with recorded_draws() as draws:
                outputs = call.run()
        except DrawsInFunction as error:
            raise UnsupportedModelError(f"{_name(call)}: {error}") from error
        leaves = _leaves(call, outputs)
        if draws:
            # The layer is random: run it again with seeds that can be replayed.
            # What it drew above is not used (a graph drops it).
            count = tf.shape(_batched(call)[0])[0]
            call.notes["seeds"] = [per_example_seeds(seed, count) for seed in draws]
            leaves = _forward_per_example(call)
        return _packed(call, outputs, leaves)

    def factors(
        self, call: LayerCall, gradients: Sequence[tf.Tensor | None]
    ) -> Mapping[int, Factor]:
        if all(gradient is None for gradient in gradients):
            return {}
        used = [i for i, gradient in enumerate(gradients) if gradient is not None]
        variables = [tensorflow_variable(variable) for variable in call.variables]
        seeds = call.notes["seeds"]

        def one_example(
            element: tuple[list[tf.Tensor], list[tf.Tensor], list[tf.Tensor]],
        ) -> list[tf.Tensor]:
            inputs, upstream, example_seeds = element
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(variables)
                outputs = _run_one(call, inputs, example_seeds)
                leaves = _floats(_leaves(call, outputs))
            grads = tape.gradient(
                [leaves[i] for i in used],
                variables,
                output_gradients=[gradient[None] for gradient in upstream],
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
            return [tf.convert_to_tensor(grad) for grad in grads]

        elements = (_batched(call), [gradients[i] for i in used], seeds)
        per_example = map_examples(
            one_example,
            elements,
            _name(call),
        )
        return {
            id(variable): Instantiated(gradient)
            for variable, gradient in zip(call.variables, per_example, strict=True)
        }


class _Scope:
    """Keras' ambient state of a call: `training`, mixed precision."""

    def __init__(self) -> None:
        context = global_state.get_global_attribute(CALL_CONTEXT)
        self._context = copy.copy(context)
        self._autocast = global_state.get_global_attribute(AUTOCAST_SCOPE)

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        previous = {
            name: global_state.get_global_attribute(name)
            for name in (CALL_CONTEXT, AUTOCAST_SCOPE)
        }
        global_state.set_global_attribute(CALL_CONTEXT, copy.copy(self._context))
        global_state.set_global_attribute(AUTOCAST_SCOPE, self._autocast)
        try:
            yield
        finally:
            for name, value in previous.items():
                global_state.set_global_attribute(name, value)


def _batched(call: LayerCall) -> list[tf.Tensor]:
    """Returns the tensor arguments that have a batch dimension."""
    leaves = [
        leaf
        for leaf in keras.tree.flatten((call.args, call.kwargs))
        if tf.is_tensor(leaf)
    ]
    flags = call.batched or [bool(leaf.shape.rank) for leaf in leaves]
    return [leaf for leaf, flag in zip(leaves, flags, strict=True) if flag]


def _run_one(
    call: LayerCall, inputs: Sequence[tf.Tensor], seeds: Sequence[tf.Tensor] | None
) -> Any:
    """Runs the layer on one example.

    Args:
      call: the recorded call.
      inputs: the example's slice of each batched argument, without batch dimension.
      seeds: one seed of shape [2] per random draw of the layer; None to draw.

    Returns:
      The layer's output for a batch of one.
    """
    slices = {
        id(leaf): value for leaf, value in zip(_batched(call), inputs, strict=True)
    }

    def replace(leaf: Any) -> Any:
        value = slices.get(id(leaf))
        return leaf if value is None else value[None]

    args, kwargs = keras.tree.map_structure(replace, (call.args, call.kwargs))
    replay = contextlib.nullcontext() if seeds is None else replayed_draws(list(seeds))
    with call.notes["scope"].restored(), replay:
        return call.original(*args, **kwargs)


def _forward_per_example(call: LayerCall) -> list[tf.Tensor]:
    """Runs a random layer on every example separately, with replayable draws."""

    def one_example(
        element: tuple[list[tf.Tensor], list[tf.Tensor]],
    ) -> list[tf.Tensor]:
        inputs, seeds = element
        outputs = _run_one(call, inputs, seeds)
        return [leaf[0] for leaf in _leaves(call, outputs)]

    elements = (_batched(call), call.notes["seeds"])
    return map_examples(one_example, elements, _name(call))


def _name(call: LayerCall) -> str:
    return f"Layer {call.layer.name!r} ({type(call.layer).__name__})"


def _leaves(call: LayerCall, outputs: Any) -> list[tf.Tensor]:
    """The tensors of a layer's output, each with those that Keras attaches to it.

    Keras' cross-entropies read the logits that an activation attached to its result;
    they are an output of the layer like any other, and so are masks.
    """
    leaves = []
    for leaf in keras.tree.flatten(outputs):
        attached = (getattr(leaf, name, None) for name in EXTRAS)
        for tensor in (leaf, *attached):
            if tensor is None:
                continue
            if not tf.is_tensor(tensor) or isinstance(
                tensor, (tf.RaggedTensor, tf.SparseTensor)
            ):
                raise UnsupportedModelError(
                    f"{_name(call)} returns a {type(tensor).__name__}, of which no "
                    f"per-example gradient can be taken. Return dense tensors from its "
                    f"`call`."
                )
            leaves.append(tensor)
    return leaves


def _floats(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return [tensor for tensor in tensors if tensor.dtype.is_floating]


def _packed(call: LayerCall, outputs: Any, leaves: Sequence[tf.Tensor]) -> Any:
    """Puts leaves [B, ...] into the structure of an output, and taps those of floats."""
    remaining = iter(leaves)

    def tapped() -> tf.Tensor:
        leaf = next(remaining)
        return call.tap(leaf) if leaf.dtype.is_floating else tf.identity(leaf)

    def replace(leaf: Any) -> Any:
        if leaf is None:
            return None
        replaced = tapped()
        for name in EXTRAS:
            if getattr(leaf, name, None) is not None:
                with contextlib.suppress(AttributeError):
                    setattr(replaced, name, tapped())
        return replaced

    return keras.tree.map_structure(replace, outputs)
