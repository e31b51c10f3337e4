"""Lazy tables: embedding tables whose noise is drawn when their rows are read.

Between two releases, this module stores the current rows and never shows them: they are
as secret as the noise key, because a row that still lacks recent noise reveals whether
an example touched it. The layers' variables hold the last release.
`docs/large-tables.md` states the guarantee, and links to its proof.

When a row is read, the key of its noise depends on the digest of the previous step.
Each step's digest contains the digest before it, the step's gradient sums and its
learning rate. So the key depends on all earlier sums, and on all earlier learning
rates, which scale the noise that the row gets. The key also depends on the other rows
that are read in the same step.

The tables of a run are in `Run.tables`. In each step, the run makes these calls:

    tables.read(x, rows, step)                # adds noise to rows that are looked up
    ...                                       # clips gradients, with `readers`
    rows = tables.row_sums(sums)              # adds up the gradients of each row
    tables.digest(rows, step)                 # noise keys depend on this digest
    tables.apply(rows)                        # adds the sums to the rows
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_bandmf.files.hidden import HiddenArray
from tf_bandmf.keras.compat.keras_objects import tensorflow_value
from tf_bandmf.keras.run.admission import refuse
from tf_bandmf.keras.run.programs import Program
from tf_bandmf.keras.run.run import Run
from tf_bandmf.keras.run.weights_seal import CHANGED, digest_of
from tf_bandmf.keras.tables.choice import lazy_layers, system_of, update_of
from tf_bandmf.keras.tables.looked_up import LookedUp
from tf_bandmf.noise.digests import digest_key, digest_of_any_length
from tf_bandmf.noise.keys import NoiseKey, Secret
from tf_bandmf.noise.lazy_tables import Jumps, LazyTable
from tf_bandmf.noise.shared import near_length, shared_function

# Each step has two noise keys: one for the rows that it reads, one for a release.
_READ, _RELEASE = 0, 1


def choose_tables(model: keras.Model) -> None:
    """Gives the run of a model its lazy tables, before the optimizer is built.

    Args:
      model: a private model, compiled and built; its settings name the tables.

    Raises:
      UnsupportedModelError: if a requested table cannot be lazy.
    """
    layers = lazy_layers(model)
    if layers:
        run = model.optimizer.run
        run.tables = LazyTables(run, layers, LookedUp(model, layers))


class LazyTables(Secret):
    """The lazy tables of a run. This class draws their noise and releases them.

    Args:
      run: the run, before it begins.
      layers: the layers of the tables, in the order of the weights.
      looked_up: a function that returns the rows that the inputs of a batch look up.

    Attributes:
      variables: the tables, Keras variables [rows, columns] in float32.
      looked_up: see above.
    """

    def __init__(self, run: Run, layers: Sequence[Any], looked_up: LookedUp) -> None:
        self._run, self.looked_up = run, looked_up
        self.variables = [layer.trainable_variables[0] for layer in layers]

    # The methods below create the tables, and detect changes to them.

    def begin(self, memory: Sequence[np.ndarray] = ()) -> None:
        """Creates the tables' keys and states.

        The run must already have its secrets, and the layers' variables must hold the
        last release.

        Args:
          memory: for a resumed run, `LazyTable.memory` of each table.
        """
        run, step = self._run, self._run.step
        derived = hashlib.blake2b(
            run.key.secret_bytes(), digest_size=32, person=b"tf-bandmf tables"
        )
        secret = NoiseKey(derived.digest())
        keys = secret.step_keys(2 * (run.plan.num_steps + 1), run.plan.generator)
        digests = digest_key(secret.secret_bytes(), run.plan.fingerprint)
        system = system_of(run.plan, run.inner_optimizer, self.variables[0])
        with tf.init_scope():
            self._keys = tf.Variable(keys.copy().view(np.int64), trainable=False)
            self._digest_key = tf.Variable(digests.copy(), trainable=False)
            # The digests of the last release and of SGD's options. They are part of the
            # input of each step's digest.
            basis = tf.zeros([len(self.variables) + 1], tf.int64)
            self._basis = tf.Variable(basis, trainable=False)
            self._jumps = Jumps(system, run.plan.num_steps, step)
            self._tables = [
                LazyTable(
                    tensorflow_value(variable),
                    self._jumps,
                    number,
                    step,
                    memory[number] if memory else None,
                )
                for number, variable in enumerate(self.variables)
            ]
        around = run.secrets.changing
        self._bring_up_to_date = Program(self._brought_up_to_date, around=around)
        self._release_rows = Program(self._release, around=around)
        self._note_release()

    def _note_release(self) -> None:
        """Stores the step of the last release, and the digests that detect changes."""
        self._released = self._run.step
        self._seal = [digest_of([variable]) for variable in self.variables]
        update = update_of(self._run.inner_optimizer, self.variables[0])
        described = repr([update] * len(self.variables)).encode()
        digest = hashlib.blake2b(described, digest_size=8).digest()
        basis = [*self._seal, int.from_bytes(digest, "big", signed=True)]
        self._basis.assign(tf.constant(basis, tf.int64))

    @property
    def is_changed(self) -> bool:
        """True if the layers' variables are not those of the last release."""
        return self._seal != [digest_of([variable]) for variable in self.variables]

    # The methods below are called in each step.

    def read(self, x: Any, rows: tf.Tensor | None, step: tf.Tensor) -> None:
        """Adds the noise that a batch's table rows have missed since they were read.

        If the run released its tables at this step before it was resumed, this method
        first repeats the release. If the last release was at this step, it first loads
        the weights from the layers' variables.

        If this method, `apply` or `release` is interrupted, the run cannot continue:
        rows may have a gradient sum without its noise, or have their noise twice.

        Args:
          x: inputs of a batch.
          rows: None; or, for B privacy units with up to K rows of `x` each, [B, K]
            bool, True for the rows that are present.
          step: index of the step, which the run has admitted, int64 scalar.

        Raises:
          RuntimeError: if the run was resumed, and an earlier release cannot be repeated.
        """
        now = self._run.step
        due = [at for at in self._run.notes["releases"] if self._released < at <= now]
        if due and min(due) < now:
            raise RuntimeError(
                f"Before it was resumed, this run released its tables at step {min(due)}. "
                f"Now it took that step without a release, and is at step {now}. Resume "
                f"with the steps_per_execution of before, or from the newest checkpoint."
            )
        if due:
            self.release()
        if self._released == now:
            # The user's program may have loaded or changed weights since the release.
            for table, variable in zip(self._tables, self.variables):
                table.replace_weights(tensorflow_value(variable))
            self._note_release()
        self._bring_up_to_date(self.looked_up(x, rows), step)

    def _brought_up_to_date(
        self, looked_up: Sequence[tf.Tensor], step: tf.Tensor
    ) -> None:
        step = tf.cast(step, tf.int32)
        each = [tf.unique(tf.cast(ids, tf.int32))[0] for ids in looked_up]
        each = [tf.boolean_mask(ids, ids >= 0) for ids in each]
        key, window = self._key(step, _READ, each), self._jumps.since_release(step)
        for table, rows in zip(self._tables, each, strict=True):
            table.bring_up_to_date(rows, window, key)

    @property
    def readers(self) -> dict[int, Callable[[tf.Tensor], tf.Tensor]]:
        """For each table, a function that looks up rows.

        The keys are the `id`s of the layers' variables. `clipped_gradient_sums` calls
        these functions instead of reading the variables.
        """
        pairs = zip(self.variables, self._tables)
        return {id(v): functools.partial(self._weights, table) for v, table in pairs}

    def _weights(self, table: LazyTable, rows: tf.Tensor) -> tf.Tensor:
        """Returns the weights of rows.

        The weights are NaN for negative row numbers, and for rows that `read` has not
        brought up to date. An example that looks up such a row contributes zero.
        """
        places = tf.maximum(rows, 0)
        is_there = tf.equal(table.clocks_of(places), self._now()) & (rows >= 0)
        # A product is used because `tf.where` would copy the condition for each column.
        return table.weights_of(places) * tf.where(is_there, 1.0, np.nan)[..., None]

    def _now(self) -> tf.Tensor:
        """Returns the index of the coming step, int32; for use in `tf.function`s."""
        iterations = self._run.inner_optimizer.iterations
        return tf.cast(tf.convert_to_tensor(iterations), tf.int32)

    def _rate(self) -> tf.Tensor:
        """Returns the coming step's learning rate, float64; for use in `tf.function`s."""
        rate = self._run.inner_optimizer.learning_rate
        return tf.cast(tf.convert_to_tensor(rate), tf.float64)

    def row_sums(self, sums: Sequence[tf.IndexedSlices]) -> list[tf.IndexedSlices]:
        """Adds up the sums of each table row, and drops negative row numbers.

        Args:
          sums: for each table, the clipped sums by row; a row may occur several times.

        Returns:
          For each table, the distinct rows, [U] int32, and their sums, [U, columns].
        """
        added_up = []
        for slices in sums:
            rows, places = tf.unique(tf.cast(slices.indices, tf.int32))
            # XLA compiles a program for each length, so lengths are rounded up.
            count = tf.shape(places)[0]
            missing = near_length(count) - count
            values = tf.pad(slices.values, [[0, missing], [0, 0]])
            places = tf.pad(places, [[0, missing]], constant_values=-1)
            total = _sums_at(values, places)[: tf.shape(rows)[0]]
            each = (tf.boolean_mask(part, rows >= 0) for part in (total, rows))
            added_up.append(tf.IndexedSlices(*each))
        return added_up

    def digest(self, sums: Sequence[tf.IndexedSlices], step: tf.Tensor) -> tf.Tensor:
        """Returns a digest of all earlier steps and a step's sums and learning rate.

        The digest is int32, of shape [2].
        """
        point = self._run.secrets.stored.point_before(step)
        rate = tf.bitcast(self._rate(), tf.int64)
        before = [point[None], self._basis.value(), *[rate[None]] * len(sums)]
        parts = [tf.reshape(tf.bitcast(tf.concat(before, axis=0), tf.int32), [-1])]
        for of_table in sums:
            flat = tf.bitcast(tf.reshape(of_table.values, [-1]), tf.int32)
            parts += [tf.shape(of_table.indices), of_table.indices, flat]
        return digest_of_any_length(self._digest_key.value(), tf.concat(parts, axis=0))

    def apply(self, sums: Sequence[tf.IndexedSlices]) -> None:
        """Adds a step's clipped sums to the tables' rows, without noise.

        A row gets the step's noise when it is read next, or at the next release.

        Args:
          sums: for each table, the sums of its distinct rows, from `row_sums`.
        """
        step, rate = self._now(), self._rate()
        for table, of_table in zip(self._tables, sums, strict=True):
            table.add(of_table.indices, of_table.values, step, rate)
        self._jumps.advance(step, rate)

    def _key(self, step: tf.Tensor, use: int, rows: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns the noise key for reading rows at a step, or for a release.

        Args:
          step: index of the step.
          use: `_READ` or `_RELEASE`.
          rows: for each table, the rows that are read. The key depends on them, and on
            all sums of earlier steps.
        """
        run, key = self._run, self._keys.sparse_read(2 * step + use)
        if run.plan.test_seed is None:
            before = run.secrets.stored.point_before(tf.cast(step, tf.int64))
            parts = [tf.bitcast(before, tf.int32), tf.constant([use])]
            for read in rows:
                parts += [tf.shape(read), read]
            words = tf.concat(parts, axis=0)
            digest = digest_of_any_length(self._digest_key.value(), words)
            key = run.noising.generator.bound_key(key, tf.bitcast(digest, tf.int64))
        return tf.bitcast(key, tf.uint64)

    # The methods below release the tables.

    def release(self) -> None:
        """Brings all rows up to date, and writes them into the layers' variables.

        Raises:
          InvalidArgumentError: if other code has changed the variables.
        """
        if self._released == self._run.step:
            return
        refuse(self.is_changed, CHANGED)
        self._run.note("releases", self._run.step)
        self._release_rows()
        self._note_release()

    def accept(self) -> None:
        """Accepts changes that other code has made to the variables.

        It must not be called within a step.
        """
        if self.is_changed:
            changed = [tf.identity(variable.value) for variable in self.variables]
            self._release_rows()
            for variable, value in zip(self.variables, changed):
                variable.assign(value)
            self._note_release()

    def _release(self) -> None:
        step = self._now()
        key, window = self._key(step, _RELEASE, ()), self._jumps.since_release(step)
        for table, variable in zip(self._tables, self.variables):
            table.release(tensorflow_value(variable), window, key)
        self._jumps.released(step)

    def remarks(self) -> list[str]:
        """Returns the privacy statement's remarks on lazy tables."""
        names = ", ".join(str(variable.path) for variable in self.variables)
        return [
            f"The noise of tables ({names}) was drawn when their rows were read. The "
            f"numbers above hold for what was released: these tables at their releases, "
            f"all other weights at each step. They do not hold against someone who sees "
            f"the memory of the process."
        ]

    def memory(self) -> list[np.ndarray]:
        """Returns the states of each table's rows, without the weights.

        The private state file stores them after a release. The list is empty before the
        first step, or if the state of a row consists of its weights alone.
        """
        if self._jumps.entries == 1 or not self._run.step:
            return []
        return [table.memory().view(HiddenArray) for table in self._tables]


@shared_function(jit_compile=True)
def _sums_at(values: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Adds up the rows of `values` that have the same index in `places`.

    Rows with a negative index are ignored. With XLA, this is twice as fast as without.
    """
    return tf.math.unsorted_segment_sum(values, places, tf.shape(values)[0])
