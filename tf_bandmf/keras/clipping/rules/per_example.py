"""The fallback rule, which differentiates a layer on one example at a time.

Differentiation is vectorized where this is known to be correct. The gradients are exact
for any layer that does not mix examples. The rule needs memory for one gradient of the
layer per example. If a layer may mix examples, its forward pass and its custom
gradients also run on one example at a time.
"""

import collections
import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.factors.base import Factor, Instantiated
from tf_bandmf.keras.clipping.independence.map_examples import map_examples
from tf_bandmf.keras.clipping.rules.base import LayerCall, Rule
from tf_bandmf.keras.clipping.tensors import batches
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.compat.graphs import FuncGraph
from tf_bandmf.keras.compat.keras_objects import (
    AUTOCAST_SCOPE,
    CALL_CONTEXT,
    global_state,
    tensorflow_value,
)
from tf_bandmf.keras.compat.seeds import (
    per_example_seeds,
    seeds_from,
    used_generators,
)


class PerExampleRule(Rule):
    """Differentiates the layer on each example separately.

    Args:
      alone: True if the layer must run on single examples also in the forward pass.
        Layers that draw random numbers always do, since the gradient must be computed
        with the random numbers of the forward pass.
    """

    runs_again = True

    def __init__(self, alone: bool = False) -> None:
        self.alone = alone

    def supports(self, layer: Any, variables: Sequence[Any]) -> bool:
        return True

    def forward(self, call: LayerCall) -> Any:
        # Store copies, since the call changes these values.
        call.notes["ambient"] = {k: copy.copy(v) for k, v in _ambient().items()}
        inputs = _batched(call)
        no_seed = tf.zeros([2], tf.int64)
        with seeds_from(lambda: no_seed), used_generators() as generators:
            if self.alone:
                # Call the layer in a graph that is never executed, to find out which
                # random generators it uses.
                with _explained(call), FuncGraph("one").as_default():
                    one = [
                        tf.compat.v1.placeholder(t.dtype, t.shape[1:]) for t in inputs
                    ]
                    _run_one(call, one, None)
            else:
                outputs = call.run()
        count = tf.shape(inputs[0])[0]
        seeds = [per_example_seeds(each.next(), count) for each in generators]
        call.notes["seeds"] = seeds
        if not self.alone and not generators:
            return _packed(call, outputs, batches.tensor_leaves(outputs))
        # If `call.run` was called above, its outputs are not used here, so TensorFlow
        # removes its operations from the graph.
        leaves = _run(call, inputs)
        return _packed(call, call.notes["structure"], leaves)

    def factors(self, call: LayerCall, *gradients: Any) -> Mapping[int, Factor]:
        if not call.variables:
            return {}
        variables = [tensorflow_value(variable) for variable in call.variables]
        of_examples = _pulled_back(call, gradients, lambda inputs: variables)
        return {
            id(variable): Instantiated(gradient)
            for variable, gradient in zip(call.variables, of_examples, strict=True)
        }


def _run(call: LayerCall, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns the layer's output for each example, [B, ...]."""
    rest: list[tf.Tensor] = []

    def one_example(
        element: tuple[list[tf.Tensor], list[tf.Tensor]],
    ) -> list[tf.Tensor]:
        outputs = _run_one(call, *element)
        call.notes["structure"] = outputs
        leaves = batches.tensor_leaves(outputs)
        for leaf in leaves:
            if not leaf.shape.rank or leaf.shape[0] not in (1, None):
                raise UnsupportedModelError(
                    f"{_name(call)} must keep the batch as the first axis of its "
                    f"outputs. For a batch of one example, that axis must have size 1, "
                    f"but an output has the shape {leaf.shape}."
                )
        return [leaf[0] for leaf in leaves]

    @tf.custom_gradient
    def run(*_: tf.Tensor) -> Any:
        with _explained(call):
            given = inputs, call.notes["seeds"]
            rest[:] = leaves = map_examples(one_example, given, _name(call))

        def backward(*upstream: tf.Tensor, variables: Any = None) -> Any:
            # Gather operations (in some losses, for example) have sparse gradients.
            dense = [tf.convert_to_tensor(gradient) for gradient in upstream]
            gradients = _pulled_back(call, dense, _floats)
            # The gradients of weights are None here: they come from `factors`.
            return (gradients, [None] * len(variables)) if variables else gradients

        return _floats(leaves), backward

    results = run(*_floats(inputs))
    call.replaced += {id(tensor.op): tensor.op for tensor in results}.values()
    outputs = iter(results)
    return [next(outputs) if leaf.dtype.is_floating else leaf for leaf in rest]


def _pulled_back(
    call: LayerCall,
    upstream: Sequence[tf.Tensor | None],
    sources: Callable[[Sequence[tf.Tensor]], Sequence[Any]],
) -> list[tf.Tensor]:
    """Backpropagates gradients of the outputs through the layer, for each example.

    Args:
      call: the recorded call.
      upstream: for each float output, the gradient of the losses, [B, ...]; or None.
      sources: maps the layer's inputs to the tensors for which gradients are returned:
        the weights, or the float inputs.

    Returns:
      The per-example gradients for these tensors.
    """
    used = [i for i, gradient in enumerate(upstream) if gradient is not None]

    def one_example(
        element: tuple[list[tf.Tensor], list[tf.Tensor], list[tf.Tensor]],
    ) -> list[tf.Tensor]:
        inputs, gradients, seeds = element
        inputs = [tf.identity(tensor) for tensor in inputs]
        wanted = sources(inputs)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(wanted)
            outputs = _run_one(call, inputs, seeds)
            leaves = _floats(batches.tensor_leaves(outputs))
        pulled = tape.gradient(
            [leaves[i] for i in used],
            wanted,
            output_gradients=[gradient[None] for gradient in gradients],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        return [tf.convert_to_tensor(gradient) for gradient in pulled]

    inputs = _batched(call)
    if not sources(inputs):
        return []
    elements = (inputs, [upstream[i] for i in used], call.notes["seeds"])
    with _explained(call):
        return map_examples(one_example, elements, _name(call))


def _ambient() -> dict[str, Any]:
    """Returns Keras' global state on which a call depends, such as `training`."""
    names = CALL_CONTEXT, AUTOCAST_SCOPE
    return {name: global_state.get_global_attribute(name) for name in names}


@contextlib.contextmanager
def _within(ambient: dict[str, Any]) -> Iterator[None]:
    previous = _ambient()
    for name, value in ambient.items():
        global_state.set_global_attribute(name, copy.copy(value))
    try:
        yield
    finally:
        for name, value in previous.items():
            global_state.set_global_attribute(name, value)


def _batched(call: LayerCall) -> list[tf.Tensor]:
    """Returns the tensor arguments that have a batch axis."""
    leaves = filter(tf.is_tensor, keras.tree.flatten((call.args, call.kwargs)))
    return [leaf for leaf, flag in zip(leaves, call.batched, strict=True) if flag]


def _run_one(
    call: LayerCall, inputs: Sequence[tf.Tensor], seeds: Sequence[tf.Tensor] | None
) -> Any:
    """Runs the layer on one example.

    Args:
      call: the recorded call.
      inputs: the example's slice of each batched argument, without the batch axis.
      seeds: one seed of shape [2] per random draw of the layer; None for new draws.

    Returns:
      The layer's output for a batch of one.
    """
    given = zip(_batched(call), inputs, strict=True)
    rows = {id(leaf): value[None] for leaf, value in given}
    args, kwargs = keras.tree.map_structure(
        lambda leaf: rows.get(id(leaf), leaf), (call.args, call.kwargs)
    )
    replay: Any = contextlib.nullcontext()
    if seeds is not None:
        graph = tf.compat.v1.get_default_graph()
        replay = seeds_from(collections.deque(seeds).popleft, graph)
    with _within(call.notes["ambient"]), replay:
        return call.original(*args, **kwargs)


@contextlib.contextmanager
def _explained(call: LayerCall) -> Iterator[None]:
    """Returns a context that adds the layer's name and advice to errors."""
    try:
        yield
    except UnsupportedModelError:
        raise
    except Exception as error:
        reason = str(error).partition("Arguments received by")[0].strip()
        raise UnsupportedModelError(
            f"{_name(call)} failed on a batch of one example ({reason}). Layers that have "
            f"no rule for per-example gradients, or that may mix examples, run on one "
            f"example at a time. Let the layer accept any batch size, and act only on "
            f"axes other than the batch axis; or, if it keeps examples separate, pass its "
            f"class to `tf_bandmf.keras.extending.register_per_example_layer`."
        ) from error


def _name(call: LayerCall) -> str:
    return f"Layer {call.layer.name!r} ({type(call.layer).__name__})"


def _floats(tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return [tensor for tensor in tensors if tensor.dtype.is_floating]


def _packed(call: LayerCall, outputs: Any, leaves: Sequence[tf.Tensor]) -> Any:
    """Returns `leaves` in the structure of `outputs`.

    Float leaves are passed to `LayerCall.tap`, so that the gradients of the losses with
    respect to them are computed.
    """
    return batches.with_leaves(
        outputs,
        (
            call.tap(leaf) if leaf.dtype.is_floating else tf.identity(leaf)
            for leaf in leaves
        ),
    )
