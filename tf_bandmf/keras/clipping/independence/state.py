"""Refuses models that write variables, or run code outside of the graph.

If the forward or backward pass assigned data to a variable, the data would get into the
next step or the released model without clipping and noise. In these passes, only the
counters of random generators may change. Code outside of the graph (`py_function`) can
do anything, so it is refused, even in nested functions.

TensorFlow registers operations with side effects as stateful. Stateful operations that
are not listed here are refused, and so are a few operations with side effects that are
registered as stateless.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import tensorflow as tf

from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.compat.graphs import nodes_of, op_def_registry, origin

# Stateful operations that are allowed: they write no state that a step reads, and read
# no state that a step changes.
_READS = frozenset(
    "AnonymousHashTable Assert Case CheckNumerics CheckNumericsV2 Empty HashTableV2 If "
    "LookupTableFindV2 LookupTableSizeV2 PrintV2 ReadVariableOp ResourceGather "
    "ResourceGatherNd SentencepieceOp SentencepieceTokenizeOp "
    "SentencepieceTokenizeWithOffsetsOp "
    "StatefulPartitionedCall StatelessRandomGetAlg VarHandleOp VarIsInitializedOp "
    "VariableShape While WordpieceTokenizeWithOffsets _Arg _Retval".split()
)
# Random operations whose results cannot be reproduced with a seed.
DRAWS = frozenset(
    "Multinomial ParameterizedTruncatedNormal RandomGamma RandomGammaGrad "
    "RandomPoissonV2 RandomShuffle RandomStandardNormal RandomUniform "
    "RandomUniformInt RngReadAndSkip RngSkip StatefulStandardNormalV2 "
    "StatefulTruncatedNormal StatefulUniform StatefulUniformFullInt StatefulUniformInt "
    "TruncatedNormal".split()
)
_ASSIGNS = frozenset({"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"})
# Operations that are registered as stateless, but run code outside of the graph, or read
# files.
_OUTSIDE = frozenset({"PyFuncStateless", "ReadFile"})


def is_pure(node: Any) -> bool:
    """Returns whether an operation has no side effects, except printing.

    Args:
      node: the operation, as a `NodeDef`.
    """
    is_stateful = getattr(op_def_registry.get(node.op), "is_stateful", True)
    return node.op in _READS or not (is_stateful or node.op in _OUTSIDE)


def side_effects(op: Any) -> set[str]:
    """Returns the types of operations with side effects, among `op` and its callees."""
    return {node.op for node in nodes_of(op) if not is_pure(node)}


def may_write(op: Any) -> bool:
    """Returns whether an operation may write a variable whose handle it takes."""
    return bool(side_effects(op) - DRAWS)


def refuse_effects(
    operations: Sequence[Any],
    seeds: Collection[int] = (),
    metrics: Collection[int] = (),
) -> None:
    """Refuses operations that write variables, read metrics or act outside the graph.

    The counter of a random generator may be advanced, but not in a function, loop or
    branch, where the owner of the counter is unknown.

    Args:
      operations: operations of one graph; functions that they call are searched as well.
      seeds: ids of the handles of random generator counters.
      metrics: ids of the handles of metric variables. Reading them is refused, because
        they depend on the data.

    Raises:
      UnsupportedModelError: for the first such operation. The message contains its
        name, which includes the names of the layers around it.
    """
    for op in operations:
        read = [id(origin(t)) for t in op.inputs if t.dtype == tf.resource]
        of_op = side_effects(op)
        unknown = of_op - DRAWS - _ASSIGNS
        if any(handle in metrics for handle in read):
            problem = "reads the state of a metric"
        elif unknown:
            problem = (
                f"is, or calls, an operation of type {min(unknown)}, which may keep "
                f"state or run code outside of the graph"
            )
        elif of_op & _ASSIGNS and not (op.type in _ASSIGNS and read[0] in seeds):
            problem = "changes a variable"
        else:
            continue
        raise UnsupportedModelError(
            f"Operation {op.name!r} {problem}. State that is computed from data would be "
            f"released without noise, or used in the next step without clipping. Remove "
            f"the operation, or set `trainable = False` on its layer."
        )
