"""Lazy tables: the tables of a run whose noise is drawn when their rows are read.

Between two releases, the current rows are kept here and never shown: they are
as secret as the key, because a row without its recent noise reveals that no example
touched it. The layers' variables hold the last release. `docs/large-tables.md` states
the guarantee, and links to its proof.

The noise that a row gets when it is read is bound to all earlier sums of the run, and to
all earlier learning rates, which decide how much of each step's noise the row gets. The
noise's key contains the digest of the previous step, which is chained through all steps
with their learning rates. The key also contains the rows that are read together with
this row.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_bandmf.files.hidden import HiddenArray
from tf_bandmf.keras.compat.keras_objects import tensorflow_value, uses_weight_decay
from tf_bandmf.keras.run.admission import refuse
from tf_bandmf.keras.run.programs import Program
from tf_bandmf.keras.run.secrets import SecretState
from tf_bandmf.keras.run.weights_seal import CHANGED, digest_of
from tf_bandmf.noise.devices import device_kind
from tf_bandmf.noise.digests import digest_key, digest_of_any_length
from tf_bandmf.noise.keys import NoiseKey, Secret
from tf_bandmf.noise.lazy import LinearUpdate, RowSystem, noise_system, row_system
from tf_bandmf.noise.lazy_tables import Jumps, LazyTable, Window
from tf_bandmf.noise.shared import near_length, shared_function
from tf_bandmf.planning.plan import Plan

# The two uses of a step's keys: rows that a step reads, or a release.
_READ, _RELEASE = 0, 1
# A function of row numbers that returns one entry for each row.
Reader = Callable[[tf.Tensor], Any]


class RowSums(NamedTuple):
    """Sums of the clipped gradients of a table's rows.

    Attributes:
      rows: distinct row numbers, [U] int32.
      sums: the sum for each row, [U, columns] float32.
      rate: the learning rate of the step, float64 scalar.
    """

    rows: tf.Tensor
    sums: tf.Tensor
    rate: tf.Tensor


def update_of(inner: Any, decays: bool) -> LinearUpdate:
    """SGD's update of a variable, with or without weight decay."""
    decay = float(inner.weight_decay or 0.0) if decays else 0.0
    return LinearUpdate(float(inner.momentum), bool(inner.nesterov), decay)


def environment() -> str:
    """Describes everything that affects the rounding of sums, and so the noise."""
    threads = tf.config.threading.get_intra_op_parallelism_threads() or os.cpu_count()
    devices = sorted(
        str(tf.config.experimental.get_device_details(gpu).get("device_name"))
        for gpu in tf.config.get_visible_devices("GPU")
    )
    versions = tf.__version__, keras.__version__
    return f"{versions} {platform.machine()} {threads} {devices}"


class RunTables(Secret):
    """The states of a run's lazy tables, their keys, and their releases.

    Args:
      variables: the tables, Keras variables [rows, columns] in float32.
      plan: plan of the run.
      inner: the Keras optimizer that applies the run's noisy gradients; its step counter
        also counts the tables' steps.
      secrets: secrets of the run, at a step at which the variables hold a release.
      memory: one array for each variable, see `LazyTable`; None for a new run.
      note: called with the step of each release before it is made.

    Attributes:
      due: later steps at which the run released before it was resumed, in order: it
        releases there again.
      num_releases: the number of releases in this process.
    """

    def __init__(
        self,
        variables: Sequence[Any],
        plan: Plan,
        inner: Any,
        secrets: SecretState,
        memory: Sequence[np.ndarray] | None = None,
        note: Callable[[int], None] = lambda step: None,
    ) -> None:
        self._variables, self._secrets, self._note = list(variables), secrets, note
        self._plan, self._inner = plan, inner
        self._is_bound, step = plan.test_seed is None, secrets.step
        self._has_memory = self._system(update_of(inner, False)).entries > 1
        if self._has_memory and step and memory is None:
            raise ValueError(
                "The memory of lazy tables' noise is missing: the run cannot go on. Resume "
                "from the newest checkpoint of its private state file."
            )
        self._first_step = step
        derived = hashlib.blake2b(
            secrets.key.secret_bytes(), digest_size=32, person=b"tf-bandmf tables"
        )
        secret = NoiseKey(derived.digest())
        count = 2 * (plan.num_steps + 1)
        keys = secret.step_keys(count, plan.generator)
        context = f"{plan.fingerprint} {environment()}"
        digests = digest_key(secret.secret_bytes(), context)
        with tf.init_scope():
            self._keys = tf.Variable(keys.copy().view(np.int64), trainable=False)
            self._digest_key = tf.Variable(digests.copy(), trainable=False)
            # Digests of the last release and of the optimizer's updates, for the chain.
            basis = tf.zeros([len(self._variables) + 1], tf.int64)
            self._basis = tf.Variable(basis, trainable=False)
            self._jumps: dict[LinearUpdate, Jumps] = {}
            self._tables = [
                self._table_of(number, variable, memory[number] if memory else None)
                for number, variable in enumerate(self._variables)
            ]
        # Digests of the variables after the last release; none for a new run, which may
        # have any weights.
        self._seal: list[int] = []
        if step:
            self._take_seal()
        self._released = step
        self._release_rows = Program(self._release, around=secrets.changing)
        self.num_releases = 0
        self.due: list[int] = []

    # The beginning of the run.

    def _system(self, update: LinearUpdate) -> RowSystem:
        plan = self._plan
        assert plan.expected_batch_size is not None
        noise = noise_system(plan.strategy.matrix)
        return row_system(
            noise, update, float(plan.noise_stddev), float(plan.expected_batch_size)
        )

    def _update(self, variable: Any) -> LinearUpdate:
        return update_of(self._inner, uses_weight_decay(self._inner, variable))

    def begin(self) -> None:
        """Prepares a step; before the run's first step, copies the variables' rows.

        Raises:
          InvalidArgumentError: if something else changed the tables of a resumed run.
          RuntimeError: if the run was resumed, and an earlier release cannot be repeated.
        """
        step = self._secrets.step
        if step == self._first_step and self.was_changed():
            refuse(step > 0, CHANGED)
            # The weights that a run begins from may have been loaded since it was built.
            self._replace_rows()
            self._take_seal()
        while self.due and self.due[0] <= step:
            due = self.due.pop(0)
            if due != step:
                raise RuntimeError(
                    f"Before it was resumed, this run released its tables at step {due}, "
                    f"and must release them at this step again: use the same "
                    f"steps_per_execution, or resume from the newest checkpoint."
                )
            self.release()

    def _replace_rows(self) -> None:
        for table, variable in zip(self._tables, self._variables):
            table.replace_weights(tensorflow_value(variable))

    def _table_of(
        self, number: int, variable: Any, memory: np.ndarray | None
    ) -> LazyTable:
        update, step = self._update(variable), self._first_step
        if update not in self._jumps:
            system = self._system(update)
            self._jumps[update] = Jumps(system, self._plan.num_steps, step)
        raw, jumps = tensorflow_value(variable), self._jumps[update]
        return LazyTable(raw, jumps, number, step, memory)

    def _is_up_to_date(self, table: LazyTable, rows: tf.Tensor) -> tf.Tensor:
        return tf.equal(table.clocks_of(rows), self._now())

    def _now(self) -> tf.Tensor:
        """The coming step, int32; for use in programs."""
        return tf.cast(tf.convert_to_tensor(self._inner.iterations), tf.int32)

    @property
    def readers(self) -> dict[int, Reader]:
        """Functions that read the tables, for `clipped_gradient_sums`."""
        return {
            id(variable): _reader(
                table.weights_of, functools.partial(self._is_up_to_date, table)
            )
            for table, variable in zip(self._tables, self._variables)
        }

    # A step.

    def bring_up_to_date(self, looked_up: Sequence[tf.Tensor], step: tf.Tensor) -> None:
        """Adds the noise that rows have missed since they were last read.

        If this, `apply` or `release` is interrupted, the run has ended: rows may have a
        sum without its noise, or their noise twice.

        Args:
          looked_up: for each variable, row numbers [N] int64; negative numbers mean none.
          step: the admitted step, int64 scalar.
        """
        step = tf.cast(step, tf.int32)
        unique = [_each_once(ids)[0] for ids in looked_up]
        key = self._key(step, _READ, unique)
        for table, rows, window in zip(self._tables, unique, self._since_release(step)):
            table.bring_up_to_date(rows, window, key)

    def _since_release(self, step: tf.Tensor) -> list[Window]:
        """Returns each table's window of steps from the last release to this step."""
        windows = {id(j): j.since_release(step) for j in self._jumps.values()}
        return [windows[id(table.jumps)] for table in self._tables]

    def row_sums(self, sums: Sequence[tf.IndexedSlices]) -> list[RowSums]:
        """Adds up the values of repeated rows, and leaves out ids that are not rows.

        A row that was not brought up to date is left out, too: if it took the step, it
        would lose its missing noise. No contribution is lost by this: such a row reads as
        NaN, so that an example that looks it up contributes zero. The made-up example in
        an empty batch contributes zero, too.

        Args:
          sums: for each variable, the clipped sums by row.
        """
        rate = tf.cast(tf.convert_to_tensor(self._inner.learning_rate), tf.float64)
        return [
            RowSums(*self._added_up(table, slices), rate)
            for table, slices in zip(self._tables, sums, strict=True)
        ]

    def _added_up(
        self, table: LazyTable, slices: tf.IndexedSlices
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """The distinct rows that are up to date, [U], and their sums."""
        rows, places = _each_once(slices.indices)
        sums = _sums_at(slices.values, places, rows)
        kept = tf.where(self._is_up_to_date(table, rows))[:, 0]
        return tf.gather(rows, kept), tf.gather(sums, kept)

    def digest(self, sums: Sequence[RowSums], step: tf.Tensor) -> tf.Tensor:
        """The digest of a step's sums and rate, chained; int32, shape [2]."""
        before = [self._secrets.point_before(step)[None], self._basis.value()]
        before += [tf.bitcast(of_table.rate, tf.int64)[None] for of_table in sums]
        parts = [tf.reshape(tf.bitcast(tf.concat(before, axis=0), tf.int32), [-1])]
        for of_table in sums:
            flat = tf.bitcast(tf.reshape(of_table.sums, [-1]), tf.int32)
            parts += [tf.shape(of_table.rows), of_table.rows, flat]
        return digest_of_any_length(self._digest_key.value(), tf.concat(parts, axis=0))

    def apply(self, sums: Sequence[RowSums], step: tf.Tensor) -> None:
        """Takes the step with these sums; its noise is added when the rows are read."""
        step = tf.cast(step, tf.int32)
        for table, of_table in zip(self._tables, sums):
            table.add(of_table.rows, of_table.sums, step, of_table.rate)
        for jumps in self._jumps.values():
            jumps.advance(step, sums[0].rate)

    def _key(self, step: tf.Tensor, use: int, rows: Sequence[tf.Tensor]) -> tf.Tensor:
        """The key of a draw at a step, bound to the earlier sums, its use and its rows."""
        key = self._keys.sparse_read(2 * step + use)
        if self._is_bound:
            before = self._secrets.point_before(tf.cast(step, tf.int64))
            parts = [tf.bitcast(before, tf.int32), tf.constant([use])]
            for read in rows:
                parts += [tf.shape(read), read]
            words = tf.concat(parts, axis=0)
            digest = digest_of_any_length(self._digest_key.value(), words)
            key = self._secrets.generator.bound_key(key, tf.bitcast(digest, tf.int64))
        return tf.bitcast(key, tf.uint64)

    # Releases.

    @property
    def steps_behind(self) -> int:
        """The number of steps since the last release."""
        return self._secrets.step - self._released

    def was_changed(self) -> bool:
        """True if the layers' variables are not those of the last release."""
        return self._digests() != self._seal

    def release(self) -> None:
        """Brings all rows up to date, and writes them into the layers' variables.

        Raises:
          InvalidArgumentError: if something else has changed the variables.
        """
        if not self.steps_behind:
            return
        refuse(self.was_changed(), CHANGED)
        self._note(self._secrets.step)
        self._release_rows(tf.constant(True))
        self._released = self._secrets.step
        self.num_releases += 1
        self._take_seal()

    def accept(self) -> None:
        """Accepts variables that something else changed; never called within a step."""
        if not self.was_changed():
            return
        self._release_rows(tf.constant(False))
        self._released = self._secrets.step
        self._replace_rows()
        self._take_seal()

    def _release(self, shows: tf.Tensor) -> None:
        step = self._now()
        key = self._key(step, _RELEASE, ())
        together = zip(self._tables, self._variables, self._since_release(step))
        for table, variable, window in together:
            table.release(tensorflow_value(variable), window, key, shows)
        for jumps in self._jumps.values():
            jumps.released(step)

    def remarks(self) -> list[str]:
        """Remarks of the statement."""
        names = ", ".join(str(variable.path) for variable in self._variables)
        return [
            f"The noise of tables ({names}) was drawn when their rows were read. The "
            f"numbers above hold for what was released: these tables {self.num_releases} "
            f"time(s) since the run was begun or resumed, all other weights at each step. "
            f"They do not hold for whoever sees the memory of the process."
        ]

    def memory(self) -> list[np.ndarray]:
        """The memory of each `LazyTable`, after a release, for the private state file."""
        if not (self._has_memory and self._secrets.step):
            return []
        return [table.memory().view(HiddenArray) for table in self._tables]

    def _digests(self) -> list[int]:
        return [digest_of([variable]) for variable in self._variables]

    def _take_seal(self) -> None:
        self._seal = self._digests()
        updates = repr([self._update(variable) for variable in self._variables])
        digest = hashlib.blake2b(updates.encode(), digest_size=8).digest()
        basis = [*self._seal, int.from_bytes(digest, "big", signed=True)]
        self._basis.assign(tf.constant(basis, tf.int64))


def _reader(read: Reader, is_up_to_date: Reader) -> Reader:
    """A reader that returns NaN for negative ids and for rows that are not up to date."""

    def checked(rows: tf.Tensor) -> tf.Tensor:
        places = tf.maximum(rows, 0)
        is_there = is_up_to_date(places) & (rows >= 0)
        # A product, because `tf.where` would copy the condition for each column.
        return read(places) * tf.where(is_there, 1.0, np.nan)[..., None]

    return checked


def _each_once(ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The distinct rows among the ids, int32; each id's place in them, or -1."""
    unique, places = tf.unique(tf.cast(ids, tf.int32))
    exists = unique >= 0
    # Products, because `tf.where` with a scalar is slower.
    is_row = tf.cast(exists, tf.int32)
    number = tf.cumsum(is_row) * is_row - 1
    return tf.gather(unique, tf.where(exists)[:, 0]), tf.gather(number, places)


def _sums_at(values: tf.Tensor, places: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Sums of values by row; those at negative places are left out."""
    if device_kind() != "CPU":
        return tf.math.unsorted_segment_sum(values, places, tf.shape(rows)[0])
    # If compiled by XLA, this takes a fifth of the time.
    count = tf.shape(values)[0]
    missing = near_length(count) - count
    values = tf.pad(values, [[0, missing], [0, 0]])
    places = tf.pad(places, [[0, missing]], constant_values=-1)
    return _compiled_sums(values, places)[: tf.shape(rows)[0]]


@shared_function(jit_compile=True)
def _compiled_sums(values: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Sums by place; the result has as many rows as there are values."""
    return tf.math.unsorted_segment_sum(values, places, tf.shape(values)[0])
