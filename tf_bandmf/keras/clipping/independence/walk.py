"""Runs a model on symbolic tensors, and tracks where the examples of a batch are.

Custom layers, functions and operations are opened: they are run down to the Keras
operations that they call, which a table describes. Layers that cannot be opened are
noted, to be executed on each example alone.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_bandmf.keras.clipping.independence import operations as table
from tf_bandmf.keras.clipping.independence.layers import knows
from tf_bandmf.keras.clipping.independence.operations import is_array, tensors_of
from tf_bandmf.keras.clipping.independence.places import (
    ROWS,
    CallShape,
    CannotOpen,
    Mixes,
    Place,
    arranged,
    constant_place,
    same,
)
from tf_bandmf.keras.compat import keras_operations
from tf_bandmf.keras.compat.graphs import FuncGraph, context
from tf_bandmf.keras.compat.keras_objects import MASK, all_layers, takes_training
from tf_bandmf.keras.compat.keras_operations import KerasTensor, names_in
from tf_bandmf.keras.compat.patching import patched

_DRAWS = "normal uniform truncated_normal randint gamma binomial beta dropout".split()
# Code with one of these names may treat symbolic tensors unlike other tensors.
_ASKS = frozenset({"KerasTensor", "is_keras_tensor", "any_symbolic_tensors"})
# The length that walks use for axes of unknown length.
_LENGTH = 16


class Walk:
    """One run of a model on symbolic tensors.

    Args:
      size: the batch size, a number that occurs nowhere else in the model.
      alone: layers that run on each example alone.
      units: the tapped layers, whose calls are noted.
      like: None; or the log of a walk with another batch size, which must be equal to
        the log of this walk.
    """

    def __init__(
        self,
        size: int,
        alone: Sequence[Any],
        units: Sequence[Any] = (),
        like: Sequence[Any] | None = None,
    ) -> None:
        self.size, self.like = size, like
        self.units = {id(unit.layer): unit for unit in units}
        # Calls of units, in the order in which they begin.
        self.calls: list[CallShape] = []
        self._is_within_unit = False
        # Results of units that are shared by all examples: the tensor, the tensor
        # repeated for each example, and the layer.
        self._shared: dict[int, tuple[Any, Any, Any]] = {}
        self._overridden: set[int] = set()
        self.alone = list(alone)
        # The log of calls; its numbers must not depend on the batch size.
        self.log: list[Any] = []
        self._places: dict[int, tuple[Any, Place | None]] = {}

    def tensor(self, shape: Sequence[int | None], dtype: Any) -> Any:
        """Returns a symbolic tensor of examples, with shape [B, ...]."""
        sizes = [_LENGTH if n is None else n for n in shape[1:]]
        return self.put(KerasTensor((None, *sizes), dtype), ROWS)

    def put(self, tensor: Any, place: Place | None) -> Any:
        """Notes the place of examples in a symbolic tensor, and returns the tensor."""
        self._places[id(tensor)] = (tensor, place)
        return tensor

    def place(self, tensor: Any) -> Place | None:
        """Returns the place of examples in a tensor; None if all examples share it."""
        if id(tensor) in self._shared:
            raise _not_told_apart(self._shared[id(tensor)][2])
        is_constant = is_array(tensor) and not isinstance(tensor, keras.Variable)
        if is_constant and id(tensor) not in self._places:
            place, row = constant_place(tensor, self.size) or (None, tensor)
            self.put(tensor, place)
            self._note("constant", np.asarray(row).tobytes())
        return self._places.get(id(tensor), (None, None))[1]

    def shape(self, tensor: Any) -> tuple[int, ...]:
        """Returns the shape of a tensor, with the batch size of this walk."""
        size = self.size * (self.place(tensor) or ROWS).inner
        return tuple(size if n is None else n for n in tensor.shape)

    def run(self, model: Any, x: Any, training: bool = True) -> Any:
        """Calls a model on symbolic tensors, as in a step or an evaluation."""
        self._overridden = {id(one) for one in all_layers(model) if "call" in vars(one)}
        with self._hooks(), keras.StatelessScope():
            return model(x, training=training) if takes_training(model) else model(x)

    @contextlib.contextmanager
    def _hooks(self) -> Iterator[None]:
        """Redirects Keras operations on symbolic tensors to this walk."""
        backend, recurrent = keras_operations.backend, keras_operations.RECURRENT
        none = keras_operations.operation, keras_operations.layer
        hooks: list[tuple[Any, str, Callable[..., Any]]] = [
            (keras.Operation, "symbolic_call", self._operation),
            (keras.Layer, "symbolic_call", self._layer),
            *((module, "Node", lambda *_, **__: None) for module in none),
            (keras.Variable, "assign", self._assign),
            *((backend.random, name, self._draw) for name in _DRAWS),
            (recurrent, "rnn", self._rnn),
            *((recurrent, name, _not_here) for name in ("lstm", "gru")),
            *((module, name, _unseen) for module, name in keras_operations.BRANCHES),
            *(
                (module, "shape", self._sizes)
                for module in (keras.ops, keras_operations.ops)
            ),
            *(
                (module, name, functools.partial(_as_operation, function))
                for module, name, function in keras_operations.of_the_backend()
            ),
            *(
                (unit.layer, "call", functools.partial(self._call, unit))
                for unit in self.units.values()
            ),
        ]
        with contextlib.ExitStack() as stack, context.eager_mode():
            for owner, name, hook in hooks:
                stack.enter_context(patched(owner, name, hook))
            yield

    def _sizes(self, original: Any, x: Any) -> Any:
        """Returns `ops.shape(x)` including the batch size, which `x.shape` lacks."""
        return self.shape(x) if isinstance(x, KerasTensor) else original(x)

    def _note(self, *entry: Any) -> None:
        """Logs numbers that must not change with the batch size.

        Raises:
          Mixes: if the log differs from the log for another batch size.
        """
        place = len(self.log)
        self.log.append(entry)
        if self.like is not None and list(self.like[place : place + 1]) != [entry]:
            # Do not compare the calls that follow: the layer that is open now will run
            # on single examples, and the model will be walked again.
            self.like = None
            raise Mixes("computes with the number of examples in the batch")

    # Operations.

    def _operation(self, original: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        kind, rule = type(op), table.OPERATIONS.get(type(op))
        tensors = tensors_of((args, kwargs))
        shared = [self._shared[id(t)] for t in tensors if id(t) in self._shared]
        if shared:
            others = [t for t in tensors if id(t) not in self._shared]
            is_one = not others and len({tuple(t.shape) for t in tensors}) == 1
            is_combined = any(map(self.place, others))
            if rule is not table.ENTRY_BY_ENTRY or not (is_one or is_combined):
                raise _not_told_apart(shared[0][2])
            if is_one:
                outputs = op.compute_output_spec(*args, **kwargs)
                return self._share(outputs, shared[0][2])
            args, kwargs = keras.tree.map_structure(
                lambda t: self._shared[id(t)][1] if id(t) in self._shared else t,
                (args, kwargs),
            )
        arrangement = table.ARRANGED.get(kind)
        if rule is None and arrangement is None:
            if kind.__module__.startswith("keras."):
                raise CannotOpen(f"operation {kind.__name__}")
            return op.call(*args, **kwargs)
        call = table.Call(self, op, args, kwargs)
        of_examples = [t for t in call.tensors if self.place(t) is not None]
        try:
            if arrangement is not None:
                outputs = self._arranged(*arrangement(call))
            else:
                outputs = op.compute_output_spec(*args, **kwargs)
                call.outputs = [t for t in keras.tree.flatten(outputs) if t is not None]
                places = rule(call) if rule and of_examples else None
                if not isinstance(places, list):
                    places = [places] * len(call.outputs)
                for tensor, place in zip(call.outputs, places, strict=True):
                    self.put(tensor, place or self._by_size(tensor))
        except Mixes as error:
            shapes = ", ".join(str(list(self.shape(t))) for t in of_examples)
            reason = f"operation {kind.__name__} on {shapes} {error}"
            raise Mixes(reason, error.advice) from error
        given = keras.tree.flatten(list(call.inputs.values()))
        numbers = [repr(one) for one in given if isinstance(one, (int, float, slice))]
        self._note(kind.__name__, numbers, _settings(op))
        for tensor in keras.tree.flatten(outputs):
            if tensor is not None:
                place = self.place(tensor) or Place(-1)
                sizes = [n for a, n in enumerate(tensor.shape) if a != place.axis]
                self._note("sizes", sizes)
        return outputs

    def _arranged(self, x: Any, arrange: Callable[[Any], Any]) -> Any:
        """Returns the result of indexing or a reshape, and notes the example place."""
        place, shape = self.place(x), self.shape(x)
        if place is None:
            sizes = arrange(np.broadcast_to(np.int8(0), shape)).shape
        else:
            place, sizes = arranged(place, shape, self.size, arrange)
            if None in x.shape:
                sizes = (*sizes[: place.axis], None, *sizes[place.axis + 1 :])
        made = KerasTensor(sizes, keras.backend.standardize_dtype(x.dtype))
        return self.put(made, place or self._by_size(made))

    def _by_size(self, tensor: Any) -> Place | None:
        """Returns the axis along which shared values are repeated for each example."""
        for axis, n in enumerate(tensor.shape):
            if n and n % self.size == 0:
                return Place(axis, n // self.size)
        return None

    # Layers.

    def _layer(self, original: Any, layer: Any, *args: Any, **kwargs: Any) -> Any:
        closed = list(self.alone)
        if any(layer is other for other in closed):
            if self._is_within_unit:
                raise CannotOpen(f"layer {layer.name!r} cannot run alone in a unit")
            return self._rows_of(layer, args, kwargs)
        shapes = [self.shape(t) for t in tensors_of((args, kwargs))]
        if id(layer) not in self._overridden and knows(layer, shapes):
            return self._rows_of(layer, args, kwargs)
        try:
            if _asks_for_symbols(type(layer)):
                raise CannotOpen("it treats symbolic tensors differently")
            outputs = layer.call(*args, **kwargs)
            self._note("end")
            return outputs
        except Exception as error:
            mixes = isinstance(error, Mixes)
            if isinstance(error, Mixes) and error.layer is None:
                error.layer = layer
            # Layers inside a unit are part of this unit.
            if self._is_within_unit or (isinstance(layer, keras.Model) and mixes):
                raise
            self.alone = [*closed, layer]
            return self._rows_of(layer, args, kwargs)

    def _rows_of(self, layer: Any, args: Any, kwargs: Any) -> Any:
        """Returns the results of a known layer, where each example has its own row."""
        self._note(layer.name)
        tensors = tensors_of((args, kwargs))
        places = [p for t in tensors if (p := self.place(t)) is not None]
        if any(place != ROWS for place in places):
            raise CannotOpen(
                f"layer {layer.name!r} is called on rows that are not examples"
            )
        unit, was_within = self.units.get(id(layer)), self._is_within_unit
        if unit is not None and not was_within:
            self._noted(unit, args, kwargs)
        self._is_within_unit = True
        try:
            outputs = self._specs(layer, args, kwargs)
        finally:
            self._is_within_unit = was_within

        def placed(spec: Any) -> Any:
            if spec is None:
                return None
            if places and (not spec.shape or spec.shape[0] not in (None, self.size)):
                raise CannotOpen(
                    f"layer {layer.name!r} does not return a row for each example"
                )
            shape = (None, *spec.shape[1:]) if places else spec.shape
            tensor = self.put(KerasTensor(shape, spec.dtype), ROWS if places else None)
            if getattr(spec, MASK, None) is not None:
                setattr(tensor, MASK, placed(getattr(spec, MASK)))
            return tensor

        return keras.tree.map_structure(placed, outputs)

    def _specs(self, layer: Any, args: Any, kwargs: Any) -> Any:
        """Traces a call in TensorFlow to get the shapes and dtypes of its results."""
        with FuncGraph("shapes").as_default(), keras.StatelessScope():

            def given(leaf: Any) -> Any:
                if not isinstance(leaf, KerasTensor):
                    return leaf
                made = tf.compat.v1.placeholder(leaf.dtype, self.shape(leaf))
                if getattr(leaf, MASK, None) is not None:
                    setattr(made, MASK, given(getattr(leaf, MASK)))
                return made

            args, kwargs = keras.tree.map_structure(given, (args, kwargs))
            return layer.call(*args, **kwargs)

    # Calls that are tapped.

    def _call(self, unit: Any, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Notes the arguments of a unit, and whether its result has example rows."""
        if self._is_within_unit:
            return original(*args, **kwargs)
        call = self._noted(unit, args, kwargs)
        self._is_within_unit = not unit.rule.opens
        try:
            outputs = original(*args, **kwargs)
        finally:
            self._is_within_unit = False
        results = tensors_of(outputs)
        if any(call.batched):
            for tensor in results:
                kind = keras.backend.standardize_dtype(tensor.dtype)
                if "float" in kind and self.place(tensor) != ROWS:
                    raise _not_told_apart(unit.layer)
            return outputs
        if len(results) != 1 or outputs is not results[0]:
            raise _not_told_apart(unit.layer)
        return self._share(outputs, unit.layer)

    def _noted(self, unit: Any, args: Any, kwargs: Any) -> CallShape:
        leaves = keras.tree.flatten((args, kwargs))
        places = [self.place(leaf) for leaf in leaves]
        if any(place not in (None, ROWS) for place in places):
            raise Mixes(
                "is called on a tensor that depends on the data but has no batch "
                "dimension first",
                "Each example must stay in its own row: keep the batch as the first "
                "dimension, and in a reshape name it with `ops.shape(x)[0]` instead of -1.",
            )
        call = CallShape(unit.layer, tuple(place == ROWS for place in places))
        is_allowed = unit.rule.spreads
        if any(call.batched):
            first = self.place(tensors_of(leaves)[0])
            is_allowed = first == ROWS or unit.rule.runs_again
        if not is_allowed:
            raise _not_told_apart(unit.layer)
        self.calls.append(call)
        return call

    def _share(self, outputs: Any, layer: Any) -> Any:
        """Notes a result that is shared by all examples.

        The step repeats the result for each example, so that each example has its own
        gradient. This changes no value if the result is only combined elementwise with
        rows of examples.
        """
        shape, dtype = outputs.shape, keras.backend.standardize_dtype(outputs.dtype)
        rest = shape[1:] if tuple(shape[:1]) == (1,) else shape
        repeated = self.put(KerasTensor((None, *rest), dtype), ROWS)
        tensor = KerasTensor(tuple(shape), dtype)
        self._shared[id(tensor)] = (tensor, repeated, layer)
        return tensor

    # State and random numbers.

    def _assign(self, original: Any, variable: Any, value: Any) -> Any:
        if not isinstance(value, KerasTensor):
            return original(variable, value)
        if self.place(value) is not None:
            raise Mixes("keeps a value computed from the data for the next step")
        return value

    def _draw(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Notes a random draw, which must be new for each example at each step."""
        given = _bound(original, args, kwargs)
        x = given.pop("inputs", None)
        if not tf.executing_eagerly() or is_array(x):
            return original(*args, **kwargs)
        if any(self.place(value) is not None for value in given.values()):
            raise CannotOpen("random numbers whose parameters depend on the example")
        if x is None:
            kind = keras.backend.standardize_dtype(
                given["dtype"] or keras.config.floatx()
            )
            drawn = KerasTensor(tuple(int(n) for n in given["shape"]), kind)
            place = self._by_size(drawn)
        else:
            drawn, place = KerasTensor(x.shape, x.dtype), self.place(x)
        if place is not None and isinstance(given["seed"], int):
            raise Mixes(
                "draws random numbers by place in the batch, the same in every step"
            )
        if place is not None and tf.is_tensor(given["seed"]):
            raise CannotOpen("random numbers whose seed is a tensor")
        return self.put(drawn, place)

    # Time.

    def _rnn(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        given = _bound(original, args, kwargs)
        inputs, mask = given["inputs"], given["mask"]
        leaves = keras.tree.flatten(inputs)
        if not any(isinstance(leaf, KerasTensor) for leaf in leaves):
            return original(*args, **kwargs)
        time = 0 if given["time_major"] else 1
        masks = [] if mask is None else [mask]
        places = [p for t in [*leaves, *masks] if (p := self.place(t)) is not None]
        if same(places).axis != 1 - time:
            raise Mixes("loops from one example to the next")
        first = keras.tree.map_structure(
            lambda t: t[0] if time == 0 else t[:, 0], inputs
        )
        constants = given["constants"] or []

        before = list(given["initial_states"])
        output, states = given["step_function"](first, [*before, *constants])
        pairs = zip(keras.tree.flatten(before), keras.tree.flatten(states), strict=True)
        if any(self.place(one) != self.place(other) for one, other in pairs):
            raise CannotOpen("a loop whose state changes places")
        count = leaves[0].shape[time] if given["return_all_outputs"] else 1
        outputs = keras.ops.repeat(keras.ops.expand_dims(output, time), count, time)
        return output, outputs, states


_SETTINGS = (int, float, str, tuple, list, type(None))
# Attributes that contain sizes are not logged. The log has the sizes of results
# instead, except along the axis of examples.
_SIZES = frozenset({"newshape", "shape", "name", "repeats", "indices_or_sections"})


def _not_told_apart(layer: Any) -> Mixes:
    return Mixes(
        f"layer {layer.name!r} ({type(layer).__name__}) is called on, or returns, tensors "
        f"without a batch dimension, so the gradients of single examples cannot be told "
        f"apart",
        "Repeat its input for every example before the call, as with "
        "`ops.broadcast_to(positions, (ops.shape(x)[0], length))`.",
    )


def _settings(op: Any) -> str:
    """Returns the configuration of an operation, without sizes."""
    return repr(
        [
            (name, value)
            for name, value in vars(op).items()
            if not name.startswith("_")
            and name not in _SIZES
            and isinstance(value, _SETTINGS)
        ]
    )


def _bound(function: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, Any]:
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def _as_operation(operation: Any, original: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls an operation instead of a backend function if an argument is symbolic."""
    leaves = keras.tree.flatten((args, kwargs))
    is_symbolic = any(isinstance(leaf, KerasTensor) for leaf in leaves)
    return (operation if is_symbolic else original)(*args, **kwargs)


def _unseen(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Refuses eager code in which the current value of a weight selects a branch."""
    if tf.executing_eagerly():
        raise CannotOpen("a branch or a loop on a tensor that is not symbolic")
    return original(*args, **kwargs)


def _raises(*args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError


# On this error, a recurrent layer falls back to its general loop.
_not_here = functools.partial(_as_operation, _raises)


def _asks_for_symbols(kind: type) -> bool:
    """Returns whether a custom layer may treat symbolic tensors unlike others."""
    for base in kind.__mro__:
        if base.__module__.startswith(("keras.", "keras_hub.")):
            break
        for value in vars(base).values():
            code = getattr(value, "__code__", None)
            if names_in(code) & _ASKS:
                return True
    return False
