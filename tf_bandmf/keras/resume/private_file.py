"""The private state file: stores the secrets of a run, so that the run can be resumed.

Checkpoints of a model contain no secrets, so that they can be shared. A run therefore
cannot be resumed from a checkpoint without the private state file. The file contains
the key, from which the sample, dropout masks and noise follow; a digest of each step,
called its point; the noise vectors that the generator keeps between steps; and digests
of the weights at each step at which the run was saved. Whoever reads the file can
remove the noise from all checkpoints of the run.

Resuming is safe. An interrupted run repeats the steps that it had taken after its last
checkpoint. The noise of a step is bound to the step's point, a digest of all sums and
batches up to that step (see `tf_bandmf.keras.run.secrets`). If a repeated step is the
same as before, it gets the same noise, and nothing new is released. If it differs, it
gets independent noise. Therefore the same noise is never added to different sums, even
if the file is copied or restored from an old backup, the process is forked, or the
machine is restored from a snapshot.

All other checks protect the accounting. A run must keep its plan, its data set and the
order of the data, and only training that the plan accounts for may change its weights.
The file records the point of each step before the step's noisy gradient is released
(see `tf_bandmf.files.journal`). A repeated step whose point differs from the recorded
point is refused, because it would get other noise, and so begin a second run.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from typing import Any

import numpy as np

from tf_bandmf.files import locks
from tf_bandmf.files import private as private_files
from tf_bandmf.files.hidden import HiddenArray, HiddenBytes, HiddenDict
from tf_bandmf.files.journal import Journal
from tf_bandmf.keras.run.secrets import SecretState
from tf_bandmf.keras.run.weights_seal import host_digest
from tf_bandmf.noise.keys import NoiseKey, Secret
from tf_bandmf.sampling.batches import BatchSchedule

_FORMAT = 14
# Attributes of a run that its private state file stores unchanged.
_OF_RUN = ("vouched", "initial_weights", "were_loaded", "resumed")


class PrivateFile(Secret):
    """The file that stores the secrets of a run.

    Args:
      path: path of the file. It is created with mode 0600, and replaced atomically, so
        it is never half-written.
      model: private, compiled and built, with a built optimizer.

    Attributes:
      path: absolute path of the file, without symbolic links.
      run: the run whose secrets the file stores.
      resumed: True if the weights came from a checkpoint of the run.
    """

    def __init__(self, path: str | os.PathLike[str], model: Any) -> None:
        self.path = os.path.realpath(path)
        self.resumed = False
        self._model, self.run = model, model.optimizer.run
        self._file = Journal(self.path)
        self._lock: locks.Lock | None = None
        # The file contains JSON values, the noise buffer, and the states of the lazy
        # tables' rows.
        self._header = HiddenDict()
        self._arrays: dict[str, np.ndarray] = {}

    def begin(self, schedule: BatchSchedule) -> BatchSchedule:
        """Begins the run, or resumes it if the file exists.

        Args:
          schedule: the data, from `plan.batches`.

        Returns:
          The schedule of the run, with the sample that follows from the run's key.

        Raises:
          ValueError: if the file belongs to another run, or has no record of the weights.
          PermissionError: if others may read the file.
          BlockingIOError: if another process uses the file.
        """
        # Without the lock, two processes could begin the run with different keys.
        self._lock = locks.hold(self.path)
        private_files.remove_unfinished(self.path)
        is_there = os.path.exists(self.path)
        schedule = (self._resumed if is_there else self._begun)(schedule)
        run = self.run
        run.secrets.note = self._file.append
        for name, values in self._header["notes"].items():
            run.notes[name].update(values)
        return schedule

    def record(self) -> None:
        """Records the run's weights at this step, before a checkpoint is written.

        Raises:
          InvalidArgumentError: if a step was interrupted.
        """
        run, header = self.run, self._header
        run.refuse_restored()
        header["buffer_step"] = run.secrets.step
        header["weights"][str(run.secrets.step)] = _weights_digest(self._model)
        header |= {name: getattr(run, name) for name in _OF_RUN}
        memory = [] if run.tables is None else run.tables.memory()
        self._arrays = {f"memory{i:06}": one for i, one in enumerate(memory)}
        self._arrays["buffer"] = run.secrets.buffer
        self.write()

    def _begun(self, schedule: BatchSchedule) -> BatchSchedule:
        run = self.run
        schedule = run.batches(schedule.join(run.key.sampler_seed()))
        self._header = HiddenDict(
            format=_FORMAT,
            plan=run.plan.fingerprint,
            schedule_id=schedule.schedule_id,
            key=run.key.secret_bytes().hex(),
            weights={},
        )
        self.record()
        return schedule

    def _resumed(self, schedule: BatchSchedule) -> BatchSchedule:
        points = self._read()
        header, run = self._header, self.run
        if header["plan"] != run.plan.fingerprint:
            raise ValueError(
                f"{self.path} belongs to a run with another plan. Resume that run with its "
                f"own plan; for a new run, pass another private_state."
            )
        key = NoiseKey(HiddenBytes(bytes.fromhex(header["key"])))
        schedule = schedule.join(key.sampler_seed())
        if schedule.schedule_id != header["schedule_id"]:
            raise ValueError(
                f"{self.path} belongs to a run on other data, or on these data in another "
                f"order. Pass the same data; for a new run, pass another private_state."
            )
        step, state = run.iterations, run.secrets
        if state.step == step and state.key.secret_bytes() == key.secret_bytes():
            # This process already has the state of the run.
            return schedule
        if header["weights"].get(str(step)) != _weights_digest(self._model):
            steps = ", ".join(header["weights"])
            raise ValueError(
                f"{self.path} does not record these weights at step {step}, and a run must "
                f"not repeat its noise with other weights. Load a checkpoint of one of the "
                f"steps {steps}, saved with the optimizer. To restart at step 0, make the "
                f"same initial weights with keras.utils.set_random_seed(seed)."
            )
        kept = header["buffer_step"]
        memory = [one for name, one in self._arrays.items() if name != "buffer"]
        if memory and step != kept:
            raise ValueError(
                f"{self.path} has the noise of lazy tables only for step {kept}, but the "
                f"loaded weights are those of step {step}. Resume from the newest "
                f"checkpoint."
            )
        # The noise of the steps from `start` to `step` is drawn again, to restore the
        # noise buffer.
        start, buffer = (kept, self._arrays["buffer"]) if kept <= step else (0, None)
        if not run.noising.generator.memory_vectors:
            start = step
        state = SecretState(run.noising, key, run.plan, start, buffer, points)
        state.replay(step)
        run.adopt(state, memory)
        # The file records that these weights belong to the run, so the run may start.
        run.start()
        run.close_seal()
        for name in _OF_RUN:
            setattr(run, name, header[name])
        header["resumed"] = run.resumed = (*header["resumed"], step)
        self.resumed = True
        return schedule

    def _read(self) -> HiddenArray:
        """Reads the file; returns the points (digests) of all steps, int64.

        The point of a step that the file does not contain is 0.
        """
        try:
            content, entries = self._file.read()
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                hidden = {name: arrays[name].view(HiddenArray) for name in arrays.files}
            self._header = HiddenDict(json.loads(hidden.pop("header").tobytes()))
            points, self._arrays = hidden.pop("points"), hidden
            version = self._header["format"]
        except PermissionError:
            raise
        except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile):
            # The original error is not shown, because it may quote the secret content.
            version = None
        if version != _FORMAT:
            raise ValueError(
                f"{self.path} is damaged, or is not a private state file of this version "
                f"of tf-bandmf (format {_FORMAT}). Resume the run with the version that "
                f"began the run, or start a new run, with its own budget."
            )
        noted = np.frombuffer(HiddenBytes(b"".join(entries)), "<i8").view(HiddenArray)
        steps, their_points = noted[::2], noted[1::2]
        size = max(len(points), steps.max(initial=-1) + 1)
        together = np.zeros([size], np.int64).view(HiddenArray)
        together[steps] = their_points
        np.copyto(together[: len(points)], points, where=points != 0)
        if (together[steps] != their_points).any():
            raise ValueError(
                f"{self.path} records the same step twice, with different gradients. Two "
                f"processes continued this run (after a fork, or on a copied machine), "
                f"each with its own noise, so they count as two runs. Start a new run, "
                f"with its own budget."
            )
        return together

    def write(self) -> None:
        """Writes the recorded state to the file, with the current points and notes."""
        notes = {name: sorted(values) for name, values in self.run.notes.items()}
        self._header["notes"] = notes
        stream = io.BytesIO()
        text = HiddenBytes(json.dumps(self._header).encode())
        header = np.frombuffer(text, np.uint8).view(HiddenArray)
        # If an earlier step was resumed, the digests of later steps are kept here.
        points = self.run.secrets.points()
        arrays: Any = self._arrays
        np.savez(stream, header=header, points=points, **arrays)
        self._file.replace(HiddenBytes(stream.getvalue()))


def _weights_digest(model: Any) -> int:
    """Returns a digest of the weights and the optimizer's variables."""
    return host_digest([*model.weights, *model.optimizer.variables])
