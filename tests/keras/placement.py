"""Finds operations of a graph that have no kernel for a kind of device.

TensorFlow's CPU wheel also registers the GPU kernels, so no GPU is needed.
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
    """Yields the nodes of a graph, and of all functions that the graph calls.

    Nodes inside functions that XLA compiles are left out, since they need no kernels.
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
    """Returns whether a kernel for the node's dtypes exists for a kind of device."""
    for kernel in _registered(node.op):
        if kernel.device_type not in (device, "DEFAULT"):
            continue
        if all(
            node.attr[constraint.name].type in constraint.allowed_values.list.type
            for constraint in kernel.constraint
            if constraint.name in node.attr and constraint.allowed_values.list.type
        ):
            return True
    # Nodes that never have a kernel, such as calls, loops and placeholders, count too.
    return not _registered(node.op)


def without_kernel(graph, device="GPU"):
    """Returns the nodes that cannot run on the device, and so run on the host."""
    return [node for node in executed_nodes(graph) if not has_kernel(node, device)]
