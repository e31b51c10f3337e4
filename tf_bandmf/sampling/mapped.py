"""Random functions of single examples: reproducible augmentation that mixes no examples.

The function gets one example, without a batch axis, and a seed derived from the run's
seed, the step, the example and the view. This seed differs between epochs, and is the
same again when a run is resumed. The function is traced once and must depend only on
the example and the seed: state, Python code that runs at each call, and other sources
of randomness are rejected.
"""

from __future__ import annotations

import contextlib
import inspect
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tf_bandmf.sampling.identity import INPUTS, TARGETS, bytes_of
from tf_bandmf.sampling.sources import named_parts, said_of, with_weights

# Allowed stateful ops: they only read, print, raise an error, or call functions. The
# ops in the called functions are checked, too.
_READING = frozenset(
    "Assert Case If LookupTableFindV2 LookupTableSizeV2 PrintV2 ReadVariableOp "
    "ResourceGather ResourceGatherNd StatefulPartitionedCall VariableShape "
    "VarIsInitializedOp While".split()
)


_DIALECTS: list[Any] = []


def register_dialect(dialect: Any) -> None:
    """Adds support for functions of another library.

    `tf_bandmf.keras` calls this function to support Keras layers.

    Args:
      dialect: adapter of the library, an object with three functions.
        `adapt(function)` returns a function of one example's `x`, or None if `function`
        does not belong to the library. `remarks(function)` returns what a privacy
        statement must say about the function, a tuple of sentences. `seeded(seed)`
        returns a context in which the library's seeds are derived from `seed`, int64,
        shape [2].
    """
    _DIALECTS.append(dialect)


def remarks_on(functions: Iterable[Any]) -> tuple[str, ...]:
    """Returns a privacy statement's remarks on functions that change examples."""
    said = [d.remarks(function) for function in functions for d in _DIALECTS]
    return tuple(dict.fromkeys(itertools.chain.from_iterable(said)))


class Mapped:
    """Applies a function to each row, each time an example is read.

    An example on which the function fails becomes a row of zeros with weight 0.
    Therefore batches of mapped examples always have sample weights.

    Args:
      function: function of one example, without a batch axis: `function(x)` returns a
        new x, or `function(x, y)` returns `(x, y)`. If the function has an argument
        `seed`, it receives an int64 tensor of shape [2] for `tf.random.stateless_*` and
        `tf.image.stateless_random_*`. The function may also be a Keras layer, such as
        `keras.layers.RandomFlip`, which is called with `training=True` on batches of
        one; the layer's own seed is not used. Results must be dense, with one shape for
        all examples.
      rows: contents of a few examples, on which the function is tried out.
      seeds: seeds of these examples, int64, shape [N, 2].
      parses: True if the function gets a record and returns a whole example: `x`, `(x, y)`
        or `(x, y, sample_weight)`.

    Attributes:
      with_targets: True if the function also returns targets.

    Raises:
      TypeError: if the function has arguments or results of any other form.
      ValueError: if the result depends on more than the example and the seed, or if the
        shapes of results vary.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        rows: dict[str, Any],
        seeds: tf.Tensor,
        parses: bool = False,
    ) -> None:
        self.remarks, self._parses = remarks_on([function]), parses
        name = getattr(function, "__name__", type(function).__name__)
        self._name = f"The {'parse' if parses else 'map'} function {name}"
        adapted = (d.adapt(function) for d in _DIALECTS)
        self._function = next(filter(None, adapted), function)
        names = self._arguments() if self._function is function else ["x"]
        self._with_seed = "seed" in names
        self.with_targets = len(names) - self._with_seed == 2
        self._spec = self._tried(rows, seeds)
        self._traced = self._trace(rows)
        # The digest contains the results for a few rows, so that a resumed run can
        # detect a changed function.
        made = [leaf.numpy() for leaf in tf.nest.flatten(self(rows, lambda: seeds))]
        self.digest = b"mapped" + b"".join(map(bytes_of, made))

    def _arguments(self) -> list[str]:
        """Returns the names of the function's arguments.

        Arguments with default values are left out, except `seed`.
        """
        if not callable(self._function):
            raise TypeError(
                f"map must be a function of one example, or a Keras layer (import "
                f"tf_bandmf.keras first), found {self._function!r}."
            )
        try:
            parameters = inspect.signature(self._function).parameters.values()
        except ValueError:
            # Some functions that are implemented in C have no signature.
            return ["x"]
        named = [p for p in parameters if p.default is p.empty or p.name == "seed"]
        names = [p.name for p in named if p.kind < p.VAR_POSITIONAL or p.name == "seed"]
        required = [name for name in names if name != "seed"]
        if len(required) not in (1, 2):
            raise TypeError(
                f"{self._name} must take x, or x and y (and seed if it is random). "
                f"Its arguments are {', '.join(required) or '(none)'}."
            )
        return names

    def __call__(
        self, rows: dict[str, Any], seeds: Callable[[], tf.Tensor]
    ) -> dict[str, Any]:
        """Applies the function to each row separately, and returns the changed rows.

        Args:
          rows: contents of N rows.
          seeds: function that returns the seeds of the rows, int64, shape [N, 2].
        """
        one_row = lambda row: self._traced(*row)  # noqa: E731
        made, works = _each_that_works(one_row, (rows, seeds()), self._spec)
        return with_weights({**rows, **made}, works)

    def _tried(self, rows: dict[str, Any], seeds: tf.Tensor) -> dict[str, Any]:
        """Tries the function on a few rows, and returns the specs of its results.

        The function runs eagerly, so that layers create their weights outside of the
        graph.
        """
        results, failure = [], ""
        for i in range(int(seeds.shape[0])):
            row = tf.nest.map_structure(lambda t, i=i: t[i], rows)
            try:
                results.append(self._one(row, seeds[i]))
            except tf.errors.OpError as error:
                failure = said_of(error)
        if not results:
            raise ValueError(
                f"{self._name} failed on all examples on which it was tried "
                f"({failure}). Call it on one example to see the whole error."
            )

        def common(*leaves: tf.Tensor) -> tf.TensorSpec:
            kinds = {(tuple(leaf.shape), leaf.dtype.name) for leaf in leaves}
            if len(kinds) > 1:
                raise ValueError(
                    f"{self._name} must return tensors of one shape and dtype for all "
                    f"examples and seeds, found {sorted(kinds)}. Pad, crop or cast."
                )
            return tf.TensorSpec(leaves[0].shape, leaves[0].dtype)

        return tf.nest.map_structure(common, *results)

    def _one(self, content: dict[str, Any], seed: tf.Tensor) -> dict[str, Any]:
        """Applies the function to one example, and returns its results by name.

        The function returns `x`, or `(x, y)` if `y` is one of its arguments. A function
        that parses records returns `x`, `(x, y)` or `(x, y, sample_weight)`.
        """
        keys = (INPUTS, TARGETS)[: 1 + self.with_targets]
        if keys[-1] not in content:
            raise TypeError(
                f"{self._name} takes y, but the examples have no y. Pass y to plan.batches."
            )
        options = {"seed": seed} if self._with_seed else {}
        with contextlib.ExitStack() as stack:
            for dialect in _DIALECTS:
                stack.enter_context(dialect.seeded(seed))
            made = self._function(*(content[key] for key in keys), **options)
        if self._parses:
            made = named_parts(made)
        elif not self.with_targets:
            made = {INPUTS: made}
        elif isinstance(made, tuple) and len(made) == 2:
            made = dict(zip(keys, made))
        else:
            raise TypeError(
                f"{self._name} takes x and y, so it must return the tuple (x, y), but "
                f"returned an object of class {type(made).__name__}."
            )
        return tf.nest.map_structure(_tensor, made)

    def _trace(self, rows: dict[str, Any]) -> Any:
        specs = tf.nest.map_structure(
            lambda t: tf.TensorSpec(t.shape[1:], t.dtype), rows
        )

        def one(content: dict[str, Any], seed: tf.Tensor) -> dict[str, Any]:
            made = self._one(content, seed)
            shaped = lambda t, s: tf.ensure_shape(t, s.shape)  # noqa: E731
            return tf.nest.map_structure(shaped, made, self._spec)

        traced = tf.function(one, autograph=True).get_concrete_function(
            specs, tf.TensorSpec([2], tf.int64)
        )
        state = _impure_operation(traced.graph)
        if state is not None:
            raise ValueError(
                f"{self._name} is not a pure function of one example and its seed: it uses "
                f"the operation {state}. For random numbers, add an argument named seed, "
                f"and pass it to tf.random.stateless_* or tf.image.stateless_random_*, or "
                f"use keras.random or Keras layers (import tf_bandmf.keras first). Move "
                f"code that assigns variables or runs Python (tf.py_function) into your "
                f"data set: pass to plan.batches an object with len(x) and x[i]."
            )
        return traced


def _each_that_works(
    function: Callable[[Any], Any], rows: Any, spec: Any
) -> tuple[Any, tf.Tensor]:
    """Maps a function over rows one by one; rows on which it fails become zeros.

    Args:
      function: function of one row, in a graph. A failing op affects only its own row.
      rows: structure of tensors whose first dimension is N.
      spec: structure of the specs of the function's results, with static shapes.

    Returns:
      The results, with zeros for rows on which the function failed; and a mask of the
      rows on which it succeeded, bool, shape [N].
    """
    count = tf.shape(tf.nest.flatten(rows)[0], out_type=tf.int64)[0]
    blank = tf.nest.map_structure(lambda s: tf.zeros(s.shape, s.dtype), spec)
    numbered = tf.data.Dataset.from_tensor_slices((tf.range(count), rows)).map(
        lambda place, row: (place, function(row)), num_parallel_calls=tf.data.AUTOTUNE
    )
    # The row `blank` is appended because `get_single_element` needs a batch, and there
    # would be none if the function failed on all rows.
    ended = numbered.ignore_errors().concatenate(
        tf.data.Dataset.from_tensors((count, blank))
    )
    places, results = ended.batch(count + 1).get_single_element()

    def placed(made: tf.Tensor) -> tf.Tensor:
        # `scatter_nd` is not used because it adds values to zero, which turns negative
        # zero into zero.
        zeros = tf.zeros([count + 1, *made.shape[1:]], made.dtype)
        return tf.tensor_scatter_nd_update(zeros, places[:, None], made)[:count]

    return tf.nest.map_structure(placed, results), placed(places < count)


def _impure_operation(graph: Any) -> str | None:
    """Returns the type of a graph's first op that depends on more than its inputs.

    If the graph has no such op, the result is None.
    """
    definition = graph.as_graph_def()
    nodes = [*definition.node]
    for function in definition.library.function:
        nodes += function.node_def
    for node in nodes:
        operation = op_def_registry.get(node.op)
        has_state = getattr(operation, "is_stateful", False) and node.op not in _READING
        if has_state or "PyFunc" in node.op or "File" in node.op:
            return str(node.op)
    return None


def _tensor(value: Any) -> tf.Tensor:
    if isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        raise TypeError(
            f"map and parse must return dense tensors, found a {type(value).__name__}. "
            f"Apply to_tensor(shape=...) if it is ragged, tf.sparse.to_dense if sparse."
        )
    return tf.convert_to_tensor(value)
