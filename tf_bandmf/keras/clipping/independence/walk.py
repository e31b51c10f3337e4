"""Runs a model on symbolic tensors, and follows where the examples of a batch are.

Layers, functions and operations of the user's are opened: what they call in the end are
Keras' operations, which stand in a table. What cannot be opened is noted, to be executed
for each example by itself.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_bandmf.keras.clipping.independence import operations as table
from tf_bandmf.keras.clipping.independence.layers import knows
from tf_bandmf.keras.clipping.independence.operations import is_array
from tf_bandmf.keras.clipping.independence.places import (
    ROWS,
    CallShape,
    CannotOpen,
    Mixes,
    Place,
    Spread,
    constant_place,
    reshaped,
    same,
    viewed,
)
from tf_bandmf.keras.compat import keras_operations
from tf_bandmf.keras.compat.graphs import FuncGraph, context
from tf_bandmf.keras.compat.keras_objects import (
    EXTRAS,
    MASK,
    all_layers,
    takes_training,
)
from tf_bandmf.keras.compat.keras_operations import KerasTensor
from tf_bandmf.keras.compat.patching import patched

_DRAWS = "normal uniform truncated_normal randint gamma binomial beta".split()
_REDRAWS = "categorical dropout shuffle".split()
# Who asks for these goes another way for symbolic tensors than for others.
_ASKS = frozenset({"KerasTensor", "is_keras_tensor", "any_symbolic_tensors"})
# For axes whose length differs between batches.
_LENGTH = 16


class Walk:
    """One run of a model on symbolic tensors.

    Args:
      size: the batch size, which occurs nowhere else.
      alone: layers that run for each example by itself.
      units: the layers that are tapped: their calls are noted.
    """

    def __init__(
        self, size: int, alone: Sequence[Any], units: Sequence[Any] = ()
    ) -> None:
        self.size = size
        self.units = {id(unit.layer): unit for unit in units}
        # Calls of units, in the order in which they begin.
        self.calls: list[CallShape] = []
        self._is_within_unit = False
        # What units returned for all examples alike, with the call and a plain copy.
        self._shared: dict[int, tuple[Any, CallShape, Any]] = {}
        self._overridden: set[int] = set()
        self.alone = list(alone)
        # What was called, with numbers that must not depend on the batch size.
        self.log: list[Any] = []
        self._places: dict[int, tuple[Any, Place | None]] = {}
        self._constants: dict[int, tuple[Any, Place | None]] = {}
        self._inside: list[Any] = []
        # Whether the model does not take symbolic tensors.
        self.failed = False

    def tensor(
        self, shape: Sequence[int | None], dtype: Any, place: Place = ROWS
    ) -> Any:
        """A symbolic tensor of examples, of a shape [B, ...]."""
        sizes: list[int | None] = [_LENGTH if n is None else n for n in shape]
        sizes[place.axis] = None
        return self.put(KerasTensor(tuple(sizes), dtype), place)

    def put(self, tensor: Any, place: Place | None) -> Any:
        """Notes where the examples are in a symbolic tensor."""
        self._places[id(tensor)] = (tensor, place)
        return tensor

    def place(self, tensor: Any) -> Place | None:
        """Where the examples are in a tensor; None if it is the same for all."""
        if isinstance(tensor, KerasTensor):
            if id(tensor) in self._shared:
                raise _not_told_apart(self._shared[id(tensor)][1].layer)
            _, place = self._places.get(id(tensor), (None, None))
            return place
        if not is_array(tensor) or isinstance(tensor, keras.Variable):
            return None
        if id(tensor) not in self._constants:
            found = constant_place(tensor, self.size)
            self._constants[id(tensor)] = (tensor, found[0] if found else None)
            row = np.asarray(tensor if found is None else found[1])
            self._note("constant", row.tobytes())
        return self._constants[id(tensor)][1]

    def shape(self, tensor: Any) -> tuple[int, ...]:
        """The shape of a tensor, with the batch size of this run."""
        shape = tuple(getattr(tensor, "shape", None) or np.shape(tensor))
        if None not in shape:
            return shape
        place = self.place(tensor) or ROWS
        size = place.outer * self.size * place.inner
        return tuple(size if n is None else n for n in shape)

    def run(self, model: Any, x: Any, training: bool = True) -> Any:
        """Calls a model as a step or an evaluation does, on symbolic tensors."""
        self._overridden = {id(one) for one in all_layers(model) if "call" in vars(one)}
        with self._hooks(), keras.StatelessScope():
            return model(x, training=training) if takes_training(model) else model(x)

    @contextlib.contextmanager
    def _hooks(self) -> Iterator[None]:
        """Sends what Keras does with symbolic tensors through this walk."""
        backend = keras_operations.backend
        none = keras_operations.operations, keras_operations.layer
        hooks: list[tuple[Any, str, Callable[..., Any]]] = [
            (keras.Operation, "symbolic_call", self._operation),
            (keras.Layer, "symbolic_call", self._layer),
            *((module, "Node", lambda *_, **__: None) for module in none),
            (keras.Variable, "assign", self._assign),
            *((backend.random, name, self._draw) for name in _DRAWS),
            *((backend.random, name, self._redraw) for name in _REDRAWS),
            (backend, "rnn", self._rnn),
            *((backend, name, _not_here) for name in ("lstm", "gru")),
            *(
                (module, "shape", self._sizes)
                for module in (keras.ops, keras_operations.ops)
            ),
        ]
        hooks += [
            (module, name, functools.partial(_as_operation, function))
            for module, name, function in keras_operations.of_the_backend()
        ]
        hooks += [
            (unit.layer, "call", functools.partial(self._call, unit))
            for unit in self.units.values()
        ]
        with contextlib.ExitStack() as stack, context.eager_mode():
            for owner, name, hook in hooks:
                stack.enter_context(patched(owner, name, hook))
            yield

    def _sizes(self, original: Any, x: Any) -> Any:
        """What `ops.shape` returns, which knows the batch size where `x.shape` does not."""
        return self.shape(x) if isinstance(x, KerasTensor) else original(x)

    # Operations.

    def _operation(self, original: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        kind = type(op)
        if any(id(leaf) in self._shared for leaf in keras.tree.flatten((args, kwargs))):
            return self._spread(original, op, args, kwargs)
        special = _SPECIAL.get(kind)
        if special is not None:
            return special(self, op, *args, **kwargs)
        rule = table.OPERATIONS.get(kind)
        if rule is None:
            if not kind.__module__.startswith("keras."):
                return op.call(*args, **kwargs)
            if any(map(self.place, keras.tree.flatten((args, kwargs)))):
                raise CannotOpen(f"operation {kind.__name__}")
        call = table.Call(self, op, args, kwargs)
        for value in keras.tree.flatten((args, kwargs)):
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                self._note("number", value)
        self._note(*_described(op))
        spec = _SPECS.get(kind)
        if spec is not None:
            outputs = spec(call)
        else:
            outputs = op.compute_output_spec(*args, **kwargs)
        call.outputs = [t for t in keras.tree.flatten(outputs) if t is not None]
        places: Any = None
        batched = [
            tensor for tensor in call.tensors() if self.place(tensor) is not None
        ]
        if batched and rule is not None:
            for tensor in call.outputs:  # for shapes without a static batch size
                self.put(tensor, None)
            try:
                places = rule(call)
            except Mixes as error:
                if not error.args[0].startswith("operation"):
                    shapes = ", ".join(str(list(self.shape(t))) for t in batched)
                    error.reason = (
                        f"operation {kind.__name__} on {shapes} {error.reason}"
                    )
                    error.args = (error.reason,)
                raise
        if not isinstance(places, list):
            places = [places] * len(call.outputs)
        for tensor, place in zip(call.outputs, places, strict=True):
            if place is None:
                place = self._by_size(tensor)
            if place is not None and tensor.shape[place.axis : place.axis + 1] not in (
                (None,),
                (place.outer * self.size * place.inner,),
            ):
                raise CannotOpen(f"operation {kind.__name__}: of another shape")
            self.put(tensor, place)
        return outputs

    def _by_size(self, tensor: Any) -> Place | None:
        """What is the same for all, repeated for each example."""
        for axis, n in enumerate(tensor.shape):
            if n and n % self.size == 0:
                return Place(axis, 1, n // self.size)
        return None

    # Layers.

    def _layer(self, original: Any, layer: Any, *args: Any, **kwargs: Any) -> Any:
        was_within = self._is_within_unit
        if any(layer is other for other in self.alone):
            if was_within:
                raise CannotOpen(f"layer {layer.name!r} cannot run alone in a unit")
            return self._rows_of(layer, args, kwargs, "alone")
        shapes = [self.shape(t) for t in _tensors((args, kwargs))]
        if id(layer) not in self._overridden and knows(layer, shapes):
            return self._rows_of(layer, args, kwargs, "known")
        noted, called, known = len(self.log), len(self.calls), list(self.alone)
        is_model = isinstance(layer, keras.Model)
        self._inside.append(layer)
        try:
            if _asks_for_symbols(type(layer)):
                raise CannotOpen("it treats symbolic tensors differently")
            return layer.call(*args, **kwargs)
        except Exception as error:
            mixes = isinstance(error, Mixes)
            if isinstance(error, Mixes) and error.layer is None:
                error.layer = layer
            # What is within a unit runs with it.
            if was_within or (is_model and mixes):
                raise
            del self.log[noted:], self.calls[called:]
            self._is_within_unit = was_within
            self.alone = [*known, layer]
            try:
                return self._rows_of(layer, args, kwargs, "alone")
            except Exception:
                self.alone = known
                raise
        finally:
            self._inside.pop()

    def _note(self, *entry: Any) -> None:
        """Notes what must be the same for another batch size, and the layer around."""
        layers = [one for one in self._inside if not isinstance(one, keras.Model)]
        self.log.append((layers[-1] if layers else None, *entry))

    def _rows_of(self, layer: Any, args: Any, kwargs: Any, how: str) -> Any:
        """What a layer returns whose rows are known to be those of the examples."""
        self._note(how, layer.name)
        places = [
            p for t in _tensors((args, kwargs)) if (p := self.place(t)) is not None
        ]
        if any(place != ROWS for place in places):
            raise CannotOpen(
                f"layer {layer.name!r} is called on rows that are no examples"
            )
        unit = self.units.get(id(layer)) if how == "known" else None
        was_within, self._is_within_unit = self._is_within_unit, True
        if not was_within and (unit is not None or how == "alone"):
            self._noted(unit, layer, args, kwargs)
        try:
            outputs = self._specs(layer, args, kwargs)
        finally:
            self._is_within_unit = was_within

        def placed(spec: Any) -> Any:
            if spec is None:
                return None
            if places and (not spec.shape or spec.shape[0] not in (None, self.size)):
                raise CannotOpen(
                    f"layer {layer.name!r} returns no row for each example"
                )
            if not places:
                return self.put(KerasTensor(spec.shape, spec.dtype), None)
            return self.put(KerasTensor((None, *spec.shape[1:]), spec.dtype), ROWS)

        def with_extras(spec: Any) -> Any:
            tensor = placed(spec)
            for name in EXTRAS:
                if getattr(spec, name, None) is not None:
                    setattr(tensor, name, placed(getattr(spec, name)))
            return tensor

        return keras.tree.map_structure(with_extras, outputs)

    def _specs(self, layer: Any, args: Any, kwargs: Any) -> Any:
        """Traces a call in TensorFlow, for shapes and dtypes."""
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
        """A call of a unit: on what, and whether its result has rows of examples."""
        if self._is_within_unit:
            return original(*args, **kwargs)
        layer = unit.layer
        call = self._noted(unit, layer, args, kwargs)
        self._is_within_unit = not unit.rule.opens
        try:
            outputs = original(*args, **kwargs)
        finally:
            self._is_within_unit = False
        results = _tensors(outputs)
        if any(call.batched):
            for tensor in results:
                kind = keras.backend.standardize_dtype(tensor.dtype)
                if "float" in kind and self.place(tensor) != ROWS:
                    raise _not_told_apart(layer)
            return outputs
        if len(results) != 1 or outputs is not results[0]:
            raise _not_told_apart(layer)
        return self._share(outputs, call)

    def _noted(self, unit: Any, layer: Any, args: Any, kwargs: Any) -> CallShape:
        leaves = keras.tree.flatten((args, kwargs))
        is_tensor = [isinstance(t, KerasTensor) or tf.is_tensor(t) for t in leaves]
        places = [
            self.place(t) if known else None
            for t, known in zip(leaves, is_tensor, strict=True)
        ]
        if any(place not in (None, ROWS) for place in places):
            raise Mixes(
                "is called on a tensor that depends on the data but has no batch "
                "dimension first",
                "Each example must stay in its own row: keep the batch as the first "
                "dimension, and in a reshape name it with `ops.shape(x)[0]` instead of -1.",
            )
        call = CallShape(layer, tuple(place == ROWS for place in places))
        if unit is not None:
            is_allowed = unit.rule.spreads
            if any(call.batched):
                first = call.batched[is_tensor.index(True)]
                is_allowed = first or not unit.rule.batched_input_only
            if not is_allowed:
                raise _not_told_apart(layer)
        self.calls.append(call)
        return call

    def _share(self, tensor: Any, call: CallShape) -> Any:
        dtype = keras.backend.standardize_dtype(tensor.dtype)
        shared, plain = (KerasTensor(tuple(tensor.shape), dtype) for _ in range(2))
        self._shared[id(shared)] = (shared, call, plain)
        return shared

    def _spread(self, original: Any, op: Any, args: Any, kwargs: Any) -> Any:
        """An operation on what a unit returned for all examples alike.

        The step repeats that for every example, so that each has a gradient of its own.
        No value changes if it is only combined, entry by entry, with rows of examples.
        """
        call: Any = None
        others = []
        for leaf in _tensors((args, kwargs)):
            if id(leaf) in self._shared:
                tensor, call, _ = self._shared[id(leaf)]
            else:
                others.append(leaf)
        args, kwargs = keras.tree.map_structure(
            lambda t: self._shared[id(t)][2] if id(t) in self._shared else t,
            (args, kwargs),
        )
        if type(op) in _COPIES and not others:
            return self._share(self._operation(original, op, *args, **kwargs), call)
        is_one = tensor.shape[:1] == (1,)
        rank = len(tensor.shape) + (not is_one)
        are_rows = all(self.place(t) == ROWS and len(t.shape) == rank for t in others)
        if type(op) not in _ENTRY_BY_ENTRY or not others or not are_rows:
            raise _not_told_apart(call.layer)
        call.spread = Spread.REPEAT if is_one else Spread.NEW_AXIS
        return self._operation(original, op, *args, **kwargs)

    # State and random numbers.

    def _assign(self, original: Any, variable: Any, value: Any) -> Any:
        if isinstance(value, KerasTensor):
            if self.place(value) is not None:
                raise Mixes("keeps what it computes of the data for the next step")
            return value
        return original(variable, value)

    def _draw(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Random numbers: those of different examples must be others at each step."""
        if not tf.executing_eagerly():
            return original(*args, **kwargs)
        bound = inspect.signature(original).bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        if any(self.place(value) is not None for value in given.values()):
            raise CannotOpen("random numbers with parameters of each example's own")
        dtype = keras.backend.standardize_dtype(given["dtype"] or keras.config.floatx())
        shape = tuple(int(n) if n is not None else None for n in given["shape"])
        drawn = KerasTensor(shape, dtype)
        place = self._by_size(drawn)
        if place is None and None in shape[:1]:
            place = ROWS
        return self.put(drawn, self._fresh(place, given["seed"]))

    def _redraw(self, original: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        """A tensor whose entries are dropped, chosen or put in another order."""
        if not isinstance(x, KerasTensor):
            return original(x, *args, **kwargs)
        bound = inspect.signature(original).bind(x, *args, **kwargs)
        bound.apply_defaults()
        given, place, shape = bound.arguments, self.place(x), x.shape
        if "axis" in given:
            if place is not None and given["axis"] % len(shape) == place.axis:
                raise Mixes("shuffles the examples of a batch")
            return self.put(KerasTensor(shape, x.dtype), place)
        if "num_samples" in given:
            if place is not None and place.axis != 0:
                raise Mixes("draws along the axis of examples")
            shape = (shape[0], given["num_samples"])
        drawn = KerasTensor(shape, given.get("dtype", x.dtype))
        return self.put(drawn, self._fresh(place, given["seed"]))

    def _fresh(self, place: Place | None, seed: Any) -> Place | None:
        """The place of numbers that are drawn: they must be others at each step.

        Raises:
          Mixes: if they are the same ones, then by the places of examples.
        """
        if place is not None and isinstance(seed, int):
            raise Mixes(
                "draws the same numbers for each place in the batch, every time"
            )
        if place is not None and tf.is_tensor(seed):
            raise CannotOpen("random numbers of a seed that is a tensor")
        return place

    # Loops and branches.

    def _at(self, tensor: Any, axis: int) -> Any:
        """One entry along an axis, which is not that of examples."""
        if not is_array(tensor) and not isinstance(tensor, KerasTensor):
            return tensor
        place = self.place(tensor)
        if place is not None and place.axis == axis:
            raise Mixes("goes from one example to the next")
        shape = tuple(n for i, n in enumerate(tensor.shape) if i != axis)
        if place is not None:
            place = place._replace(axis=place.axis - (axis < place.axis))
        return self.put(KerasTensor(shape, tensor.dtype), place)

    def _many(self, tensor: Any, axis: int, count: int | None) -> Any:
        """Results like one, side by side along a new axis."""
        place = self.place(tensor)
        shape = (*tensor.shape[:axis], count, *tensor.shape[axis:])
        if place is not None:
            place = place._replace(axis=place.axis + (axis <= place.axis))
        return self.put(
            KerasTensor(shape, keras.backend.standardize_dtype(tensor.dtype)), place
        )

    def _like(self, one: Any, place: Place | None = None) -> Any:
        place = place or self.place(one)
        return self.put(
            KerasTensor(one.shape, keras.backend.standardize_dtype(one.dtype)), place
        )

    def _until_stable(self, step: Callable[[Any], Any], state: Any) -> tuple[Any, Any]:
        """What a loop returns, once its state keeps the examples where they are."""
        for _ in range(3):
            before = [self.place(one) for one in keras.tree.flatten(state)]
            result, new = step(state)
            after = [self.place(one) for one in keras.tree.flatten(new)]
            places = [
                same([p for p in pair if p is not None]) if any(pair) else None
                for pair in zip(before, after, strict=True)
            ]
            if places == before:
                return result, new
            flat = zip(keras.tree.flatten(state), places, strict=True)
            state = keras.tree.pack_sequence_as(
                state, [self._like(*pair) for pair in flat]
            )
        raise CannotOpen("a loop whose state moves")

    def _rnn(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(original).bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        inputs, states = given["inputs"], given["initial_states"]
        leaves = keras.tree.flatten(inputs)
        if not any(isinstance(leaf, KerasTensor) for leaf in leaves):
            return original(*args, **kwargs)
        time = 0 if given["time_major"] else 1
        masks = [given["mask"]] if given["mask"] is not None else []
        places = [p for t in [*leaves, *masks] if (p := self.place(t)) is not None]
        place = same(places)
        if place.axis != 1 - time:
            raise Mixes("goes from one example to the next")
        first = keras.tree.map_structure(lambda leaf: self._at(leaf, time), inputs)
        constants = given["constants"] or []

        def step(state: Any) -> Any:
            return given["step_function"](first, [*state, *constants])

        output, states = self._until_stable(step, list(states))
        count = leaves[0].shape[time] if given["return_all_outputs"] else 1
        return output, self._many(output, time, count), states

    def _map(self, op: Any, f: Any, xs: Any) -> Any:
        return self._mapped(f, xs)

    def _vectorized_map(self, op: Any, elements: Any) -> Any:
        return self._mapped(op.function, elements)

    def _mapped(self, f: Any, xs: Any) -> Any:
        leaves = keras.tree.flatten(xs)
        places = [self.place(leaf) for leaf in leaves]
        over_examples = [place is not None and place.axis == 0 for place in places]
        count = leaves[0].shape[0]
        if not any(over_examples):
            one = keras.tree.map_structure(lambda leaf: self._at(leaf, 0), xs)
            return keras.tree.map_structure(lambda t: self._many(t, 0, count), f(one))
        place = same([p for p in places if p is not None])
        if not all(over_examples):
            raise CannotOpen("Map over examples and numbers")

        # One example: whatever of the batch it meets is that of others.
        def alone(leaf: Any) -> Any:
            return self.put(KerasTensor(leaf.shape[1:], leaf.dtype), None)

        results = f(keras.tree.map_structure(alone, xs))
        if any(self.place(leaf) is not None for leaf in keras.tree.flatten(results)):
            raise Mixes("maps over examples with a function that sees all of them")
        return keras.tree.map_structure(
            lambda t: self.put(KerasTensor((count, *t.shape), t.dtype), place), results
        )

    def _scan(self, op: Any, f: Any, init: Any, xs: Any = None) -> Any:
        leaves = keras.tree.flatten(xs)
        count = leaves[0].shape[0] if leaves and leaves[0] is not None else op.length
        one = (
            None
            if xs is None
            else keras.tree.map_structure(lambda t: self._at(t, 0), xs)
        )

        def step(state: Any) -> Any:
            new, result = f(state, one)
            return result, new

        result, state = self._until_stable(step, init)
        return state, keras.tree.map_structure(
            lambda t: self._many(t, 0, count), result
        )

    def _associative_scan(self, op: Any, f: Any, elems: Any) -> Any:
        axis = op.axis
        one = keras.tree.map_structure(lambda t: t, elems)
        for leaf in keras.tree.flatten(elems):
            place = self.place(leaf)
            if place is not None and axis % len(leaf.shape) == place.axis:
                raise Mixes("goes from one example to the next")
        f(one, one)
        return keras.tree.map_structure(self._like, elems)

    def _cond(self, op: Any, pred: Any, true_fn: Any, false_fn: Any) -> Any:
        return self._branches(pred, [true_fn, false_fn], ())

    def _switch(self, op: Any, index: Any, branches: Any, *operands: Any) -> Any:
        return self._branches(index, branches, operands)

    def _branches(self, index: Any, branches: Any, operands: Any) -> Any:
        if self.place(index) is not None:
            raise CannotOpen("a branch on each example's own number")
        results = [branch(*operands) for branch in branches]

        def joined(*leaves: Any) -> Any:
            places = [p for leaf in leaves if (p := self.place(leaf)) is not None]
            if not all(hasattr(leaf, "shape") for leaf in leaves):
                return leaves[0]
            return self._like(leaves[0], same(places) if places else None)

        return keras.tree.map_structure(joined, *results)

    def _while(self, op: Any, loop_vars: Any) -> Any:
        def step(state: Any) -> Any:
            if self.place(op.cond(*state)) is not None:
                raise CannotOpen("a loop that one example may end")
            new = op.body(*state)
            return None, tuple(new) if isinstance(new, (list, tuple)) else (new,)

        return self._until_stable(step, tuple(loop_vars))[1]

    def _for(self, op: Any, init_val: Any) -> Any:
        index = KerasTensor((), "int32")
        self.put(index, None)
        return self._until_stable(lambda s: (None, op.body_fun(index, s)), init_val)[1]


_core = keras_operations.core
_COPIES = (_core.Cast, keras_operations.numpy.Copy)
_ENTRY_BY_ENTRY = tuple(
    getattr(keras_operations.numpy, name) for name in ("Add", "Subtract", "Multiply")
)
_SPECIAL: dict[type, Any] = {
    _core.Map: Walk._map,
    _core.VectorizedMap: Walk._vectorized_map,
    _core.Scan: Walk._scan,
    _core.AssociativeScan: Walk._associative_scan,
    _core.Cond: Walk._cond,
    _core.Switch: Walk._switch,
    _core.WhileLoop: Walk._while,
    _core.ForiLoop: Walk._for,
}


def _not_told_apart(layer: Any) -> Mixes:
    return Mixes(
        f"layer {layer.name!r} ({type(layer).__name__}) is called on, or returns, tensors "
        f"without a batch dimension, so the gradients of single examples cannot be told "
        f"apart",
        "Repeat its input for every example before the call, as with "
        "`ops.broadcast_to(positions, (ops.shape(x)[0], length))`.",
    )


def _picked(call: Any) -> Any:
    """The result of `GetItem`, for new axes too."""
    x, key = call.inputs["x"], table.key_of(call)
    place, shape = call.place(x), call.shape(x)
    if place is None:
        return KerasTensor(np.broadcast_to(np.int8(0), shape)[key].shape, x.dtype)
    place, sizes = viewed(place, shape, call.size, lambda array: array[key])
    if None in x.shape:
        sizes = tuple(None if i == place.axis else n for i, n in enumerate(sizes))
    return KerasTensor(sizes, x.dtype)


def _reshaped(call: Any) -> Any:
    """The result of `Reshape`, of which Keras knows less than `ops.shape`."""
    x = call.inputs["x"]
    sizes: list[int | None] = [*table.new_sizes(call)]
    place = call.place(x)
    if None in x.shape and place is not None:
        axis = reshaped(place, call.shape(x), table.new_sizes(call), call.size).axis
        sizes[axis] = None
    return KerasTensor(tuple(sizes), x.dtype)


def _pooled(call: Any) -> Any:
    """The result of adaptive pooling, of which Keras says another shape."""
    x, size = call.inputs["inputs"], call.op.output_size
    size = (size,) * (len(x.shape) - 2) if isinstance(size, int) else tuple(size)
    if call.op.data_format == "channels_last":
        return KerasTensor((x.shape[0], *size, x.shape[-1]), x.dtype)
    return KerasTensor((*x.shape[:2], *size), x.dtype)


_SPECS: dict[type, Callable[[Any], Any]] = {
    keras_operations.nn.AdaptiveAveragePool: _pooled,
    keras_operations.nn.AdaptiveMaxPool: _pooled,
    keras_operations.numpy.GetItem: _picked,
    keras_operations.numpy.Reshape: _reshaped,
}
# Attributes that tell sizes, which the places of examples account for.
_SIZES = frozenset({"newshape", "shape", "name", "repeats", "indices_or_sections"})


def _described(op: Any) -> Any:
    """An operation and what it was configured with, but for sizes."""
    settings = [
        (name, value)
        for name, value in vars(op).items()
        if not name.startswith("_")
        and name not in _SIZES
        and isinstance(value, (int, float, str, tuple, list, type(None)))
    ]
    return type(op).__name__, repr(settings)


def _tensors(structure: Any) -> list[Any]:
    leaves = keras.tree.flatten(structure)
    return [leaf for leaf in leaves if isinstance(leaf, KerasTensor) or is_array(leaf)]


def _as_operation(operation: Any, original: Any, *args: Any, **kwargs: Any) -> Any:
    """What layers ask of the backend without an operation."""
    if any(
        isinstance(leaf, KerasTensor) for leaf in keras.tree.flatten((args, kwargs))
    ):
        return operation(*args, **kwargs)
    return original(*args, **kwargs)


def _not_here(original: Any, *args: Any, **kwargs: Any) -> Any:
    """Makes a layer take its general loop."""
    leaves = keras.tree.flatten((args, kwargs))
    if any(isinstance(leaf, KerasTensor) for leaf in leaves):
        raise NotImplementedError
    return original(*args, **kwargs)


def _asks_for_symbols(kind: type) -> bool:
    """Whether a layer of the user's goes another way for symbolic tensors."""
    for base in kind.__mro__:
        if base.__module__.startswith(("keras.", "keras_hub.")):
            break
        for value in vars(base).values():
            if isinstance(value, types.FunctionType) and _names(value.__code__) & _ASKS:
                return True
    return False


def _names(code: types.CodeType) -> set[str]:
    found = set(code.co_names)
    for part in code.co_consts:
        if isinstance(part, types.CodeType):
            found |= _names(part)
    return found
