"""One private step: programs that Python calls one after the other.

    1. admit    the run admits the batch: it is the plan's for this step.
    2. clip     each example's gradient is formed and clipped; the clipped ones are summed.
    3. release  the run adds the noise of the step, and the inner optimizer applies it.
    4. measure  the loss and the metrics of the batch, outside of the guarantee.

No record stops a step. If a record makes the second program raise, each example of the
batch runs by itself, and those that raise contribute zero (invariants 5 and 18). What
raises for made-up examples is a mistake in the program, and is raised before the first
step. A metric that raises is NaN.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping import (
    OF_THE_MACHINE,
    OUTCOMES,
    ClippedGradients,
    UnsupportedModelError,
    clipped_gradient_sums,
    made_up,
    metrics_change_no_weights,
    present_rows,
    regularization_gradients,
    update_reads_no_metrics,
    update_runs_no_host_code,
)
from tf_bandmf.keras.compat.keras_objects import loss_tracker
from tf_bandmf.keras.model.batch_contents import as_drawn, as_given, shares
from tf_bandmf.keras.model.guards import announced
from tf_bandmf.keras.model.preparation import check_examples
from tf_bandmf.keras.model.variable_making import build_metrics
from tf_bandmf.keras.resume.identity import random_states
from tf_bandmf.keras.run.admission import Admitted
from tf_bandmf.keras.run.secrets import replica_id
from tf_bandmf.keras.run.tables import LookedUpRows
from tf_bandmf.sampling import batches as batches_lib

_TRACING = "tracing the private training step."
_BAD = OUTCOMES.index("bad")


class Contents(NamedTuple):
    """What the clipping sees of a batch: tensors [B, ...], or None.

    Attributes:
      x: inputs.
      y: targets.
      sample_weight: weights.
      rows: which rows each unit has.
      shares: which part of the clip norm each example may contribute.
      count: how many examples there are, int32 scalar, if rows pad the batch.
    """

    x: Any
    y: Any
    sample_weight: Any
    rows: Any
    shares: Any
    count: Any


class Programs:
    """The programs of a model's private steps, compiled for one run.

    Args:
      model: private, compiled and built.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._run = model._private_optimizer().run
        self._strategy = model.distribute_strategy
        self._admit = self._compiled(self._admitted)
        self._state_now = self._compiled(self._state)
        self._refresh = self._compiled(self._refreshed)
        self._clip = self._compiled(self._clipped)
        self._clip_here = self._clip if self._is_one else _compiled(self._clipped)
        self._release = self._compiled(self._released)
        self._privatize = self._compiled(self._privatized)
        self._measure = self._compiled(self._measured)
        # One example that contributes nothing, after the first attempt.
        self._nothing: ClippedGradients | None = None

    # A step.

    def step(self, batch: Any, spec: Any = None) -> dict[str, Any]:
        """Takes one step of the plan.

        Args:
          batch: of the plan.
          spec: specs of all batches, if they are known.

        Returns:
          The training metrics.
        """
        contents, admitted, clipped, looked_up = self._clipped_batch(batch, spec)
        self._release(clipped._replace(outputs=()), admitted, looked_up)
        logs: dict[str, Any] = self._logs(contents, clipped)
        return logs

    def noisy_gradients(self, batch: Any) -> tuple[list[tf.Tensor], tf.Tensor]:
        """The noisy mean gradient of a step, and the step, which is taken."""
        _, admitted, clipped, _ = self._clipped_batch(batch)
        noisy = self._privatize(clipped._replace(outputs=()), admitted, [])
        return list(noisy), admitted.step

    def _clipped_batch(self, batch: Any, spec: Any = None) -> tuple[Any, ...]:
        contents = _contents(batch)
        # Nothing can be made up in the shape of a batch of nothing.
        if self._nothing is None and _size(self._local(contents.x)[0]):
            here = self._local(batch)[0]
            with _no_records_fault(self._model):
                check_examples(self._model, self._model._private_optimizer(), here)
                with announced(_TRACING, self._model._training.is_quiet):
                    self._prepare(spec)
                    self._try_on_made_up(contents)
        admitted, scales, seeds = self._admit(batch)
        looked_up = self._look_up(contents, admitted.step)
        return contents, admitted, self._clip_all(contents, scales, seeds), looked_up

    def _prepare(self, spec: Any) -> None:
        """Traces the programs once for all batches, if their sizes vary."""
        if not self._is_one or not any(map(_may_vary, tf.nest.flatten(spec))):
            return
        batch = as_given(spec)
        contents, tables = _contents(batch), self._run.tables
        admitted, scales, seeds = _traced(self._admit, batch)
        clipped = _traced(self._clip, contents, scales, seeds)
        looked_up: Any = []
        if tables is not None:
            ids = [tf.TensorSpec([None], tf.int64) for _ in tables.variables]
            looked_up = _traced(self._refresh, ids, admitted.step)
        _traced(self._release, clipped._replace(outputs=()), admitted, looked_up)
        _traced(self._measure, contents, clipped.losses, clipped.outputs)

    # What is compiled.

    def _admitted(self, batch: Any) -> tuple[Admitted, Any, list[tf.Tensor]]:
        model = self._model
        admitted = self._run.admit(batch, model.weights)
        return admitted, *self._state()

    def _state(self) -> tuple[Any, list[tf.Tensor]]:
        """What a pass depends on besides weights: scales of coordinates, and seeds."""
        scales = None
        if self._run.scaling is not None:
            with update_reads_no_metrics(self._model):
                scales = self._model._private_optimizer().scales()
        seeds = [tf.identity(seed.value) for seed in random_states(self._model)]
        return scales, seeds

    def _reseeded(self, seeds: Sequence[tf.Tensor]) -> None:
        for variable, seed in zip(random_states(self._model), seeds, strict=True):
            variable.assign(seed)

    def _refreshed(self, ids: list[tf.Tensor], step: tf.Tensor) -> list[LookedUpRows]:
        return self._run.tables.bring_up_to_date(ids, step)

    def _clipped(
        self, contents: Contents, scales: Any, seeds: Sequence[tf.Tensor]
    ) -> ClippedGradients:
        """The clipped sums: with the same seeds, the same again."""
        self._reseeded(seeds)
        clipped = self._sums(contents, scales)
        if contents.count is None:
            return clipped
        # Padding comes last, and is nobody's.
        is_there = tf.range(tf.size(clipped.outcomes)) < contents.count
        return clipped._replace(outcomes=tf.where(is_there, clipped.outcomes, 0))

    def sums(self, x: Any, y: Any, sample_weight: Any = None) -> ClippedGradients:
        """Clipped sums of examples as a step makes them; in a graph, for audits."""
        contents = Contents(x, y, sample_weight, None, None, None)
        return self._sums(contents, self._state()[0])

    def _sums(self, contents: Contents, scales: Any) -> ClippedGradients:
        model, optimizer = self._model, self._model._private_optimizer()
        tables = self._run.tables

        def clipping(contents: Contents, scales: Any) -> ClippedGradients:
            return clipped_gradient_sums(
                model,
                contents.x,
                contents.y,
                contents.sample_weight,
                l2_norm_clip=optimizer.plan.l2_norm_clip,
                microbatch_size=model._microbatch_size,
                loss_scale_factor=optimizer.loss_scale_factor,
                rows=contents.rows,
                shares=contents.shares,
                clipping=optimizer.clipping,
                scales=scales,
                readers=None if tables is None else tables.readers,
            )

        if model.jit_compile:
            clipping = tf.function(clipping, jit_compile=True, autograph=False)
        return clipping(contents, scales)

    def _privatized(
        self, clipped: ClippedGradients, admitted: Admitted, looked_up: Any
    ) -> list[tf.Tensor]:
        variables = self._model.trainable_variables
        with self._reading_no_metrics():
            penalties = self._penalties()
            return self._run.privatize(
                clipped, variables, admitted, penalties, looked_up
            )

    def _reading_no_metrics(self) -> contextlib.AbstractContextManager[None]:
        """On the first replica: the others resume among each other's metrics."""
        if replica_id() == 0:
            return update_reads_no_metrics(self._model)
        return contextlib.nullcontext()

    def _penalties(self) -> list[tf.Tensor] | None:
        """Gradients of the weights' regularizers, if there are any."""
        model = self._model
        if all(v.regularizer is None for v in model.trainable_variables):
            return None
        with update_runs_no_host_code(), update_reads_no_metrics(model):
            return regularization_gradients(model)

    def _released(
        self, clipped: ClippedGradients, admitted: Admitted, looked_up: Any
    ) -> None:
        noisy = self._privatized(clipped, admitted, looked_up)
        with self._reading_no_metrics():
            self._run.apply(noisy, self._model.trainable_variables)
        self._run.renew_seal(self._model.weights)

    def _measured(
        self, contents: Contents, losses: tf.Tensor, outputs: Any
    ) -> dict[str, Any]:
        """Training metrics: exact functions of the data, outside of the guarantee."""
        model = self._model
        x, y, sample_weight, rows, _, count = contents
        seen = (x, y, outputs, sample_weight)
        if rows is not None:
            seen = present_rows(seen, rows)
        elif count is not None:
            # Padding counts in no metric.
            seen = _each(lambda leaf: leaf[:count], seen)
        size = tf.cast(tf.size(losses) if count is None else count, tf.float32)
        loss = tf.math.divide_no_nan(tf.reduce_sum(losses), size)
        loss_tracker(model).update_state(loss, sample_weight=size)
        if self._is_one:
            build_metrics(model, *seen)
        with metrics_change_no_weights(model):
            logs: dict[str, Any] = model.compute_metrics(*seen)
        if isinstance(self._strategy, tf.distribute.MultiWorkerMirroredStrategy):
            # Keras takes the mean over workers along the first axis of whatever is here.
            logs = {name: tf.reshape(value, [1]) for name, value in logs.items()}
        return logs

    # What calls it.

    @property
    def _is_one(self) -> bool:
        return self._strategy.num_replicas_in_sync == 1

    def _compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function of each replica, as one program."""

        def everywhere(*args: Any) -> Any:
            return self._strategy.run(function, args=args)

        return _compiled(function if self._is_one else everywhere)

    def _try_on_made_up(self, contents: Contents) -> None:
        """Clips made-up examples.

        Shapes and dtypes alone decide what happens here. Nothing is kept but the form of
        a result.
        """
        examples = contents._replace(count=None)
        # Not compiled for one call, if it need not be.
        once = self._strategy.run
        is_eager = self._run.scaling is None
        scales, seeds = once(self._state) if is_eager else self._state_now()
        clipped = self._clip(self._made_up(examples), scales, seeds)
        once(self._reseeded, args=(seeds,))
        clipped = self._local(clipped)[0]
        scale = self._model._private_optimizer().loss_scale_factor
        if scale and not bool(tf.reduce_all(tf.math.is_finite(clipped.norms))):
            warnings.warn(
                f"Made-up examples have gradients that are not finite, and contribute "
                f"nothing. If the data are finite, lower loss_scale_factor={scale:g}.",
                stacklevel=2,
            )
        norms, losses, outputs = _each(lambda t: tf.zeros_like(t[:1]), clipped[1:4])
        self._nothing = clipped._replace(
            sums=[_no_gradient(total) for total in clipped.sums],
            norms=norms,
            losses=losses + float("nan"),
            outputs=outputs,
            outcomes=tf.fill([1], _BAD),
        )

    def _made_up(self, contents: Contents) -> Contents:
        parts = [made_up(part, _size(part)) for part in self._local(contents)]
        return parts[0] if self._is_one else _map(self._distributed, *parts)

    def _clip_all(self, contents: Contents, scales: Any, seeds: Any) -> Any:
        """Clips a batch; if it raises, each example by itself."""
        try:
            return self._clip(contents, scales, seeds)
        except OF_THE_MACHINE:
            raise
        except tf.errors.OpError:
            pass
        parts = self._local((contents, scales, seeds))
        clipped = [self._each_alone(*part) for part in parts]
        if self._is_one:
            return clipped[0]
        return _map(self._distributed, *clipped)

    def _each_alone(self, contents: Contents, scales: Any, seeds: Any) -> Any:
        """The examples of one replica, one after the other; those that raise add zero."""
        size = _size(contents)
        count = size if contents.count is None else int(contents.count)
        found: list[ClippedGradients] = []
        for place in range(size):
            one = _row(contents._replace(count=None), place)
            try:
                found.append(self._clip_here(one, scales, seeds))
            except OF_THE_MACHINE:
                raise
            except tf.errors.OpError:
                assert self._nothing is not None
                found.append(self._nothing)
        is_there = tf.range(size) < count
        outcomes = tf.where(is_there, tf.concat([c.outcomes for c in found], 0), 0)
        norms, losses, outputs = _map(
            lambda *leaves: tf.concat(leaves, 0), *[c[1:4] for c in found]
        )
        sums = [_added(parts) for parts in zip(*[c.sums for c in found])]
        scales = () if scales is None else scales
        return ClippedGradients(sums, norms, losses, outputs, scales, outcomes)

    def _look_up(self, contents: Contents, step: tf.Tensor) -> list[LookedUpRows]:
        """The rows of lazy tables that a batch reads, with their noise up to a step."""
        if self._run.tables is None:
            return []
        ids = self._model._training.looked_up(contents.x, contents.rows)
        return list(self._refresh(ids, step))

    def _logs(self, contents: Contents, clipped: ClippedGradients) -> Any:
        try:
            return self._measure(contents, clipped.losses, clipped.outputs)
        except OF_THE_MACHINE:
            raise
        except tf.errors.OpError:
            return self._without_metrics()

    def _without_metrics(self) -> Any:
        """The metrics where a record made one raise: NaN until they are reset."""
        model = self._model
        for metric in model.metrics:
            if metric is not loss_tracker(model):
                for variable in metric.variables:
                    if variable.dtype.startswith("float"):
                        variable.assign(variable * float("nan"))
        return model.get_metrics_result()

    def _local(self, values: Any) -> list[Any]:
        """The values of each replica of this process."""
        if self._is_one:
            return [values]
        local = self._strategy.experimental_local_results
        leaves = [
            (leaf,) if leaf is None else local(leaf)
            for leaf in keras.tree.flatten(values)
        ]
        count = max(map(len, leaves), default=1)
        return [
            keras.tree.pack_sequence_as(values, [own[i % len(own)] for own in leaves])
            for i in range(count)
        ]

    def _distributed(self, *parts: Any) -> Any:
        """A value of each replica from the parts of this process."""
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: parts[context.replica_id_in_sync_group % len(parts)]
        )


@contextlib.contextmanager
def _no_records_fault(model: Any) -> Iterator[None]:
    """Says of what raises for made-up examples that it is a mistake in the program."""
    try:
        yield
    except OF_THE_MACHINE:
        raise
    except tf.errors.OpError as error:
        raise UnsupportedModelError(
            f"Model {model.name!r} or its loss raises for made-up examples of the shapes "
            f"and dtypes of a batch, so that it cannot be told which records it would "
            f"raise for: {error.message.splitlines()[0]}. Let it take such examples, or do "
            f"what raises in plan.batches(..., map=...)."
        ) from error


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    compiled: Callable[..., Any] = tf.function(
        function, autograph=False, reduce_retracing=True
    )
    return compiled


def _traced(function: Any, *specs: Any) -> Any:
    """Specs of what a function returns for such arguments; it is traced for them."""
    outputs = function.get_concrete_function(*specs).structured_outputs
    return _each(tf.type_spec_from_value, outputs)


def _may_vary(spec: Any) -> bool:
    shape = getattr(spec, "shape", None)
    return shape is not None and bool(shape.rank) and None in shape.as_list()


def _contents(batch: Any) -> Contents:
    count = batch[batches_lib.NUM_EXAMPLES] if batches_lib.is_padded(batch) else None
    return Contents(*as_drawn(batch), shares(batch), count)


def _size(contents: Any) -> int:
    return int(tf.shape(keras.tree.flatten(contents)[0])[0])


def _map(function: Callable[..., Any], *structures: Any) -> Any:
    return keras.tree.map_structure(function, *structures)


def _each(function: Callable[[Any], Any], structure: Any) -> Any:
    """As `_map`; None stays None."""
    return _map(lambda leaf: None if leaf is None else function(leaf), structure)


def _row(contents: Contents, place: int) -> Any:
    return _each(lambda tensor: tensor[place : place + 1], contents)


def _no_gradient(total: Any) -> Any:
    if isinstance(total, tf.IndexedSlices):
        return tf.IndexedSlices(total.values[:0], total.indices[:0])
    return tf.zeros_like(total)


def _added(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], tf.IndexedSlices):
        values = tf.concat([part.values for part in parts], 0)
        return tf.IndexedSlices(values, tf.concat([p.indices for p in parts], 0))
    return tf.add_n(list(parts))
