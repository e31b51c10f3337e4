"""One traced pass for two: the check of its numbers, and the step that it is part of.

Tracing a model's pass is most of what a private run takes before its first step. So the
pass that `self_check` compares with gradients taken one by one is kept, and the step runs
it. What the check cannot have is random masks: it runs a copy of the traced function, in
which what Keras' random functions draw is replaced by constants, and draws the same in the
gradients that it compares with. All else is node for node what the step runs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from keras.src import backend
from tensorflow.core.framework import function_pb2
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.eager import context, execute
from tensorflow.python.ops import gen_stateless_random_ops_v2 as draws

from tf_bandmf.keras.clipping.tensors import batches

_STATE = threading.local()
# Attribute of a model: its checked pass that no step has taken yet.
_READY = "_checked_pass"
# Below 1 in bfloat16, and above the rate of any dropout: everything is kept.
_UNIFORM = 0.99
# What is drawn instead; None for the least integer of the range.
_DRAWS: dict[str, float | None] = {
    "StatelessRandomUniformV2": _UNIFORM,
    "StatelessRandomNormalV2": 0.0,
    "StatelessTruncatedNormalV2": 0.0,
    "StatelessRandomUniformIntV2": None,
}
# Attributes that Keras' training itself changes.
_OF_TRAINING = {
    "history",
    "predict_function",
    "stop_training",
    "test_function",
    "train_function",
}
# Control flow, and what makes seeds of seeds.
_NO_DRAWS = ("StatelessRandomGet", "StatelessIf", "StatelessWhile", "StatelessCase")
_MINIMUM = 4
_FUNCTIONS = (
    "beta",
    "binomial",
    "categorical",
    "dropout",
    "gamma",
    "normal",
    "randint",
    "shuffle",
    "truncated_normal",
    "uniform",
)


@dataclasses.dataclass(frozen=True)
class CheckedPass:
    """A traced pass.

    Attributes:
      concrete: maps tensors [B, ...], clip norms [G] float64 and [B] bool to
        `ClippedGradients`.
      key: what it was traced for, see `key_of`.
      drawn: names of the operations by which Keras draws random numbers.
      repeatable: whether constants can be drawn instead.
    """

    concrete: Any
    key: Any
    drawn: tuple[str, ...]
    repeatable: bool

    def run(self, constant_draws: bool) -> Callable[..., Any]:
        """The pass as a function to call eagerly a few times.

        It is not optimized before: that would take longer than to run it.

        Args:
          constant_draws: replaces what is drawn, see `constants_drawn`.

        Returns:
          A function with the arguments of `concrete`.
        """
        definition = function_pb2.FunctionDef()
        definition.CopyFrom(self.concrete.function_def)
        name = f"checked_pass_{uuid.uuid4().hex}"
        definition.signature.name = name
        if constant_draws:
            _replace_draws(definition, self.drawn)
        options = config_pb2.ConfigProto()
        options.graph_options.rewrite_options.disable_meta_optimizer = True
        here = context.context()
        here.ensure_initialized()
        here.add_function_def(definition)
        results = tuple(output.dtype for output in self.concrete.graph.outputs)

        def call(*arguments: Any) -> Any:
            inputs = [*tf.nest.flatten(arguments), *self.concrete.captured_inputs]
            flat = execute.execute(
                b"StatefulPartitionedCall",
                len(results),
                inputs=inputs,
                attrs=(
                    *("Tin", tuple(i.dtype.as_datatype_enum for i in inputs)),
                    *("Tout", tuple(dtype.as_datatype_enum for dtype in results)),
                    *("f", name, "config", b"", "executor_type", b""),
                    *("config_proto", options.SerializeToString()),
                ),
                ctx=here,
            )
            return self.concrete.function_type.pack_output(list(flat))

        weakref.finalize(call, here.remove_function, name)
        return call


def trace(function: Callable[..., Any], signature: Sequence[Any], key: Any) -> Any:
    """Traces a pass, and notes what it draws.

    Args:
      function: of the arguments of `CheckedPass.concrete`.
      signature: specs of its arguments.
      key: of `key_of`.
    """
    with _within_random_functions() as noted:
        traced = tf.function(function, autograph=False, input_signature=signature)
        concrete = traced.get_concrete_function()
    own = [op for op in noted if op.graph is concrete.graph]
    nodes = {node.name: node.op for node in concrete.function_def.node_def}
    others = (
        node.op
        for inner in concrete.graph.as_graph_def().library.function
        for node in inner.node_def
    )
    repeatable = (
        all(op.type in _DRAWS and nodes.get(op.name) == op.type for op in own)
        # What loops draw is as a rule drawn by Keras' functions, but has no name here.
        and not any(_is_draw(kind) for kind in others)
    )
    drawn = tuple(op.name for op in own)
    return CheckedPass(concrete, key, drawn, repeatable)


def _is_draw(kind: str) -> bool:
    return kind.startswith("Stateless") and not kind.startswith(_NO_DRAWS)


@contextlib.contextmanager
def _within_random_functions(
    replaced: bool = False,
) -> Iterator[list[tf.Operation]]:
    """Collects what Keras' random functions draw in graphs; or draws constants eagerly."""
    module: Any = backend.random
    noted: list[tf.Operation] = []
    originals = {name: getattr(module, name) for name in _FUNCTIONS}

    def noting(original: Callable[..., Any]) -> Callable[..., Any]:
        def function(*args: Any, **kwargs: Any) -> Any:
            if tf.executing_eagerly():
                with _constant_draws() if replaced else contextlib.nullcontext():
                    return original(*args, **kwargs)
            graph = tf.compat.v1.get_default_graph()
            start = len(graph.get_operations())
            result = original(*args, **kwargs)
            noted.extend(
                op for op in graph.get_operations()[start:] if _is_draw(op.type)
            )
            return result

        return function

    for name, original in originals.items():
        setattr(module, name, noting(original))
    try:
        yield noted
    finally:
        for name, original in originals.items():
            setattr(module, name, original)


@contextlib.contextmanager
def constants_drawn() -> Iterator[None]:
    """Draws, eagerly, what a copy of a pass with constant draws draws."""
    with _within_random_functions(replaced=True):
        yield


@contextlib.contextmanager
def _constant_draws() -> Iterator[None]:
    replacements: dict[str, Callable[..., Any]] = {
        "stateless_random_uniform_v2": _constant(_UNIFORM),
        "stateless_random_normal_v2": _constant(0.0),
        "stateless_truncated_normal_v2": _constant(0.0),
        "stateless_random_uniform_int_v2": (
            lambda shape, key, counter, alg, minval, maxval, name=None: tf.fill(
                shape, minval
            )
        ),
    }
    originals = {name: getattr(draws, name) for name in replacements}
    for name, replacement in replacements.items():
        setattr(draws, name, replacement)
    try:
        yield
    finally:
        for name, original in originals.items():
            setattr(draws, name, original)


def _constant(value: float) -> Callable[..., Any]:
    def draw(
        shape: Any,
        key: Any,
        counter: Any,
        alg: Any,
        dtype: Any = tf.float32,
        name: Any = None,
    ) -> tf.Tensor:
        del key, counter, alg, name
        return tf.fill(shape, tf.cast(value, dtype))

    return draw


def _replace_draws(definition: Any, drawn: Sequence[str]) -> None:
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


def key_of(model: Any, variables: Sequence[Any], data: Any, settings: Any) -> Any:
    """What a pass is traced for: a step with another key traces its own.

    Args:
      model: the model.
      variables: its trainable variables.
      data: structure of tensors [B, ...]; None stays None.
      settings: of the clipping, apart from clip norms.
    """
    leaves = batches.tensor_leaves(data)
    present = [part is not None for part in data]
    return (
        tuple(_Same(variable) for variable in variables),
        tuple(present),
        tuple((tuple(leaf.shape[1:]), leaf.dtype) for leaf in leaves),
        _Same(model._compile_loss),
        settings,
        tuple((_Same(layer), _settings(layer)) for layer in model._flatten_layers()),
    )


class _Same:
    """Equal to another one of the same object, which it keeps: no id is used twice."""

    __slots__ = ("_value",)

    def __init__(self, value: Any) -> None:
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value is other._value

    __hash__ = None  # type: ignore[assignment]


def _settings(layer: Any) -> tuple[Any, ...]:
    """A layer's public attributes: numbers such as a rate, functions, other objects."""
    return (
        layer.trainable,
        layer.dtype_policy.name,
        tuple(
            (name, _setting(value))
            for name, value in sorted(vars(layer).items())
            if not name.startswith("_") and name not in _OF_TRAINING
        ),
    )


def _setting(value: Any) -> Any:
    if isinstance(value, (bool, int, float, str, type(None))):
        return type(value), value
    if isinstance(value, (list, tuple)):
        return tuple(_setting(part) for part in value)
    if isinstance(value, dict):
        return tuple((key, _setting(part)) for key, part in value.items())
    return _Same(value)


def keep(model: Any, checked: CheckedPass) -> None:
    """Lets the next step with its key run it."""
    # Keras must not track it.
    object.__setattr__(model, _READY, checked)


def is_kept(model: Any) -> bool:
    """Whether a checked pass waits for a step."""
    return vars(model).get(_READY) is not None


def forget(model: Any) -> None:
    """Lets no later step run a checked pass that none has taken."""
    object.__setattr__(model, _READY, None)


def take(model: Any, key: Callable[[], Any]) -> Any | None:
    """The concrete function of the checked pass, once, if it is that of this key."""
    checking = getattr(_STATE, "checking", None)
    if checking is not None and checking[0] is model:
        return checking[1]
    checked = vars(model).get(_READY)
    if checked is None:
        return None
    forget(model)
    return checked.concrete if checked.key == key() else None


@contextlib.contextmanager
def checking(model: Any, run: Callable[..., Any]) -> Iterator[None]:
    """Runs a function wherever the model's pass would run, in this thread."""
    _STATE.checking = (model, run)
    try:
        yield
    finally:
        _STATE.checking = None
