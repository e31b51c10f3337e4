"""State: what a step may read and write, at any depth of nested functions.

A variable that is assigned from data carries them past clipping and noise, into the next
step or the released model. Only the counters of random generators may change. Host code
(`py_function`) can do anything, so it is refused wherever it is.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import op_def_registry
from tensorflow.python.ops import control_flow_util_v2

from tf_bandmf.keras.clipping.independence.domain import NotIndependent
from tf_bandmf.keras.clipping.independence.pure_operations import PURE

_RANDOM = re.compile(
    r"Random(Uniform|UniformInt|StandardNormal|Gamma|GammaGrad|PoissonV2|Shuffle)$|"
    r"(Parameterized)?TruncatedNormal$|Multinomial$|"
    r"Stateful(Uniform|UniformInt|UniformFullInt|StandardNormalV2|TruncatedNormal)$"
)
# Stateful operations that neither write nor run code of the host.
_HARMLESS = frozenset(
    "VarHandleOp ReadVariableOp ResourceGather ResourceGatherNd VarIsInitializedOp "
    "VariableShape Assert Placeholder _Arg _Retval LookupTableFindV2 "
    "LookupTableSizeV2 HashTableV2 AnonymousHashTable "
    "StatefulPartitionedCall While If Case".split()
)
_ASSIGNMENTS = frozenset(
    {"AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp"}
)
# These advance the counter of a `tf.random.Generator`.
_COUNTERS = frozenset({"RngReadAndSkip", "RngSkip"})
# Operation -> its input that decides what a generator's counter becomes.
ADVANCES = {**dict.fromkeys(_ASSIGNMENTS, 1), **dict.fromkeys(_COUNTERS, 2)}
# Of numbers that are drawn anew these give such numbers; and `Cast` of integers.
_KEEP_FRESH = frozenset(
    "Identity IdentityN Reshape Bitcast Squeeze ExpandDims Split SplitV Unpack Pack "
    "ConcatV2 Slice StridedSlice GatherV2 AddV2 Add BitwiseXor "
    "StatelessRandomGetKeyCounter StatelessRandomUniformFullInt "
    "StatelessRandomUniformFullIntV2".split()
)
_WRITES = re.compile(r"Assign|Resource(Scatter|Apply|SparseApply|StridedSliceAssign)")

# Where `PrintV2` may write to: what is in a file could be read again.
_STREAMS = frozenset({"stdout", "stderr", "log(info)", "log(warning)", "log(error)"})

# Beside what a forward pass may have, the update of the weights may lock variables, and
# exchange sums among replicas.
_OF_UPDATES = re.compile(
    r"Mutex(V2|Lock)$|ConsumeMutexLock$|DestroyResourceOp$|DisableCopyOnRead$|"
    r"Collective(Reduce|Gather)|CollectiveInitializeCommunicator|Nccl(AllReduce|Reduce)$"
)

_function_attributes: dict[str, tuple[str, ...]] = {}

# Maps a handle as an operation sees it to what it is in the graph of the step.
Resolve = Callable[[tf.Tensor], Any]


def is_random(op: Any) -> bool:
    """Whether an operation draws from generators that are not Keras'."""
    return bool(_RANDOM.match(op.type))


def draws_anew(op: Any) -> bool:
    """Whether what an operation returns is another random number at each step.

    A generator's counter is such a number where it is read and advanced in one graph:
    other variables are not assigned in a step.
    """
    if op.type == "ReadVariableOp":
        consumers = op.inputs[0].consumers()
        return any(consumer.type in _ASSIGNMENTS for consumer in consumers)
    if op.type in ("RandomUniformInt", "StatefulUniformInt"):
        low, high = (tf.get_static_value(bound) for bound in op.inputs[-2:])
        return low is not None and high is not None and int(high) - int(low) >= 2**16
    return is_random(op) or op.type == "RngReadAndSkip"


def keeps_fresh(op: Any) -> bool:
    """Whether an operation on numbers that are drawn anew gives such numbers.

    Only what loses nothing of them, or takes a part of them: a function of many values
    to few can be a constant.
    """
    if op.type == "Cast":
        return bool(op.inputs[0].dtype.is_integer and op.outputs[0].dtype.is_integer)
    if op.type == "Mul":  # Keras multiplies by 1 for a copy.
        factors = [tf.get_static_value(factor) for factor in op.inputs]
        return any(f is not None and np.all(f == 1) for f in factors)
    if op.type == "FloorMod":  # Keras makes int32 of uint32.
        modulus = tf.get_static_value(op.inputs[1])
        return modulus is not None and bool(np.all(modulus >= 2**16))
    return op.type in _KEEP_FRESH


def refuse_host_operation(op: Any) -> None:
    """Refuses an operation with effects or inputs that a graph does not show.

    Raises:
      NotIndependent: if it is not in the list of what is allowed.
    """
    if _is_benign(op.type) or (op.type == "PrintV2" and _prints(op.node_def)):
        return
    if op.type in _ASSIGNMENTS or op.type in _COUNTERS:
        return
    raise NotIndependent(
        f"is of type {op.type}, which is not among the operations that are known to "
        "compute their outputs from their inputs and to do nothing else: it may keep "
        "state or run code outside of the graph"
    )


def may_write(op: Any) -> bool:
    """Whether an operation that takes the handle of a variable may write it."""
    functions = called(op)
    if functions:
        return not all(_is_clean(op.graph, name) for name, _ in functions)
    return op.type not in _HARMLESS and op.type not in ("Identity", "IdentityN")


def assigns(op: Any) -> bool:
    """Whether an operation, or a function that it calls, assigns a variable."""
    if _WRITES.match(op.type):
        return True
    return any(
        has_node(op.graph, name, lambda node: bool(_WRITES.match(node.op)))
        for name, _ in called(op)
    )


def calls_host(graph: Any, name: str) -> bool:
    """Whether an operation, or a function by its name, may run code of the host.

    That is so of all that is not known to do something else.

    Args:
      graph: that knows the function; None in eager code.
      name: type of an operation, or name of a function.
    """
    if op_def_registry.get(name) is not None:
        return not _may_update(name)
    if definition(graph, name) is None:
        return True
    return has_node(
        graph,
        name,
        lambda node: (
            not (_may_update(node.op) or (node.op == "PrintV2" and _prints(node)))
        ),
    )


def _may_update(op_type: str) -> bool:
    return (
        _is_benign(op_type)
        or op_type in _COUNTERS
        or bool(_WRITES.match(op_type) or _OF_UPDATES.match(op_type))
    )


def eager_effects(op_type: str) -> tuple[bool, bool]:
    """`may_write` and `assigns` of an operation in eager code, by its type.

    Args:
      op_type: or the name of a `tf.function` that is called.
    """
    if context.context().has_function(op_type):
        writes = has_node(None, op_type, lambda node: bool(_WRITES.match(node.op)))
        return not _is_clean(None, op_type), writes
    definition = op_def_registry.get(op_type)
    if definition is None or _function_names(definition):
        return True, True  # what it calls is not known here
    return op_type not in _HARMLESS, bool(_WRITES.match(op_type))


def refuse_state(
    operations: Sequence[Any],
    is_seed: Callable[[Any], bool],
    is_metric: Callable[[Any], bool],
) -> None:
    """Refuses operations that write variables, or act outside of the graph.

    Args:
      operations: of one graph; functions that they call are searched as well.
      is_seed: whether a handle is that of a random generator's counter.
      is_metric: whether a handle is that of a metric, which knows the data.

    Raises:
      NotIndependent: with the operation.
    """
    for op in operations:
        if any(t.dtype == tf.resource and is_metric(t) for t in op.inputs):
            raise NotIndependent("reads the state of a metric", op)
    _search(operations, is_seed, lambda handle: handle)


def _search(
    operations: Iterable[Any], is_seed: Callable[[Any], bool], resolve: Resolve
) -> None:
    for op in operations:
        if op.type in _ASSIGNMENTS and is_seed(resolve(op.inputs[0])):
            continue
        if _WRITES.match(op.type):
            raise NotIndependent("changes a variable", op)
        try:
            refuse_host_operation(op)
        except NotIndependent as error:
            error.operation = op
            raise
        for name, inputs in called(op):
            if not _is_clean(op.graph, name):
                _search_function(op, name, inputs, is_seed, resolve)


def _search_function(
    op: Any,
    name: str,
    inputs: Sequence[tf.Tensor],
    is_seed: Callable[[Any], bool],
    resolve: Resolve,
) -> None:
    shapes = [tensor.shape for tensor in inputs]
    graph = control_flow_util_v2.get_func_graph(op, shapes, name)
    outer = {id(i): o for i, o in zip(graph.inputs, inputs, strict=True)}

    def inside(handle: tf.Tensor) -> Any:
        found = outer.get(id(handle))
        return handle if found is None else resolve(found)

    _search(graph.get_operations(), is_seed, inside)


def called(op: Any) -> list[tuple[str, Sequence[tf.Tensor]]]:
    """Functions that an operation calls by name, each with its inputs."""
    found: list[tuple[str, Sequence[tf.Tensor]]] = []
    for attribute in _attributes_with_functions(op):
        value = op.get_attr(attribute)
        functions = value if isinstance(value, list) else [value]
        skipped = 1 if op.type in ("If", "StatelessIf", "Case", "StatelessCase") else 0
        found += [(f.name, list(op.inputs)[skipped:]) for f in functions]
    return found


def _attributes_with_functions(op: Any) -> tuple[str, ...]:
    if op.type not in _function_attributes:
        _function_attributes[op.type] = _function_names(op.op_def)
    return _function_attributes[op.type]


def _function_names(op_def: Any) -> tuple[str, ...]:
    """Of the attributes of an operation that are functions."""
    return tuple(
        attribute.name
        for attribute in op_def.attr
        if attribute.type in ("func", "list(func)")
    )


def _is_clean(graph: Any, name: str) -> bool:
    """Whether a function, and all that it calls, neither write nor act outside."""
    return not has_node(
        graph,
        name,
        lambda node: (
            not (_is_benign(node.op) or (node.op == "PrintV2" and _prints(node)))
        ),
    )


def has_node(
    graph: Any,
    name: str,
    matches: Callable[[Any], bool],
    seen: set[str] | None = None,
) -> bool:
    """Whether a node matches of a function or of one that it calls.

    Args:
      graph: that knows the function, None in eager code; of one that it does not know
        anything is possible.
      name: of the function.
      matches: asked about nodes.
      seen: functions that are searched already.
    """
    seen = set() if seen is None else seen
    if name in seen:
        return False
    seen.add(name)
    found = definition(graph, name)
    if found is None:
        return True
    return any(matches(node) for node in found.node_def) or any(
        has_node(graph, function.name, matches, seen)
        for node in found.node_def
        for value in node.attr.values()
        for function in (value.func, *value.list.func)
        if function.name
    )


def definition(graph: Any, name: str) -> Any:
    """The definition of a function that a graph, or one around it, knows; or None.

    Args:
      graph: None in eager code, which knows all.
      name: of the function.
    """
    if graph is None and context.context().has_function(name):
        return context.context().get_function_def(name)
    while graph is not None:
        function = graph._get_function(name)
        if function is not None:
            return function.cached_definition
        graph = getattr(graph, "outer_graph", None)
    return None


def _prints(node: Any) -> bool:
    """Whether a `PrintV2` writes to where nothing of a step reads."""
    return node.attr["output_stream"].s.decode() in _STREAMS


def _is_benign(op_type: str) -> bool:
    return op_type in PURE or op_type in _HARMLESS or bool(_RANDOM.match(op_type))
