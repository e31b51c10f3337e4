"""The programs of a private training step, which Python calls in this order.

    0. facts    reads the batch's ids and digest; Python checks that the step is allowed.
    1. clip     computes and clips each example's gradient; sums the clipped gradients.
    2. noise    draws the noise of the step, and adds it to the sum.
    3. update   advances the run; the optimizer applies the noisy gradients.
    4. measure  computes the batch's loss and metrics, which the guarantee does not cover.

Between `noise` and `update`, Python writes the step into the journal of the run's private
file, if it has one (`SecretState.confirm`). Programs 0 to 2 change neither the weights
nor the step counter, so a step that is interrupted before `update` is repeated.

No record can stop a step with an error. If a record makes `clip` raise, each example of
the batch runs by itself, and those that raise contribute zero (invariants 5 and 18 in
`docs/guarantee.md`). If `clip` raises for made-up examples, the model or the loss has a
mistake, and training stops with an error before the first step. A metric that raises
becomes NaN.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.losses.alone_and_together import check_loss
from tf_bandmf.keras.clipping.losses.regularizers import regularization_gradients
from tf_bandmf.keras.clipping.sums.clipped_sums import (
    ClippedGradients,
    clipped_gradient_sums,
)
from tf_bandmf.keras.clipping.tensors.batches import OUTCOMES
from tf_bandmf.keras.clipping.tensors.errors import (
    OF_THE_MACHINE,
    UnsupportedModelError,
)
from tf_bandmf.keras.clipping.tensors.made_up import made_up
from tf_bandmf.keras.clipping.tensors.multi_row import present_rows
from tf_bandmf.keras.compat.keras_objects import build_from, loss_tracker
from tf_bandmf.keras.model.preparation import (
    EXAMPLES,
    Contents,
    check_examples,
    given,
)
from tf_bandmf.keras.run import admission
from tf_bandmf.keras.run.noising import Noisy
from tf_bandmf.keras.run.programs import Measure, Program, Update
from tf_bandmf.noise.devices import device_kind

_BAD = OUTCOMES.index("bad")


class Programs:
    """The programs of a model's private steps, compiled for one run.

    Args:
      model: private, compiled and built.
    """

    def __init__(self, model: Any) -> None:
        self._model, self._run = model, model._private_optimizer().run
        self._run.check_variables(model.trainable_variables)
        optimizer = model.optimizer
        self._strategy = model.distribute_strategy
        self._is_one = self._strategy.num_replicas_in_sync == 1
        # On an accelerator, XLA lets the host start each program with a single launch.
        # On a CPU, XLA would take a long time to compile the program that generates the
        # noise.
        by_xla = self._is_one and bool(model.jit_compile) and device_kind() != "CPU"
        facts = admission.program_of_facts(tf.zeros([]).device)
        in_each = self._everywhere(admission.facts)
        self._facts = facts if self._is_one else Program(in_each)
        scaling = optimizer.clipping.scaling
        self._scales = Update(optimizer.scales, model) if scaling else None
        self._clip = Program(self._everywhere(self._clipped), by_xla)
        self._clip_here = Program(self._clipped)
        is_shared = self._is_one and self._run.tables is None
        shared = self._run.noising.programs[by_xla]
        self._noise = shared if is_shared else Program(self._run.privatize, by_xla)
        stepping = functools.partial(self._run.secrets.changing, steps=1)
        self._update, self._take = (
            Update(self._updating(applies), model, by_xla, stepping)
            for applies in (True, False)
        )
        self._measure = Measure(self._everywhere(self._measured), model, by_xla)
        # The result that `clip` would have for no examples; set by `prepare`.
        self._nothing: Any = None
        # How the model keeps its examples apart; set only while `prepare` runs.
        self._structure: Any = None

    # The methods below take a step.

    def step(self, batch: Any) -> Any:
        """Takes one step of the plan with this batch; returns the training metrics."""
        contents, clipped, _ = self._taken(batch, self._update)
        return self._logs(contents, clipped)

    def noisy_gradients(self, batch: Any) -> list[tf.Tensor]:
        """Takes a step; returns its noisy mean gradient."""
        return list(self._taken(batch, self._take)[-1])

    def _taken(self, batch: Any, update: Program) -> tuple[Contents, Any, Any]:
        """Takes a step; returns the batch, its clipped sums, and the update's result.

        Before `update`, neither the weights nor the step counter change, so a step that
        is interrupted earlier is repeated.
        """
        run, contents = self._run, Contents.of(batch)
        facts = self._facts(batch)
        step, keys, seed = run.admit([part.numpy() for part in self._local(facts)])
        scales = self._scales and list(self._scales())
        if run.tables is not None:
            run.tables.read(contents.x, contents.rows, step)
        clipped = self._clip_all(contents, scales, seed)
        noisy = self._noise(clipped.sums, scales, step, keys, facts, run.secrets.stored)
        run.secrets.confirm(noisy.drawn)
        return contents, clipped, update(noisy)

    # The methods below run before the first step.

    def prepare(self, batch: Any, spec: Any = None, applies: bool = True) -> None:
        """Checks the model on made-up examples, and traces the programs of a step.

        Call this before the first step. If the model is refused here, the run has not yet
        reserved any budget.

        Args:
          batch: a batch of the plan; only its shapes and dtypes matter.
          spec: the specs that all batches match, if they are known.
          applies: True for `step`, False for `noisy_gradients`.
        """
        if self._nothing is not None:
            return
        here = self._local(batch)[0]
        with _no_records_fault(self._model):
            contents = made_up(Contents.of(here).by_row(), EXAMPLES)
            self._structure = check_examples(self._model, contents)
            try:
                with self._strategy.scope():
                    build_from(self._model, contents, self._structure.outputs)
                    check_loss(self._model, *contents)
                # One trace serves batches of all sizes, if they are tensors, as those of
                # a schedule are. More traces could round the sums differently, and a
                # resumed run would not repeat its steps.
                specs = _of_any_size(batch) if spec is None else given(spec)
                self._trace(specs, self._update if applies else self._take)
                is_any_size = self._is_one and _size(Contents.of(specs)) is None
                size = EXAMPLES if is_any_size else None
                self._try_on_made_up(Contents.of(batch), size)
            finally:
                # For batches of other shapes, `clip` finds the structure when it is
                # traced.
                self._structure = None

    def _trace(self, batch: Any, update: Program) -> None:
        """Traces the programs of a step.

        Args:
          batch: a batch, or tensor specs. If the specs leave the batch size unknown,
            one trace serves batches of every size.
          update: the program that applies the gradients, or the one that returns them.
        """
        contents, (scales, seed) = Contents.of(batch), self._of_no_step()
        number, keys = tf.zeros([], tf.int64), self._run.secrets.step_keys(0)
        facts = _traced(self._facts, batch)
        clipped = _traced(self._clip, contents, scales, seed)
        drawing = scales, number, tf.constant(keys), facts, self._run.secrets.stored
        noisy = _traced(self._noise, clipped.sums, *drawing)
        update.traced(noisy)
        if update is self._update:
            self._measure.traced(contents, clipped.losses, clipped.outputs)

    def _of_no_step(self) -> tuple[Any, tf.Tensor]:
        """Returns the scales, and zeros as seed, to call `clip` outside of a step."""
        return self._scales and list(self._scales()), tf.zeros([2], tf.int32)

    def _try_on_made_up(self, contents: Contents, size: int | None = None) -> None:
        """Clips made-up examples, and sets `_nothing`.

        `_nothing` is the result for no examples: zero sums, and no losses or outputs.

        Args:
          contents: a batch; only its shapes and dtypes matter.
          size: the number of made-up examples; None for the size of the batch.
        """
        parts = self._local(contents._replace(count=None))
        parts = [made_up(part, size or max(1, _size(part))) for part in parts]
        examples = _each(self._distributed, *parts)
        clipped = self._local(self._clip(examples, *self._of_no_step()))[0]
        scale = self._model._private_optimizer().loss_scale_factor
        if scale and not bool(tf.reduce_all(tf.math.is_finite(clipped.norms))):
            warnings.warn(
                f"A trial step on random data, not yours, had gradients that overflow. "
                f"Such examples train nothing: lower loss_scale_factor={scale:g}.",
                stacklevel=2,
            )
        losses, outputs = _each(lambda t: tf.zeros_like(t[:0]), clipped[2:4])
        sums = tf.nest.map_structure(
            tf.zeros_like, clipped.sums, expand_composites=True
        )
        self._nothing = ClippedGradients(sums, (), losses, outputs)

    # The methods below call the programs.

    def _everywhere(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that runs `function` in each replica."""
        return lambda *args: self._strategy.run(function, args=args)

    def _clip_all(self, contents: Contents, scales: Any, seed: Any) -> Any:
        """Clips all examples of a batch at once, and returns the sums.

        Examples are clipped one at a time if `clip` raises, or if a replica's share of
        the batch is empty.
        """
        if all(map(_size, self._local(contents))):
            clipped = _unless_it_raises(self._clip, contents, scales, seed)
            if clipped is not None:
                return clipped
        parts = self._local((contents, scales, seed))
        return _each(self._distributed, *[self._each_alone(*part) for part in parts])

    def _each_alone(self, contents: Contents, scales: Any, seed: Any) -> Any:
        """Clips one replica's examples one by one; those that fail contribute zero."""
        count = _size(contents) if contents.count is None else int(contents.count)
        contents, nothing = contents._replace(count=None), self._nothing
        sums = nothing.sums[: len(self._model.trainable_variables)]
        counts = self._run.counts.coordinates(tf.fill([1], _BAD))
        losses, outputs = _each(
            lambda t: tf.zeros([1, *t.shape[1:]], t.dtype), nothing[2:4]
        )
        bad = ClippedGradients([*sums, *counts], (), losses + float("nan"), outputs)
        each = [nothing]
        for place in range(count):
            part = slice(place, place + 1)
            row = _each(operator.itemgetter(part), contents)
            each.append(_unless_it_raises(self._clip_here, row, scales, seed) or bad)
        losses, outputs = _each(
            lambda *leaves: tf.concat(leaves, 0), *[c[2:4] for c in each]
        )
        sums = [_added(parts) for parts in zip(*[c.sums for c in each])]
        return ClippedGradients(sums, (), losses, outputs)

    def _logs(self, contents: Contents, clipped: ClippedGradients) -> Any:
        results = clipped.losses, clipped.outputs
        logs = _unless_it_raises(self._measure, contents, *results)
        if logs is not None:
            return logs
        if not self._measure.jit_compile:
            return self._without_metrics()
        # XLA cannot compile every metric. From now on, metrics run without XLA.
        self._measure = Measure(self._everywhere(self._measured), self._model)
        return self._logs(contents, clipped)

    def _without_metrics(self) -> Any:
        """Sets all metrics but the loss to NaN, after a record made a metric raise.

        They stay NaN until they are reset.
        """
        model = self._model
        for metric in model.metrics:
            if metric is not loss_tracker(model):
                for variable in metric.variables:
                    if variable.dtype.startswith("float"):
                        variable.assign(variable * float("nan"))
        return model.get_metrics_result()

    def _local(self, values: Any) -> list[Any]:
        """Lists the values of this process' replicas."""
        return list(self._strategy.experimental_local_results(values))

    def _distributed(self, *parts: Any) -> Any:
        """Makes a distributed value from one part for each replica of this process."""
        return self._strategy.experimental_distribute_values_from_function(
            lambda context: parts[context.replica_id_in_sync_group % len(parts)]
        )

    # The methods below are compiled as programs.

    def _reseed(self, seed: tf.Tensor) -> None:
        """Sets the states of random layers to values that follow from the step's seed."""
        weights = {id(variable) for variable in self._model.weights}
        variables = [v for v in self._model.variables if id(v) not in weights]
        if variables:
            shape = [len(variables), 2]
            most = tf.int32.max
            states = tf.random.stateless_uniform(shape, seed, 0, most, tf.int32)
            for variable, state in zip(variables, tf.unstack(states)):
                variable.assign(tf.cast(state, variable.dtype))

    def _clipped(
        self, contents: Contents, scales: Any, seed: tf.Tensor
    ) -> ClippedGradients:
        """Returns the clipped sums of a batch, followed by its counts, if any.

        The same seed gives the same result.
        """
        self._reseed(seed)
        clipped = self.clipped(contents, scales)
        # Padding follows the examples, so the first `count` outcomes are theirs.
        outcomes = clipped.outcomes[: contents.count] if self._run.counts.size else ()
        counts = self._run.counts.coordinates(outcomes)
        return clipped._replace(sums=[*clipped.sums, *counts], outcomes=())

    def clipped(self, contents: Any, scales: Any) -> ClippedGradients:
        """Returns the clipped sums of examples, as in a step. Audits call this, too."""
        model, optimizer = self._model, self._model._private_optimizer()
        tables = self._run.tables

        def clipping(contents: Contents, scales: Any) -> ClippedGradients:
            return clipped_gradient_sums(
                model,
                contents.x,
                contents.y,
                contents.sample_weight,
                l2_norm_clip=optimizer.plan.l2_norm_clip,
                microbatch_size=model._settings.microbatch_size,
                loss_scale_factor=optimizer.loss_scale_factor,
                rows=contents.rows,
                shares=contents.shares,
                clipping=optimizer.clipping,
                scales=scales,
                readers=None if tables is None else tables.readers,
                structure=self._structure,
                with_outcomes=bool(self._run.counts.size),
            )

        if model.jit_compile:
            clipping = tf.function(clipping, jit_compile=True, autograph=False)
        return clipping(Contents(*contents), scales)

    def _penalized(self, gradients: Sequence[Any]) -> list[Any]:
        """Adds the gradients of the weights' regularizers, which depend on no data."""
        model = self._model
        if all(v.regularizer is None for v in model.trainable_variables):
            return list(gradients)
        penalties = self._run.apart(regularization_gradients(model))[0]
        return [g + tf.cast(p, g.dtype) for g, p in zip(gradients, penalties)]

    def _updating(self, applies: bool) -> Callable[[Noisy], Any]:
        """Returns `update`: it advances the run, and applies or returns the gradients.

        Args:
          applies: True to apply the gradients; False to return them.
        """
        run = self._run

        def apply(gradients: list[Any], rows: list[Any], counts: tf.Tensor) -> Any:
            run.counts.add(counts)
            gradients = self._penalized(gradients)
            return run.apply(gradients, rows) if applies else gradients

        def updated(noisy: Noisy) -> Any:
            with tf.control_dependencies(run.secrets.take(noisy.drawn)):
                released = noisy.gradients, noisy.rows, noisy.counts
                released = tf.nest.map_structure(tf.identity, released)
            return self._everywhere(apply)(*released)

        return updated

    def _measured(
        self, contents: Contents, losses: tf.Tensor, outputs: Any
    ) -> dict[str, Any]:
        """Computes the training metrics, which the guarantee does not cover."""
        model = self._model
        x, y, sample_weight, rows, _, count = contents
        seen = (x, y, outputs, sample_weight)
        if rows is not None:
            seen = present_rows(seen, rows)
        elif count is not None:
            # Padding is cut off, so that no metric counts it.
            seen = _each(lambda leaf: leaf[:count], seen)
        size = tf.cast(tf.size(losses) if count is None else count, tf.float32)
        loss = tf.math.divide_no_nan(tf.reduce_sum(losses), size)
        # `update_state` would do the same with three times as many operations.
        tracker = loss_tracker(model)
        tracker.total.assign_add(loss * size)
        tracker.count.assign_add(size)
        logs: dict[str, Any] = model.compute_metrics(*seen)
        if isinstance(self._strategy, tf.distribute.MultiWorkerMirroredStrategy):
            # Keras averages each value over the workers, along the first axis.
            logs = {name: tf.reshape(value, [1]) for name, value in logs.items()}
        return logs


@contextlib.contextmanager
def _no_records_fault(model: Any) -> Iterator[None]:
    """Provides a context in which TensorFlow's errors become UnsupportedModelError.

    Only made-up examples are used in it, so no record can be at fault. Errors of the
    machine, such as running out of memory, pass unchanged.
    """
    try:
        yield
    except OF_THE_MACHINE:
        raise
    except tf.errors.OpError as error:
        raise UnsupportedModelError(
            f"Model {model.name!r} or its loss raises an error for made-up examples with "
            f"the shapes and dtypes of your batches: {error.message.splitlines()[0]}. "
            f"The data did not cause this error. Change the model or loss, or move the "
            f"code that raises the error to a function: plan.batches(..., map=function)."
        ) from error


def _unless_it_raises(program: Program, *args: Any) -> Any:
    """Runs a program; returns None if it raises. Errors of the machine pass through."""
    try:
        return program(*args)
    except OF_THE_MACHINE:
        raise
    except tf.errors.OpError:
        return None


def _traced(program: Program, *specs: Any) -> Any:
    """Traces a program for arguments of these specs; returns the specs of its results."""
    outputs = program.traced(*specs).structured_outputs
    return _each(tf.type_spec_from_value, outputs)


def _of_any_size(batch: Any) -> Any:
    """Returns specs that batches of all sizes match; a padded batch is returned itself."""
    size, is_padded = _size(Contents.of(batch)), Contents.of(batch).count is not None

    def spec(leaf: Any) -> Any:
        has_size = isinstance(leaf, tf.Tensor) and leaf.shape[:1] == (size,)
        return tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype) if has_size else leaf

    return batch if is_padded else _each(spec, batch)


def _size(contents: Any) -> Any:
    """Returns the batch size of tensors or specs; None if it may be any size."""
    return keras.tree.flatten(contents)[0].shape[0]


def _each(function: Callable[..., Any], *structures: Any) -> Any:
    """Maps a function over the leaves of equally nested structures; None stays None."""
    return keras.tree.map_structure(function, *structures, none_is_leaf=False)


def _added(parts: Sequence[Any]) -> Any:
    if isinstance(parts[0], tf.IndexedSlices):
        values = tf.concat([part.values for part in parts], 0)
        return tf.IndexedSlices(values, tf.concat([p.indices for p in parts], 0))
    return tf.add_n(list(parts))
