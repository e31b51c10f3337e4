"""Keras' random functions, made to draw constants, or to tell what they drew.

The self-check compares a batch with examples taken one by one, for which a layer would
draw other masks. All of it is local to a thread, as `patching` is.

What tells that it broke: `tests/keras/compat/test_fixed_draws.py`, which calls each of
the functions named here, and `tests/keras/clipping/forward/test_checked_pass.py`.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src import backend
from tensorflow.core.framework import function_pb2
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.eager import context, execute
from tensorflow.python.ops import gen_stateless_random_ops_v2 as draws

from tf_bandmf.keras.compat.patching import patched
from tf_bandmf.noise.devices import device_kind

# Below 1 in bfloat16, and above the rate of any dropout: everything is kept.
_UNIFORM = 0.99
# What is drawn instead; None for the least integer of the range.
_DRAWS: dict[str, float | None] = {
    "StatelessRandomUniformV2": _UNIFORM,
    "StatelessRandomNormalV2": 0.0,
    "StatelessTruncatedNormalV2": 0.0,
    "StatelessRandomUniformIntV2": None,
}
# Control flow, and what makes seeds of seeds.
_NO_DRAWS = ("StatelessRandomGet", "StatelessIf", "StatelessWhile", "StatelessCase")
_MINIMUM = 4
# Has a loop or a branch made a part of the graph, as operations of its own.
_LOWERED = "_lower_using_switch_merge"


def _fill(arguments: dict[str, Any], value: Any, dtype: Any = None) -> tf.Tensor:
    dtype = arguments.get("dtype") or dtype or keras.config.floatx()
    return tf.fill(arguments["shape"], tf.cast(value, dtype))


# Keras' random functions. Each entry maps the bound arguments to a result without chance.
_FUNCTIONS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "dropout": lambda a: a["inputs"],
    "normal": lambda a: _fill(a, a["mean"]),
    "truncated_normal": lambda a: _fill(a, a["mean"]),
    "uniform": lambda a: _fill(a, (a["minval"] + a["maxval"]) / 2),
    "randint": lambda a: _fill(a, a["minval"], "int32"),
    "shuffle": lambda a: tf.reverse(a["x"], axis=[a["axis"]]),
    "categorical": lambda a: tf.tile(
        tf.cast(tf.argmax(a["logits"], axis=-1), a["dtype"])[:, None],
        [1, a["num_samples"]],
    ),
    "gamma": lambda a: _fill(a, a["alpha"]),
    "binomial": lambda a: _fill(a, a["counts"] * a["probabilities"]),
    "beta": lambda a: _fill(a, a["alpha"] / (a["alpha"] + a["beta"])),
}


@contextlib.contextmanager
def without_randomness() -> Iterator[None]:
    """Replaces Keras' random functions by deterministic ones."""
    with contextlib.ExitStack() as stack:
        for name, result in _FUNCTIONS.items():
            stack.enter_context(patched(backend.random, name, _deterministic(result)))
        yield


def _deterministic(result: Callable[[dict[str, Any]], Any]) -> Callable[..., Any]:
    def replacement(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(original).bind(*args, **kwargs)
        bound.apply_defaults()
        return result(dict(bound.arguments))

    return replacement


@contextlib.contextmanager
def noted_draws() -> Iterator[list[tf.Operation]]:
    """Collects the operations by which Keras' random functions draw in graphs."""
    noted: list[tf.Operation] = []

    def noting(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if tf.executing_eagerly():
            return original(*args, **kwargs)
        graph = tf.compat.v1.get_default_graph()
        start = len(graph.get_operations())
        result = original(*args, **kwargs)
        made = graph.get_operations()[start:]
        noted.extend(op for op in made if is_draw(op.type))
        return result

    with _around_random_functions(noting):
        yield noted


@contextlib.contextmanager
def constants_drawn() -> Iterator[None]:
    """Draws, eagerly, what `FixedCopy` draws with `constant_draws`."""

    def constant(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not tf.executing_eagerly():
            return original(*args, **kwargs)
        with contextlib.ExitStack() as stack:
            for name, replacement in _EAGER_DRAWS.items():
                stack.enter_context(patched(draws, name, replacement))
            return original(*args, **kwargs)

    with _around_random_functions(constant):
        yield


@contextlib.contextmanager
def _around_random_functions(replacement: Callable[..., Any]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name in _FUNCTIONS:
            change = patched(backend.random, name, replacement, on_top=True)
            stack.enter_context(change)
        yield


# As operations are called, by names of arguments.
def _constant(value: float) -> Callable[..., Any]:
    def draw(original: Any, shape: Any, dtype: Any = tf.float32, **_: Any) -> tf.Tensor:
        return tf.fill(shape, tf.cast(value, dtype))

    return draw


def _least(original: Any, shape: Any, *, minval: Any, **_: Any) -> tf.Tensor:
    return tf.fill(shape, minval)


_EAGER_DRAWS: dict[str, Callable[..., Any]] = {
    "stateless_random_uniform_v2": _constant(_UNIFORM),
    "stateless_random_normal_v2": _constant(0.0),
    "stateless_truncated_normal_v2": _constant(0.0),
    "stateless_random_uniform_int_v2": _least,
}


def is_draw(kind: str) -> bool:
    """Whether operations of a type draw random numbers from a seed."""
    return kind.startswith("Stateless") and not kind.startswith(_NO_DRAWS)


def can_draw_constants(concrete: Any, noted: list[tf.Operation]) -> bool:
    """Whether all that a traced function draws can be replaced.

    Args:
      concrete: a concrete function.
      noted: what `noted_draws` collected in its graph.
    """
    nodes = {node.name: node.op for node in concrete.function_def.node_def}
    others = (
        node.op
        for inner in concrete.graph.as_graph_def().library.function
        for node in inner.node_def
    )
    return (
        all(op.type in _DRAWS and nodes.get(op.name) == op.type for op in noted)
        # What loops draw is as a rule drawn by Keras' functions, but has no name here.
        and not any(is_draw(kind) for kind in others)
    )


class FixedCopy:
    """A copy of a traced function, to call eagerly a few times.

    It is not optimized before: that would take longer than to run it. Its loops and
    branches are run as functions, and not made a part of the graph, for the same reason.

    Args:
      concrete: a concrete function.
      name: of the copy, which no other function of the process has.
      drawn: names of its operations that draw constants in the copy.
    """

    def __init__(self, concrete: Any, name: str, drawn: tuple[str, ...]) -> None:
        self._concrete, self._name = concrete, name
        definition = function_pb2.FunctionDef()
        definition.CopyFrom(concrete.function_def)
        definition.signature.name = name
        _replace_draws(definition, drawn)
        # A loop that is a function runs on one device, which need not have all of it.
        if device_kind() == "CPU":
            for node in definition.node_def:
                node.attr.pop(_LOWERED, None)
        # On a GPU, strings stay on the host, as in any other function.
        options = config_pb2.ConfigProto(allow_soft_placement=True)
        options.graph_options.rewrite_options.disable_meta_optimizer = True
        self._options = options.SerializeToString()
        self._here = context.context()
        self._here.ensure_initialized()
        self._here.add_function_def(definition)

    def __del__(self) -> None:
        self._here.remove_function(self._name)

    def __call__(self, *arguments: Any) -> Any:
        concrete = self._concrete
        inputs = [*tf.nest.flatten(arguments), *concrete.captured_inputs]
        results = tuple(output.dtype for output in concrete.graph.outputs)
        flat = execute.execute(
            b"StatefulPartitionedCall",
            len(results),
            inputs=inputs,
            attrs=(
                *("Tin", tuple(i.dtype.as_datatype_enum for i in inputs)),
                *("Tout", tuple(dtype.as_datatype_enum for dtype in results)),
                *("f", self._name, "config", b"", "executor_type", b""),
                *("config_proto", self._options),
            ),
            ctx=self._here,
        )
        return concrete.function_type.pack_output(list(flat))


def _replace_draws(definition: Any, drawn: tuple[str, ...]) -> None:
    """Replaces operations of a function by `Fill`, whose output has the same name."""
    names = set(drawn)
    for node in list(definition.node_def):
        if node.name not in names:
            continue
        value = _DRAWS[node.op]
        controls = [source for source in node.input if source.startswith("^")]
        shape = node.input[0]
        kind = node.attr["dtype" if "dtype" in node.attr else "Tout"].type
        index_type = node.attr["Tshape"].type
        if value is None:
            source = node.input[_MINIMUM]
        else:
            constant = definition.node_def.add(name=f"{node.name}/constant", op="Const")
            dtype = tf.dtypes.as_dtype(kind)
            tensor = tf.make_tensor_proto(value, dtype.base_dtype)
            constant.attr["dtype"].type = kind
            constant.attr["value"].tensor.CopyFrom(tensor)
            source = f"{constant.name}:output:0"
        node.op = "Fill"
        del node.input[:]
        node.input.extend([shape, source, *controls])
        node.attr.clear()
        node.attr["T"].type = kind
        node.attr["index_type"].type = index_type
