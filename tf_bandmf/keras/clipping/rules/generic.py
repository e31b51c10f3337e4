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
from tf_bandmf.keras.clipping.independence.trace import running_again
from tf_bandmf.keras.clipping.rules.base import LayerCall, Rule
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.clipping.tensors.variables import tensorflow_variable
from tf_bandmf.keras.compat.keras_objects import (
    AUTOCAST_SCOPE,
    CALL_CONTEXT,
    LOGITS,
    MASK,
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
        call.notes["structure"] = outputs
        leaves = _output_leaves(call.layer, outputs)
        if draws:
            # The layer is random: run it again with seeds that can be replayed.
            # What it drew above is not used (a graph drops it).
            count = tf.shape(_batched(call)[0])[0]
            call.notes["seeds"] = [per_example_seeds(seed, count) for seed in draws]
            leaves = _forward_per_example(call)
        leaves = [call.tap(leaf) for leaf in leaves]
        return _pack(outputs, leaves)

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
                with running_again():
                    outputs = _run_one(call, inputs, example_seeds)
                leaves = _output_leaves(call.layer, outputs)
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
            backward=True,
            vectorize=may_vectorize(call.layer),
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
        return [leaf[0] for leaf in _output_leaves(call.layer, outputs)]

    elements = (_batched(call), call.notes["seeds"])
    return map_examples(
        one_example, elements, _name(call), vectorize=may_vectorize(call.layer)
    )


def may_vectorize(layer: Any) -> bool:
    """Whether TensorFlow's conversion of a layer's gradient is right.

    That of a loop with several cells, one after the other, gives shapes that do not fit.
    """
    return not isinstance(getattr(layer, "cell", None), keras.layers.StackedRNNCells)


def _name(call: LayerCall) -> str:
    return f"Layer {call.layer.name!r} ({type(call.layer).__name__})"


def _output_leaves(layer: Any, outputs: Any) -> list[tf.Tensor]:
    """Returns the float tensors of a layer's output, logits of a softmax included.

    Keras' cross-entropies read the logits that an activation attached to its result;
    they are an output of the layer like any other.
    """
    leaves = []
    for leaf in keras.tree.flatten(outputs):
        if leaf is None:
            continue
        if not tf.is_tensor(leaf) or isinstance(leaf, tf.RaggedTensor):
            raise UnsupportedModelError(
                f"Layer {layer.name!r} ({type(layer).__name__}) returns a "
                f"{type(leaf).__name__}, of which no per-example gradient can be "
                "taken. Return dense tensors from its `call`."
            )
        if leaf.dtype.is_floating:
            leaves.append(leaf)
            logits = getattr(leaf, LOGITS, None)
            if logits is not None:
                leaves.append(logits)
    return leaves


def _pack(outputs: Any, leaves: Sequence[tf.Tensor]) -> Any:
    """Puts the leaves of `_output_leaves` back into the structure of the output."""
    remaining = iter(leaves)

    def replace(leaf: Any) -> Any:
        if leaf is None or not leaf.dtype.is_floating:
            return leaf
        replaced = next(remaining)
        if getattr(leaf, LOGITS, None) is not None:
            setattr(replaced, LOGITS, next(remaining))
        mask = getattr(leaf, MASK, None)
        if mask is not None:
            setattr(replaced, MASK, mask)
        return replaced

    return keras.tree.map_structure(replace, outputs)
