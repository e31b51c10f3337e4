"""State: what a step may read and write, at any depth of nested functions.

A variable that is assigned from data carries them past clipping and noise, into the next
step or the released model. Only the counters of random generators may change. Host code
(`py_function`) can do anything, so it is refused wherever it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tf_bandmf.graphs.operations import OPERATIONS, Effect, effect, operation
from tf_bandmf.graphs.walking import (
    Scope,
    called,
    definition,
    has_node,
    walk,
)
from tf_bandmf.keras.clipping.independence.constants import folded
from tf_bandmf.keras.clipping.independence.domain import NotIndependent
from tf_bandmf.keras.compat.graphs import op_def_registry

_CLEAN = (Effect.NONE, Effect.READS, Effect.DRAWS, Effect.PRINTS)
_ASSIGNMENTS = frozenset(
    {"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"}
)
# Operation -> its input that decides what a generator's counter becomes.
_ADVANCES = {
    name: 1 if name in _ASSIGNMENTS else 2
    for name, known in OPERATIONS.items()
    if known.effect is Effect.ADVANCES
}
# These give numbers that are drawn anew if all that they are given are: copies, other
# arrangements, draws with such a seed; and `Cast` of integers.
_KEEP_FRESH = frozenset(
    "Identity IdentityN Reshape Bitcast Squeeze ExpandDims Split SplitV Unpack Pack "
    "ConcatV2 Slice StridedSlice GatherV2 StatelessRandomGetKeyCounter "
    "StatelessRandomUniformFullInt StatelessRandomUniformFullIntV2".split()
)
# These move one input; the others say where to.
_MOVED = {
    **dict.fromkeys("Reshape ExpandDims Slice StridedSlice GatherV2 SplitV".split(), 0),
    "Split": 1,
    "StatelessRandomUniformFullInt": 1,
    "StatelessRandomUniformFullIntV2": 1,
}
# The parts that these give are not what the whole is.
_PARTS = frozenset("Split SplitV Unpack Slice StridedSlice GatherV2".split())
# An integer of fewer bytes is not another one at each step.
_LEAST_BYTES = 4


def is_random(kind: str) -> bool:
    """Whether operations of a type draw from generators that are not Keras'."""
    known = operation(kind)
    return known is not None and known.effect is Effect.DRAWS


def freshness(op: Any, values: Sequence[Any]) -> tuple[bool, bool]:
    """Whether what an operation returns is drawn anew at each step.

    Args:
      op: an operation whose inputs do not depend on data.
      values: of its inputs.

    Returns:
      Whether each entry is; and whether the whole is, as the state of a generator, of
      which only the counter moves.
    """
    if op.type == "ReadVariableOp":
        # A generator's state, where it is read and advanced in one graph: other
        # variables are not assigned in a step.
        consumers = op.inputs[0].consumers()
        return False, any(consumer.type in _ASSIGNMENTS for consumer in consumers)
    if op.type == "RngReadAndSkip":
        return False, True
    if op.type in ("RandomUniformInt", "StatefulUniformInt"):
        low, high = (folded(bound) for bound in op.inputs[-2:])
        wide = low is not None and high is not None and int(high) - int(low) >= 2**16
        return wide, False
    if is_random(op.type):
        return True, False
    if not _loses_nothing(op) or not values:
        return False, False
    moved = [values[_MOVED[op.type]]] if op.type in _MOVED else list(values)
    if op.type in ("Mul", "FloorMod"):
        moved = [value for value in values if value.fresh or value.state][:1]
    fresh = bool(moved) and all(value.fresh for value in moved)
    counted = bool(moved) and all(value.fresh or value.state for value in moved)
    if not counted or fresh:
        return fresh, False
    if op.type.startswith("StatelessRandom"):
        return True, False  # numbers that follow from the whole of a state
    return False, op.type not in _PARTS or _has_counter(op)


def _loses_nothing(op: Any) -> bool:
    """Whether an operation keeps what is random about integers, but for a part of them.

    A function of many values to few can be a constant.
    """
    result = op.outputs[0].dtype
    if op.type in ("Cast", "Bitcast"):
        integers = op.inputs[0].dtype.is_integer and result.is_integer
        return bool(integers and result.size >= _LEAST_BYTES)
    if op.type == "Mul":  # Keras multiplies by 1 for a copy.
        factors = [folded(factor) for factor in op.inputs]
        return any(f is not None and np.all(f == 1) for f in factors)
    if op.type == "FloorMod":  # Keras makes int32 of uint32.
        modulus = folded(op.inputs[1])
        return modulus is not None and bool(np.all(modulus >= 2**16))
    return op.type in _KEEP_FRESH


def _has_counter(op: Any) -> bool:
    """Whether a part of `tf.random.Generator`'s state begins with its counter."""
    if op.type != "StridedSlice" or not _reads_generator(op.inputs[0]):
        return False
    begin = folded(op.inputs[1])
    masked = bool(op.get_attr("begin_mask") & 1)
    return masked or (begin is not None and begin[0] == 0)


def _reads_generator(tensor: Any) -> bool:
    while tensor.op.type in ("Identity", "Cast"):
        tensor = tensor.op.inputs[0]
    return bool(tensor.op.type == "RngReadAndSkip")


def refuse_host_operation(op: Any) -> None:
    """Refuses an operation with effects or inputs that a graph does not show.

    Raises:
      NotIndependent: if it is not in the table of what is allowed.
    """
    if effect(op.node_def, op.type) not in (*_CLEAN, Effect.ADVANCES):
        raise NotIndependent(
            f"is of type {op.type}, which is not among the operations that are known to "
            "compute their outputs from their inputs and to do nothing else: it may keep "
            "state or run code outside of the graph",
            op,
        )


def may_write(op: Any) -> bool:
    """Whether an operation that takes the handle of a variable may write it."""
    functions = called(op)
    if functions:
        return not all(_is_clean(op.graph, name) for name, _ in functions)
    return effect(op.node_def, op.type) not in _CLEAN


def assigns(op: Any) -> bool:
    """Whether an operation, or a function that it calls, assigns a variable."""
    return _writes(op.node_def) or any(
        has_node(op.graph, name, _writes) for name, _ in called(op)
    )


def calls_host(graph: Any, name: str) -> bool:
    """Whether an operation, or a function by its name, may run code of the host.

    That is so of all that is not known to do something else.

    Args:
      graph: that knows the function.
      name: type of an operation, or name of a function.
    """
    if op_def_registry.get(name) is not None:
        known = operation(name)
        return known is None or known.effect is Effect.PRINTS
    if definition(graph, name) is None:
        return True
    return has_node(graph, name, lambda node: effect(node, node.op) is None)


def refuse_state(
    operations: Sequence[Any],
    examples: Sequence[Any],
    is_seed: Callable[[Any], bool],
    is_metric: Callable[[Any], bool],
) -> None:
    """Refuses operations that write variables, or act outside of the graph.

    The counter of a random generator may be advanced, but not by what is in the data: the
    next step would read it there.

    Args:
      operations: of one graph; functions that they call are searched as well.
      examples: the tensors that hold the data.
      is_seed: whether a handle is that of a random generator's counter.
      is_metric: whether a handle is that of a metric, which knows the data.

    Raises:
      NotIndependent: with the operation.
    """
    scope = Scope({id(tensor): True for tensor in examples})
    for op in operations:
        if any(t.dtype == tf.resource and is_metric(t) for t in op.inputs):
            raise NotIndependent("reads the state of a metric", op)
    for op, here in walk(
        operations, scope, lambda op, name, _: not _is_clean(op.graph, name)
    ):
        index = _ADVANCES.get(op.type)
        if index is None:
            refuse_host_operation(op)
            continue
        if op.type in _ASSIGNMENTS and not is_seed(here.origin(op.inputs[0])[0]):
            raise NotIndependent("changes a variable", op)
        if here.decided or here.depends(op.inputs[index]):
            raise NotIndependent(
                "keeps data in the counter of a random generator, for the next step", op
            )


def _writes(node: Any) -> bool:
    known = operation(node.op)
    return known is not None and (
        known.effect is Effect.WRITES or node.op in _ASSIGNMENTS
    )


def _is_clean(graph: Any, name: str) -> bool:
    """Whether a function, and all that it calls, neither write nor act outside."""
    return not has_node(graph, name, lambda node: effect(node, node.op) not in _CLEAN)
