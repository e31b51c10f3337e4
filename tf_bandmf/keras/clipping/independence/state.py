"""The state that a step may read and write, at any depth of nested functions.

A variable that is assigned from data carries the data past clipping and noise, into the
next step or the released model. Only the counters of random generators may change. Code
outside of the graph (`py_function`) can do anything, so it is refused everywhere.

TensorFlow registers operations with side effects as stateful. Stateful operations that
are not listed here are refused, and so are a few operations with side effects that are
registered as stateless.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf

from tf_bandmf.keras.compat.graphs import nodes_of, op_def_registry, origin

# Stateful operations that write nothing, and read only what no step changes.
_READS = frozenset(
    "AnonymousHashTable Assert Case CheckNumerics CheckNumericsV2 HashTableV2 If "
    "LookupTableFindV2 LookupTableSizeV2 ReadVariableOp ResourceGather ResourceGatherNd "
    "SentencepieceOp SentencepieceTokenizeOp SentencepieceTokenizeWithOffsetsOp "
    "StatefulPartitionedCall StatelessRandomGetAlg VarHandleOp VarIsInitializedOp "
    "VariableShape While WordpieceTokenizeWithOffsets _Arg _Retval".split()
)
# Random operations whose draws no seed can repeat.
_DRAWS = frozenset(
    "Multinomial ParameterizedTruncatedNormal RandomGamma RandomGammaGrad "
    "RandomPoissonV2 RandomShuffle RandomStandardNormal RandomUniform "
    "RandomUniformInt RngReadAndSkip RngSkip StatefulStandardNormalV2 "
    "StatefulTruncatedNormal StatefulUniform StatefulUniformFullInt StatefulUniformInt "
    "TruncatedNormal".split()
)
_ASSIGNS = frozenset({"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"})
# The outputs to which `PrintV2` may write; a file could be read back.
_TERMINAL = frozenset({"stdout", "stderr", "log(info)", "log(warning)", "log(error)"})
# Operations that are registered as stateless, but run code outside of the graph, read
# files, or batch the examples of several calls.
_OUTSIDE = frozenset({"PyFuncStateless", "ReadFile", "MatchingFiles", "BatchFunction"})


class NotIndependent(Exception):
    """Raised if a graph does something that per-example gradients must not do.

    Args:
      reason: predicate of a sentence about the graph, such as "changes a variable".
      operation: the operation at fault.
    """

    def __init__(self, reason: str, operation: Any = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.operation = operation


class Effect(enum.Enum):
    """A side effect of an operation."""

    NONE = "none, except reading data that no step changes, or printing to the terminal"
    DRAWS = "draws from a generator of TensorFlow"
    ASSIGNS = "assigns a variable: allowed for counters of generators"
    UNKNOWN = "may write, keep state, or run code outside of the graph"


def effect(node: Any) -> Effect:
    """Returns the side effect of an operation, given as a `NodeDef`."""
    if node.op in _DRAWS:
        return Effect.DRAWS
    if node.op in _ASSIGNS:
        return Effect.ASSIGNS
    if node.op == "PrintV2":
        is_pure = node.attr["output_stream"].s.decode() in _TERMINAL
    elif node.op == "Empty":  # without `init`, it exposes old memory contents
        is_pure = node.attr["init"].b
    else:
        is_stateful = getattr(op_def_registry.get(node.op), "is_stateful", True)
        is_pure = node.op in _READS or not (is_stateful or node.op in _OUTSIDE)
    return Effect.NONE if is_pure else Effect.UNKNOWN


def effects(op: Any) -> dict[Effect, str]:
    """Finds the side effects of an operation and of all functions that it calls.

    Returns:
      For each effect, the type of an operation that has this effect.
    """
    return {effect(node): node.op for node in nodes_of(op)}


def may_write(op: Any) -> bool:
    """Returns whether an operation may write a variable whose handle it takes."""
    return bool(effects(op).keys() & {Effect.ASSIGNS, Effect.UNKNOWN})


def refuse_effects(
    operations: Sequence[Any],
    seeds: Collection[int] = (),
    metrics: Collection[int] = (),
) -> None:
    """Refuses operations that write variables or act outside of the graph.

    The counter of a random generator may be advanced, but not in a function, loop or
    branch, where the owner of the counter is unknown.

    Args:
      operations: operations of one graph; functions that they call are searched as well.
      seeds: ids of the handles of random generator counters.
      metrics: ids of the handles of metric variables, which depend on the data.

    Raises:
      NotIndependent: for the first such operation, which is the error's `operation`.
    """
    for op in operations:
        read = [id(origin(t)) for t in op.inputs if t.dtype == tf.resource]
        if any(handle in metrics for handle in read):
            raise NotIndependent("reads the state of a metric", op)
        of_op = effects(op)
        if Effect.UNKNOWN in of_op:
            raise NotIndependent(
                f"is, or calls, an operation of type {of_op[Effect.UNKNOWN]}, which is "
                f"not among the operations that are known only to compute outputs from "
                f"their inputs: it may keep state or run code outside of "
                f"the graph",
                op,
            )
        if Effect.ASSIGNS in of_op and not (op.type in _ASSIGNS and read[0] in seeds):
            raise NotIndependent("changes a variable", op)
