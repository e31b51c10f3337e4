"""Runs a model on symbolic tensors, and tracks the axis of examples.

Custom layers, functions and operations are run on symbolic tensors, so that all Keras
operations that they call are seen. A table describes these operations. Layers that
cannot be analyzed in this way are listed, to be executed on one example at a time.
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
    row_of,
    same,
)
from tf_bandmf.keras.compat import keras_operations
from tf_bandmf.keras.compat.graphs import FuncGraph, context
from tf_bandmf.keras.compat.keras_objects import MASK, all_layers
from tf_bandmf.keras.compat.keras_operations import KerasTensor
from tf_bandmf.keras.compat.patching import all_patched
from tf_bandmf.keras.compat.recurrent import run_model

_DRAWS = "normal uniform truncated_normal randint gamma binomial beta dropout".split()
# Attributes of operations that contain sizes. `Walk.log` omits them; it contains the
# sizes of results instead, except along the axis of examples.
_SIZES = frozenset({"newshape", "shape", "repeats", "indices_or_sections"})
# The length that is assumed for axes of unknown length.
_LENGTH = 16


class Walk:
    """One run of a model on symbolic tensors.

    Args:
      size: the batch size, a number that occurs nowhere else in the model.
      alone: layers that run on one example at a time.
      units: the layers whose calls are recorded.
      like: None; or the `log` of a run with another batch size, to which the log of
        this run must be equal.
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
        # Recorded calls to layers, in the order in which they start.
        self.calls: list[CallShape] = []
        self._is_within_unit = False
        # Maps the `id` of a result to its layer, if the layer was called on tensors
        # without a batch axis. The training step repeats such tensors for each example.
        self._shared: dict[int, Any] = {}
        self.alone = list(alone)
        # The names, numeric arguments and sizes of all operations, in order. They must
        # not depend on the batch size.
        self.log: list[Any] = []
        self._places: dict[int, tuple[Any, Place | None]] = {}

    def tensor(self, shape: Sequence[int | None], dtype: Any) -> Any:
        """Returns a symbolic tensor with a batch axis, of shape [B, ...]."""
        sizes = [_LENGTH if n is None else n for n in shape[1:]]
        return self._made((None, *sizes), dtype, ROWS)

    def _made(
        self, shape: Sequence[int | None], dtype: Any, place: Place | None
    ) -> Any:
        """Makes a symbolic tensor whose axis of examples has an unknown length."""
        axis = -1 if place is None else place.axis
        sizes = [None if each == axis else n for each, n in enumerate(shape)]
        tensor = KerasTensor(sizes, dtype)
        self._places[id(tensor)] = (tensor, place)
        return tensor

    def place(self, tensor: Any, is_combined: bool = False) -> Place | None:
        """Returns the axis of examples in a tensor; None if it has no such axis.

        Args:
          tensor: a tensor, or any other value.
          is_combined: True if the tensor is an operand of an elementwise operation.
            If a layer was called without a batch axis, the training step repeats
            the layer's result for each example. Therefore only elementwise
            operations may use such a result.
        """
        if id(tensor) in self._shared and not is_combined:
            raise _not_told_apart(self._shared[id(tensor)])
        is_constant = is_array(tensor) and not isinstance(tensor, keras.Variable)
        if is_constant and id(tensor) not in self._places:
            place = self._by_size(tensor.shape)
            row = row_of(tensor, place, self.size) if place else np.asarray(tensor)
            self._places[id(tensor)] = (tensor, place)
            self._note("constant", row.tobytes())
        return self._places.get(id(tensor), (None, None))[1]

    def shape(self, tensor: Any) -> tuple[int, ...]:
        """Returns the shape of a tensor, with `size` as the batch size."""
        size = self.size * (self.place(tensor) or ROWS).inner
        return tuple(size if n is None else n for n in tensor.shape)

    def run(self, model: Any, x: Any, training: bool = True) -> Any:
        """Calls a model on symbolic tensors, as in training or evaluation."""
        with self._hooks(all_layers(model)), keras.StatelessScope():
            return run_model(model, x, training)

    @contextlib.contextmanager
    def _hooks(self, layers: Sequence[Any] = ()) -> Iterator[None]:
        """Redirects calls of layers, and operations on symbolic tensors, to `self`."""
        backend, recurrent = keras_operations.backend, keras_operations.RECURRENT
        hooks: list[tuple[Any, str, Callable[..., Any]]] = [
            (keras.Operation, "symbolic_call", self._operation),
            # A layer that is not in the model is treated as code of the layer that
            # calls it.
            (
                keras.Layer,
                "symbolic_call",
                lambda _, layer, *a, **k: layer.call(*a, **k),
            ),
            *(
                (layer, "call", functools.partial(self._layer, layer))
                for layer in layers
            ),
            # Without this hook, Keras would record layers' calls as nodes of a model.
            (keras_operations.layer, "Node", lambda *_, **__: None),
            # Writes of variables are refused later, in the traced training step.
            (keras.Variable, "assign", _if_symbolic(lambda _, value: value)),
            *((backend.random, name, self._draw) for name in _DRAWS),
            (recurrent, "rnn", self._rnn),
            *((module, name, _unseen) for module, name in keras_operations.BRANCHES),
            # In `x.shape`, the batch size is None; `self.shape` returns the number.
            (keras.ops, "shape", _if_symbolic(self.shape)),
            (keras_operations.ops, "shape", _if_symbolic(self.shape)),
            *(
                (module, name, _if_symbolic(operation))
                for module, name, operation in keras_operations.of_the_backend()
            ),
        ]
        with all_patched(hooks), context.eager_mode():
            yield

    def _note(self, *entry: Any) -> None:
        """Adds an entry, which must not depend on the batch size, to the log.

        Raises:
          Mixes: if the log differs from the log for another batch size.
        """
        place = len(self.log)
        self.log.append(entry)
        if self.like is not None and list(self.like[place : place + 1]) != [entry]:
            # Do not compare later entries of the log: the layer that is running now
            # will be executed on single examples, and the model will be analyzed again.
            self.like = None
            raise Mixes("an operation depends on the batch size")

    def _operation(self, original: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        """Applies the rule of an operation to symbolic tensors.

        If an operation that is not Keras' own has no rule, its `call` is analyzed.

        Raises:
          CannotOpen: if an operation of Keras has no rule, or its rule fails.
          Mixes: if the operation mixes examples.
        """
        kind, rule = type(op), table.OPERATIONS.get(type(op))
        if rule is None:
            if kind.__module__.startswith("keras."):
                raise CannotOpen(f"Operation {kind.__name__} has no rule.")
            return op.call(*args, **kwargs)
        is_combined = rule is table.ENTRY_BY_ENTRY
        place_of = functools.partial(self.place, is_combined=is_combined)
        tensors = tensors_of((args, kwargs))
        of_examples = [t for t in tensors if place_of(t) is not None]
        call = table.Call(op, args, kwargs, tensors, self.size, place_of)
        try:
            places = rule(call) if of_examples else [None] * len(call.outputs)
        except Mixes as error:
            shapes = ", ".join(str(list(t.shape)) for t in of_examples)
            reason = f"operation {kind.__name__} on {shapes} {error}"
            raise Mixes(reason, error.advice) from error
        settings = [v for k, v in vars(op).items() if not (k in _SIZES or k[0] == "_")]
        given = keras.tree.flatten((args, kwargs, settings))
        numbers = [repr(one) for one in given if isinstance(one, (int, float, slice))]
        self._note(kind.__name__, numbers)
        made = [
            self._made(spec.shape, spec.dtype, place or self._by_size(spec.shape))
            for spec, place in zip(call.outputs, places, strict=True)
        ]
        self._note("sizes", [tensor.shape for tensor in made])
        outputs = keras.tree.pack_sequence_as(call.specs, made)
        shared = [layer for t in of_examples if (layer := self._shared.get(id(t)))]
        if shared and len(shared) == len(of_examples):
            self._shared[id(outputs)] = shared[0]
        return outputs

    def _by_size(self, shape: Sequence[int]) -> Place | None:
        """Returns the axis whose length is a multiple of the batch size, if any."""
        for axis, n in enumerate(shape):
            if n and n % self.size == 0:
                return Place(axis, n // self.size)
        return None

    def _layer(self, layer: Any, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Analyzes a call to a layer, and returns its symbolic results.

        If the layer is known to keep examples apart, or runs on one example at a time,
        its code is not analyzed.
        """
        before, was_within = list(self.alone), self._is_within_unit
        unit = None if was_within else self.units.get(id(layer))
        tensors = tensors_of((args, kwargs))
        is_symbolic = any(isinstance(tensor, KerasTensor) for tensor in tensors)
        is_alone = is_symbolic and any(layer is other for other in before)
        try:
            if is_alone and was_within:
                raise CannotOpen(f"Layer {layer.name!r} is in a single-example layer.")
            call = None
            if unit is not None:
                call, args, kwargs = self._noted(unit, args, kwargs)
            is_own = getattr(original, "__func__", None) is type(layer).call
            shapes = [self.shape(tensor) for tensor in tensors if is_symbolic]
            if is_alone or (is_symbolic and is_own and knows(layer, shapes)):
                return self._rows_of(layer, original, args, kwargs)
            self._is_within_unit = was_within or bool(unit and not unit.rule.opens)
            outputs = original(*args, **kwargs)
            self._note("end")
            return outputs if call is None else self._of_unit(call, outputs)
        except Exception as error:
            mixes = isinstance(error, Mixes)
            if isinstance(error, Mixes) and error.layer is None:
                error.layer = layer
            # If this layer is inside a recorded layer, the outer layer handles the
            # error.
            is_part = was_within or is_alone or not is_symbolic
            if is_part or (isinstance(layer, keras.Model) and mixes):
                raise
            self.alone = [*before, layer]
            return self._rows_of(layer, original, args, kwargs)
        finally:
            self._is_within_unit = was_within

    def _rows_of(self, layer: Any, original: Any, args: Any, kwargs: Any) -> Any:
        """Returns the symbolic results of a layer whose code is not analyzed.

        The layer is known to keep examples apart, or runs on one example at a time. So
        if its arguments have a batch axis, the results have it as their first axis.
        """
        self._note(layer.name)
        tensors = tensors_of((args, kwargs))
        places = [p for t in tensors if (p := self.place(t)) is not None]
        if any(place != ROWS for place in places):
            raise CannotOpen("The first axis of an argument is not the batch axis.")
        self._is_within_unit = True

        def given(leaf: Any) -> Any:
            if not isinstance(leaf, KerasTensor):
                return leaf
            made = tf.compat.v1.placeholder(leaf.dtype, self.shape(leaf))
            if getattr(leaf, MASK, None) is not None:
                setattr(made, MASK, given(getattr(leaf, MASK)))
            return made

        def placed(spec: Any) -> Any:
            if spec is None:
                return None
            if places and (not spec.shape or spec.shape[0] not in (None, self.size)):
                raise CannotOpen("A result must have a row for each example.")
            tensor = self._made(spec.shape, spec.dtype, ROWS if places else None)
            if getattr(spec, MASK, None) is not None:
                setattr(tensor, MASK, placed(getattr(spec, MASK)))
            return tensor

        # TensorFlow infers the shapes and dtypes of the results.
        with FuncGraph("shapes").as_default(), keras.StatelessScope():
            args, kwargs = keras.tree.map_structure(given, (args, kwargs))
            outputs = original(*args, **kwargs)
        return keras.tree.map_structure(placed, outputs)

    def _of_unit(self, call: CallShape, outputs: Any) -> Any:
        """Checks that the result of a recorded call has a row for each example."""
        for tensor in tensors_of(outputs):
            kind = keras.backend.standardize_dtype(tensor.dtype)
            if "float" in kind and self.place(tensor) != ROWS:
                raise _not_told_apart(call.layer)
            if not any(call.batched):
                self._shared[id(tensor)] = call.layer
        return outputs

    def _noted(self, unit: Any, args: Any, kwargs: Any) -> tuple[CallShape, Any, Any]:
        """Records which arguments of a call are batched, and returns the arguments.

        If no argument is batched, all are repeated for each example, as in the training
        step, so each example has its own gradient.
        """
        places = [self.place(leaf) for leaf in keras.tree.flatten((args, kwargs))]
        call = CallShape(unit.layer, tuple(place == ROWS for place in places))
        if not any(call.batched):
            args, kwargs = keras.tree.map_structure(self._repeated, (args, kwargs))
        first = [self.place(tensor) for tensor in tensors_of((args, kwargs))][:1]
        is_first_batched = first == [ROWS] or unit.rule.runs_again
        if not (is_first_batched and all(place in (None, ROWS) for place in places)):
            raise _not_told_apart(unit.layer)
        self.calls.append(call)
        return call, args, kwargs

    def _repeated(self, leaf: Any) -> Any:
        if not tensors_of(leaf):
            return leaf
        rest = leaf.shape[1:] if tuple(leaf.shape[:1]) == (1,) else leaf.shape
        return self._made((None, *rest), leaf.dtype, ROWS)

    def _draw(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Returns a symbolic tensor for random numbers.

        Raises:
          CannotOpen: if a parameter of their distribution depends on the example, or if
            examples might get the same random numbers in every step.
        """
        given = _bound(original, args, kwargs)
        x = given.pop("inputs", None)
        if not tf.executing_eagerly() or is_array(x):
            return original(*args, **kwargs)
        if any(self.place(value) is not None for value in given.values()):
            raise CannotOpen("Parameters of random numbers depend on the example.")
        if x is None:
            shape = tuple(int(n) for n in given["shape"])
            kind, place = given["dtype"] or keras.config.floatx(), self._by_size(shape)
        else:
            shape, kind, place = x.shape, x.dtype, self.place(x)
        seed = given["seed"]
        is_new = seed is None or isinstance(seed, keras.random.SeedGenerator)
        if place is not None and not is_new:
            raise CannotOpen("Random numbers may be the same in every step.")
        return self._made(shape, kind, place)

    def _rnn(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        """Runs one step of a loop over time, and repeats its output for all steps.

        Raises:
          Mixes: if the loop is along the axis of examples.
          CannotOpen: if a step moves the axis of examples in a state.
        """
        given = _bound(original, args, kwargs)
        tensors = tensors_of((given["inputs"], given["mask"]))
        if not any(isinstance(tensor, KerasTensor) for tensor in tensors):
            return original(*args, **kwargs)
        places = [p for t in tensors if (p := self.place(t)) is not None]
        if given["time_major"] or same(places).axis != 0:
            raise Mixes("a recurrent loop runs over the examples of the batch")
        first = keras.tree.map_structure(lambda t: t[:, 0], given["inputs"])
        constants = given["constants"] or []

        before = list(given["initial_states"])
        output, states = given["step_function"](first, [*before, *constants])
        pairs = zip(keras.tree.flatten(before), keras.tree.flatten(states), strict=True)
        if any(self.place(one) != self.place(other) for one, other in pairs):
            raise CannotOpen("A loop moves the batch axis of its state.")
        count = tensors[0].shape[1] if given["return_all_outputs"] else 1
        outputs = keras.ops.repeat(keras.ops.expand_dims(output, 1), count, 1)
        return output, outputs, states


def _not_told_apart(layer: Any) -> Mixes:
    return Mixes(
        f"layer {layer.name!r} ({type(layer).__name__}) is called on, or returns, tensors "
        f"without a batch dimension, so the gradients of single examples cannot be told "
        f"apart",
        "Repeat its input for every example before the call, as with "
        "`ops.broadcast_to(positions, (ops.shape(x)[0], length))`.",
    )


def _bound(function: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, Any]:
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def _if_symbolic(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a hook that calls `function` only if an argument is symbolic.

    Otherwise, the hook calls the original function, which it replaces.
    """

    def hook(original: Any, *args: Any, **kwargs: Any) -> Any:
        leaves = keras.tree.flatten((args, kwargs))
        is_symbolic = any(isinstance(leaf, KerasTensor) for leaf in leaves)
        return (function if is_symbolic else original)(*args, **kwargs)

    return hook


def _unseen(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Refuses eager code in which a branch or a loop depends on a value of a tensor."""
    if tf.executing_eagerly():
        raise CannotOpen("A branch or a loop depends on a value of a tensor.")
    return original(*args, **kwargs)
