"""A random function of single examples: augmentation that cannot mix and can be repeated.

The function gets one example, without a batch axis, and a seed that follows from the run's
seed, the step, the example and the view: another one in each epoch, the same one when a
run is resumed. It is traced once and must be a pure function of example and seed: state,
code of the host and random numbers from elsewhere are refused.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from tf_bandmf.graphs.mapping import map_each
from tf_bandmf.sampling.failing import each_that_works, said_of, with_weights
from tf_bandmf.sampling.purity import may_fail, refused_operation
from tf_bandmf.sampling.sources import (
    INPUTS,
    TARGETS,
    Draw,
    ExampleSource,
    WrappedExamples,
    repeated,
)

# By whose results two functions are told apart, for a resumed run.
_PROBED_EXAMPLES, _PROBED_VIEWS = 4, 2


class Dialect(Protocol):
    """How another library's functions are called, and where it draws its seeds."""

    def adapt(self, function: Any) -> Callable[..., Any] | None:
        """A function of `x` of one example, or None if it is not the library's."""

    def remarks(self, function: Any) -> tuple[str, ...]:
        """What a statement must say of what the function uses, in sentences."""

    def seeded(self, seed: tf.Tensor) -> contextlib.AbstractContextManager[Any]:
        """Lets the library draw seeds that follow from this one, int64, shape [2]."""


_DIALECTS: list[Dialect] = []


def register_dialect(dialect: Dialect) -> None:
    """Makes a library's functions known; `tf_bandmf.keras` does so for Keras."""
    _DIALECTS.append(dialect)


def remarks_on(functions: Iterable[Any]) -> tuple[str, ...]:
    """What a statement must say of functions that change or make examples."""
    found = [d.remarks(function) for function in functions for d in _DIALECTS]
    return tuple(dict.fromkeys(itertools.chain.from_iterable(found)))


@contextlib.contextmanager
def _seeded(seed: tf.Tensor) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for dialect in _DIALECTS:
            stack.enter_context(dialect.seeded(seed))
        yield


class MappedExamples(WrappedExamples):
    """Examples that a function changes each time they are read.

    An example on which the function fails becomes a row of zeros with weight 0. If the
    function could fail for some example, there are sample weights.

    Args:
      examples: what is read.
      function: of one example, without a batch axis: `function(x)` returns another x,
        or `function(x, y)` returns `(x, y)`. With an argument `seed`, it gets an int64
        tensor of shape [2] for `tf.random.stateless_*` and
        `tf.image.stateless_random_*`. Or a Keras layer, such as
        `keras.layers.RandomFlip`, which is called with `training=True` on batches of
        one; its own seed is not used. Dense tensors of one shape for all examples.

    Raises:
      TypeError: if it takes other arguments, or returns anything else.
      ValueError: if it is not a pure function of example and seed, shapes vary, or it
        might not terminate.
    """

    def __init__(self, examples: ExampleSource, function: Callable[..., Any]) -> None:
        super().__init__(examples)
        self.remarks += remarks_on([function])
        adapted = next((f for d in _DIALECTS if (f := d.adapt(function))), None)
        self._name = getattr(function, "__name__", type(function).__name__)
        self._with_targets, self._with_seed = (
            (False, False) if adapted is not None else _signature(function, self._name)
        )
        self._function = adapted if adapted is not None else function
        # What the function makes is its own.
        kept = () if self._with_targets else (TARGETS,)
        self.ranges = {k: examples.ranges[k] for k in kept if k in examples.ranges}
        # Eagerly, so that layers make their weights outside of the graph.
        count = min(_PROBED_EXAMPLES, self.num_examples)
        ids = tf.range(count, dtype=tf.int64)
        draw = Draw(tf.constant(0, tf.int64), np.zeros(2, np.int64))
        rows = repeated(examples.drawn(ids, draw), _PROBED_VIEWS)
        seeds = draw.seeds(ids, _PROBED_VIEWS)
        self._spec = self._common_spec(self._tried(rows, seeds))
        self._traced = self._trace(rows)
        data = len(tf.nest.flatten(rows))
        self._may_fail = may_fail(self._traced.graph, self._traced.graph.inputs[:data])
        # What is used is what was traced.
        probed = tf.function(self._mapped, autograph=False)(rows, seeds)
        self._probe = b"".join(
            np.ascontiguousarray(leaf.numpy()).tobytes()
            if leaf.dtype != tf.string
            else b"\0".join(leaf.numpy().ravel())
            for leaf in tf.nest.flatten(probed)
        )

    def _tried(self, rows: dict[str, Any], seeds: tf.Tensor) -> list[dict[str, Any]]:
        """What the function makes of some examples, but those of which it fails."""
        results, failure = [], None
        for i in range(int(seeds.shape[0])):
            row = tf.nest.map_structure(lambda t, i=i: t[i], rows)
            try:
                results.append(self._one(row, seeds[i]))
            except tf.errors.OpError as error:
                failure = error
        if failure is not None and not results:
            raise ValueError(
                f"map: {self._name} fails for all of the examples that it was tried "
                f"with ({said_of(failure)}). It must work for an example."
            ) from None
        return results

    def _one(self, content: dict[str, Any], seed: tf.Tensor) -> dict[str, Any]:
        """`x`, and `y` if the function takes it, of one example."""
        given = [content[INPUTS]]
        if self._with_targets:
            if TARGETS not in content:
                raise TypeError(
                    f"map: {self._name} takes x and y, but the examples have no targets."
                )
            given.append(content[TARGETS])
        with _seeded(seed):
            found = self._function(
                *given, **({"seed": seed} if self._with_seed else {})
            )
        if not self._with_targets:
            return {INPUTS: tf.nest.map_structure(_tensor, found)}
        if not isinstance(found, tuple) or len(found) != 2:
            raise TypeError(
                f"map: {self._name} takes x and y, and must return the tuple (x, y), found "
                f"{type(found).__name__}."
            )
        return dict(
            zip((INPUTS, TARGETS), (tf.nest.map_structure(_tensor, f) for f in found))
        )

    def _common_spec(self, results: list[dict[str, Any]]) -> dict[str, Any]:
        def common(*leaves: tf.Tensor) -> tf.TensorSpec:
            kinds = {(tuple(leaf.shape), leaf.dtype.name) for leaf in leaves}
            if len(kinds) > 1:
                raise ValueError(
                    f"map: {self._name} must return tensors of one shape and dtype for "
                    f"all examples and seeds, found {sorted(kinds)}. Pad, crop or cast."
                )
            return tf.TensorSpec(leaves[0].shape, leaves[0].dtype)

        return tf.nest.map_structure(common, *results)

    def _trace(self, rows: dict[str, Any]) -> Any:
        specs = tf.nest.map_structure(
            lambda t: tf.TensorSpec(t.shape[1:], t.dtype), rows
        )

        def one(content: dict[str, Any], seed: tf.Tensor) -> dict[str, Any]:
            found = self._one(content, seed)
            return tf.nest.map_structure(
                lambda t, s: tf.ensure_shape(t, s.shape), found, self._spec
            )

        traced = tf.function(one, autograph=True).get_concrete_function(
            specs, tf.TensorSpec([2], tf.int64)
        )
        state = refused_operation(traced.graph)
        if state is not None:
            raise ValueError(
                f"map: {self._name} is no pure function of one example and its seed: it "
                f"uses {state}, which is not among the operations that are known to be. "
                f"Random numbers: take an argument seed and use tf.random.stateless_* or "
                f"tf.image.stateless_random_* with it "
                f"(keras.random and Keras' preprocessing layers, once tf_bandmf.keras is "
                f"imported). No variables are assigned, no code of the host is called: "
                f"examples could meet in them, and a resumed run would see other examples."
            )
        return traced

    def _mapped(self, rows: dict[str, Any], seeds: tf.Tensor) -> dict[str, Any]:
        """The rows after the function, one by one."""
        if self._may_fail:
            found, works = each_that_works(
                lambda row: self._traced(*row), (rows, seeds), self._spec
            )
            return with_weights({**rows, **found}, works)
        found = map_each(
            lambda row: self._traced(*row),
            (rows, seeds),
            self._spec,
            parallel_iterations=16,
        )
        return {**rows, **found}

    def gather(self, indices: tf.Tensor) -> dict[str, Any]:
        raise TypeError(
            "Examples that are changed at random are read at a step: drawn()."
        )

    def drawn(self, indices: tf.Tensor, draw: Draw, views: int = 1) -> dict[str, Any]:
        rows = repeated(self._examples.drawn(indices, draw), views)
        return self._mapped(rows, draw.seeds(indices, views))

    def update_digest(self, update: Callable[[Any], None]) -> None:
        super().update_digest(update)
        update(b"mapped" + self._probe)


def _tensor(value: Any) -> tf.Tensor:
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        raise TypeError(
            f"map must return dense tensors, found {type(value).__name__}. Make it dense: "
            f"value.to_tensor(), or tf.sparse.to_dense(value)."
        )
    return tf.convert_to_tensor(value)


def _signature(function: Any, name: str) -> tuple[bool, bool]:
    """Whether a function takes targets, and a seed."""
    if not callable(function):
        raise TypeError(
            f"map must be a function of one example, or a Keras layer (import "
            f"tf_bandmf.keras first), found {function!r}."
        )
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # of functions in C
        return False, False
    names = [
        p.name
        for p in parameters
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        and p.default is p.empty
        and p.name != "seed"
    ]
    if len(names) not in (1, 2):
        raise TypeError(
            f"map: {name} must take x, or x and y, and seed if it is random; found the "
            f"arguments {', '.join(names) or 'none'}."
        )
    return len(names) == 2, any(p.name == "seed" for p in parameters)
