"""The rule for layers that are executed for each example by itself.

A layer that cannot be shown to keep examples apart is never given two of them: it runs
vectorized over batches of one, forward and backward, and also its custom gradients.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.factors.base import Factor
from tf_bandmf.keras.clipping.independence.map_examples import map_examples
from tf_bandmf.keras.clipping.independence.trace import current_trace
from tf_bandmf.keras.clipping.rules import generic
from tf_bandmf.keras.clipping.rules.base import LayerCall
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.compat.seeds import (
    DrawsInFunction,
    per_example_seeds,
    recorded_draws,
    used_generators,
)

# Their results have sizes that depend on the data, and cannot be put side by side.
_RAGGED = frozenset(
    "Where Unique UniqueV2 UniqueWithCounts UniqueWithCountsV2 ListDiff "
    "DynamicPartition".split()
)


class AloneRule(generic.GenericRule):
    """Runs the layer on each example separately, in the forward pass too."""

    def forward(self, call: LayerCall) -> Any:
        inputs = generic._batched(call)
        if not inputs:
            raise UnsupportedModelError(
                f"{generic._name(call)} is called on no tensor with a batch dimension, "
                "so it cannot run for each example by itself. Give it one."
            )
        call.notes["scope"] = generic._Scope()
        count = tf.shape(inputs[0])[0]
        call.notes["seeds"] = [
            per_example_seeds(generator.next(), count)
            for generator in _generators_of_one(call)
        ]
        leaves = _run(call, inputs)
        return generic._packed(call, call.notes["structure"], leaves)

    def factors(
        self, call: LayerCall, gradients: Sequence[tf.Tensor | None]
    ) -> Mapping[int, Factor]:
        return super().factors(call, gradients) if call.variables else {}


def _run(call: LayerCall, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Returns what the layer returns for each example, [B, ...]."""
    seeds = call.notes["seeds"]
    rest: list[tf.Tensor] = []

    def one_example(
        element: tuple[list[tf.Tensor], list[tf.Tensor]],
    ) -> list[tf.Tensor]:
        outputs = generic._run_one(call, *element)
        call.notes["structure"] = outputs
        leaves = _rows(call, outputs)
        return [leaf[0] for leaf in leaves]

    @tf.custom_gradient
    def run(*tensors: tf.Tensor) -> Any:
        elements = (list(tensors), seeds)
        with _explained(call):
            leaves = map_examples(
                one_example,
                elements,
                generic._name(call),
            )
        rest[:] = leaves
        kept = generic._floats(leaves)

        def backward(*upstream: tf.Tensor, variables: Any = None) -> Any:
            gradients = _backward(call, tensors, upstream)
            # Weights get their gradients from `factors`.
            return (gradients, [None] * len(variables)) if variables else gradients

        return kept, backward

    results = run(*inputs)
    outputs = iter(results)
    found = [next(outputs) if leaf.dtype.is_floating else leaf for leaf in rest]
    trace = current_trace()
    if trace is not None:
        trace.replaces_gradient(results)
    return found


def _backward(
    call: LayerCall,
    inputs: Sequence[tf.Tensor],
    upstream: Sequence[tf.Tensor],
) -> list[tf.Tensor | None]:
    """Gradients for the inputs, one example at a time."""
    wanted = [i for i, tensor in enumerate(inputs) if tensor.dtype.is_floating]
    found: list[tf.Tensor | None] = [None] * len(inputs)
    if not wanted:
        return found

    def one_example(
        element: tuple[list[tf.Tensor], list[tf.Tensor], list[tf.Tensor]],
    ) -> list[tf.Tensor]:
        example, gradients, seeds = element
        example = [tf.identity(tensor) for tensor in example]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch([example[i] for i in wanted])
            outputs = generic._run_one(call, example, seeds)
            leaves = generic._floats(_rows(call, outputs))
        results = tape.gradient(
            leaves,
            [example[i] for i in wanted],
            output_gradients=[gradient[None] for gradient in gradients],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        return [tf.convert_to_tensor(result) for result in results]

    # The gradient of something that gathers, as of a loss alone, is sparse.
    dense = [tf.convert_to_tensor(gradient) for gradient in upstream]
    elements = (list(inputs), dense, call.notes["seeds"])
    with _explained(call):
        results = map_examples(
            one_example,
            elements,
            generic._name(call),
        )
    for index, result in zip(wanted, results, strict=True):
        found[index] = result
    return found


def _generators_of_one(call: LayerCall) -> list[keras.random.SeedGenerator]:
    """Finds out what a call draws from, in a graph that never runs."""
    inputs = generic._batched(call)
    specs = [tf.TensorSpec(tensor.shape[1:], tensor.dtype) for tensor in inputs]
    found: list[keras.random.SeedGenerator] = []

    @tf.function(autograph=False)
    def probe(tensors: list[tf.Tensor]) -> tf.Tensor:
        with used_generators() as generators, recorded_draws():
            outputs = generic._run_one(call, tensors, None)
        _rows(call, outputs)
        found.extend(generators)
        return tf.zeros([])

    try:
        graph = probe.get_concrete_function(specs).graph
    except DrawsInFunction as error:
        raise UnsupportedModelError(f"{generic._name(call)}: {error}") from error
    for op in graph.get_operations():
        if op.type in _RAGGED:
            raise _refusal(call, f"{op.type} has a result of a size that varies")
    return found


@contextlib.contextmanager
def _explained(call: LayerCall) -> Iterator[None]:
    """Says what it means that something cannot be vectorized."""
    try:
        yield
    except UnsupportedModelError:
        raise
    except Exception as error:
        raise _refusal(
            call, str(error).splitlines()[0] if str(error) else ""
        ) from error


def _refusal(call: LayerCall, reason: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{generic._name(call)} cannot be shown to keep examples apart, and cannot be "
        f"executed for each example by itself either ({reason}). Write it with operations "
        "on the other axes than that of the batch, or vouch for its class with "
        "`tf_bandmf.keras.register_per_example_layer`."
    )


def _rows(call: LayerCall, outputs: Any) -> list[tf.Tensor]:
    """All tensors of the layer's output for one example: [1, ...]."""
    leaves = generic._leaves(call, outputs)
    for tensor in leaves:
        if not tensor.shape.rank or tensor.shape[0] not in (1, None):
            raise UnsupportedModelError(
                f"{generic._name(call)} is executed for each example by itself, and must "
                f"return one row for one example, found a tensor of shape {tensor.shape}. "
                f"Keep the batch as the first dimension of its results."
            )
    return leaves
