"""Finds operations of a graph for which TensorFlow has registered no kernel.

TensorFlow's CPU wheel also registers the kernels of GPUs, so this needs no GPU.
"""

import functools

from tensorflow.python.framework import kernels


@functools.cache
def _registered(operation):
    return tuple(kernels.get_registered_kernels_for_op(operation).kernel)


def _functions_of(node):
    for value in node.attr.values():
        if value.HasField("func"):
            yield value.func.name
        yield from (function.name for function in value.list.func)


def executed_nodes(graph):
    """Returns all nodes of a graph that TensorFlow executes, and of functions they call.

    Functions that XLA must compile are left out, since they need no kernels.
    """
    definition = graph.as_graph_def()
    library = {f.signature.name: f for f in definition.library.function}
    seen, waiting = set(), list(definition.node)
    while waiting:
        node = waiting.pop()
        yield node
        for name in _functions_of(node):
            function = library.get(name)
            if name in seen or function is None:
                continue
            seen.add(name)
            if not function.attr["_XlaMustCompile"].b:
                waiting += function.node_def


def has_kernel(node, device):
    """True if a kernel for the node's types is registered for a kind of device."""
    for kernel in _registered(node.op):
        if kernel.device_type not in (device, "DEFAULT"):
            continue
        if all(
            node.attr[constraint.name].type in constraint.allowed_values.list.type
            for constraint in kernel.constraint
            if constraint.name in node.attr and constraint.allowed_values.list.type
        ):
            return True
    # Calls, loops and placeholders never have kernels.
    return not _registered(node.op)


def without_kernel(graph, device="GPU"):
    """Returns the nodes that run on the host, wherever the others run."""
    return [node for node in executed_nodes(graph) if not has_kernel(node, device)]
