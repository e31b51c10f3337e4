"""Resuming a run: its secrets in a file of their own.

Checkpoints of a model hold no secret, so that they can be shared; and so a checkpoint
alone does not suffice to train on. What is missing is in the private state file: the key,
from which sample, masks and noise follow, the points of its steps, kept noise vectors, and
fingerprints of the weights that the run had at the steps at which it was saved. Whoever
reads it can remove the noise from all checkpoints of the run.

Why resuming is safe: a run that was interrupted takes steps again which it had taken
after its last checkpoint. The noise of a step is bound to its point, which follows from all
sums and batches up to it (see `tf_bandmf.keras.run.secrets`): the same step gets the
same noise, and nothing new is released; another one gets independent noise. So is it with
copies of the file, old backups of it, forks of a process and snapshots of a machine: no two
releases share noise on different sums.

What else is checked is for the accounting, not for the noise: a run has one plan, one
data set in one order, and weights that no unaccounted training changed. The file has the
point of each step before anything of it is released (see `tf_bandmf.files.journal`). A step
that it knows, and that is another one now, is refused: with independent noise it would be a
second run from there on.
"""

from __future__ import annotations

import io
import json
import os
import zipfile
from typing import Any, NoReturn

import numpy as np

from tf_bandmf.files import locks
from tf_bandmf.files import private as private_files
from tf_bandmf.files.hidden import HiddenArray, HiddenBytes, HiddenDict
from tf_bandmf.files.journal import Journal
from tf_bandmf.keras.optimizer.private import PrivateOptimizer
from tf_bandmf.keras.resume import identity
from tf_bandmf.keras.run.callbacks import each_callback
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.sampling.batches import BatchSchedule

_FORMAT = 11


class PrivateRun:
    """A run whose secrets are kept in a file.

    Args:
      path: of the file. It is created with mode 0600, replaced as a whole, and never
        written half.
      model: private, compiled and built, with a built optimizer.

    Attributes:
      path: of the file.
      resumed: whether the weights came from a checkpoint of the run.
    """

    __slots__ = (
        "_buffer",
        "_file",
        "_header",
        "_lock",
        "_memory",
        "_model",
        "_noted",
        "_points",
        "path",
        "resumed",
    )

    def __init__(self, path: str, model: Any) -> None:
        self.path = os.fspath(path)
        self._model = model
        self._header = HiddenDict()
        self._buffer: np.ndarray | None = None
        self.resumed = False
        self._lock: locks.Lock | None = None
        # Rows of tables whose noise is drawn when they are read.
        self._memory: list[np.ndarray] = []
        self._file = Journal(self.path)
        # The steps that were taken when the file was written last, and those since.
        self._points: np.ndarray | None = None
        self._noted = bytearray()

    def begin(self, schedule: BatchSchedule) -> BatchSchedule:
        """Begins the run, or resumes it if the file exists.

        Args:
          schedule: the data, by `plan.batches`.

        Returns:
          The schedule of the run: its sample follows from the key.

        Raises:
          ValueError: if the file is of another run, or does not know the weights.
          PermissionError: if others may read the file.
          BlockingIOError: if another process uses the file.
        """
        optimizer: PrivateOptimizer = self._model.optimizer
        # Two that began the run at once would each have a key of its own.
        self._lock = locks.hold(self.path)
        folder, name = os.path.split(os.path.abspath(self.path))
        private_files.remove_unfinished(folder, name)
        if os.path.exists(self.path):
            self._read()
            return self._resume(optimizer, schedule)
        run = optimizer.run
        taken = int(optimizer.run.iterations)
        if run.is_restored():
            raise ValueError(
                f"The weights are those of step {taken} of a run, whose private state "
                f"file is not at {self.path}: without its key training would go on "
                f"with noise that the plan did not account for. Give the path of that "
                f"run's file, or start a new run from new weights."
            )
        schedule = schedule.join(run.key.sampler_seed())
        if run.schedule_id not in (-1, schedule.schedule_id):
            raise ValueError(
                "The run began with other data, or in a custom loop with batches that no "
                "run had drawn, whose sample does not follow from the run's key: it could "
                "not be resumed. Begin a custom loop with batches = "
                "model.begin_run(plan.batches(x, y), private_state)."
            )
        self._header = HiddenDict(
            format=_FORMAT,
            plan=optimizer.plan.fingerprint,
            num_parameters=run.generator.num_parameters,
            schedule_id=schedule.schedule_id,
            key=run.secrets.key.secret_bytes().hex(),
            weights={},
            resumed=[],
        )
        self.record()
        self._watch()
        return schedule

    def is_elsewhere(self, path: str | os.PathLike[str]) -> bool:
        """Whether the model's run is kept here, and `path` is another file."""
        key = self._model.optimizer.run.secrets.key.secret_bytes()
        return self._secret("key") == key and (
            os.path.realpath(path) != os.path.realpath(self.path)
        )

    def note_release(self, step: int) -> None:
        """Writes down that tables are released at a step, before they are.

        A run that is resumed from an earlier step releases them there, too: else it would
        be another history of the run, with noise of its own.
        """
        releases = self._header.setdefault("releases", [])
        if step not in releases:
            releases.append(step)
            self._write()

    def note_evaluation(self, evaluation: str) -> None:
        """Writes down that a private evaluation is spent, before it is released."""
        self._note_evaluations(evaluation)
        self._write()

    def _note_evaluations(self, *more: str) -> None:
        spent = self._model.optimizer.run.evaluations.spent.union(more)
        if spent:
            self._header["evaluations"] = sorted(spent)

    def note_step(self, entry: bytes) -> None:
        """Writes down a step before its noise is drawn; see `SecretState.watch`."""
        self._file.append(entry)
        self._noted += entry

    def _watch(self) -> None:
        self._model.optimizer.run.secrets.watch(self.note_step)
        spent = self._header.get("evaluations", ())
        self._model.optimizer.run.evaluations.watch(self.note_evaluation, spent)
        tables = self._model.optimizer.run.tables
        if tables is not None:
            tables.watch_releases(self.note_release, self._header.get("releases", ()))

    def record(self) -> None:
        """Writes down which weights the run has at this step: a checkpoint follows.

        Raises:
          RuntimeError: if a step was interrupted.
        """
        optimizer: PrivateOptimizer = self._model.optimizer
        run = optimizer.run
        state = run.secrets
        step = state.step
        if run.is_restored():
            raise RuntimeError(
                "A step was interrupted: these weights are of no step of the run, and "
                "it could not be resumed from them."
            )
        digest = identity.weights_digest(self._model)
        self._header["weights"][str(step)] = digest
        self._header["buffer_step"] = step
        self._header["vouched"] = list(run.vouched)
        self._header["initial_weights"] = run.initial_weights
        self._header["were_loaded"] = run.were_loaded
        self._note_evaluations()
        # Steps that the run took, before it was resumed from an earlier one, stay known.
        self._buffer, self._points = state.secret_tensors()["buffer"], state.points()
        tables = run.tables
        self._memory = [] if tables is None else tables.memory()
        self._write()

    def _resume(
        self, optimizer: PrivateOptimizer, schedule: BatchSchedule
    ) -> BatchSchedule:
        header, run = self._header, optimizer.run
        for name, found, what in (
            ("plan", optimizer.plan.fingerprint, "plan"),
            ("num_parameters", run.generator.num_parameters, "model"),
        ):
            if header[name] != found:
                raise ValueError(
                    f"{self.path} is of a run with another {what}. A run is resumed "
                    f"with everything as it was; a new one needs a file of its own."
                )
        key = NoiseKey(self._secret("key") or b"")
        schedule = schedule.join(key.sampler_seed())
        if schedule.schedule_id != header["schedule_id"]:
            raise ValueError(
                f"{self.path} is of a run on other data, or the same data in another "
                f"order. A run is resumed with the data that began it."
            )
        step = int(optimizer.run.iterations)
        state = run.secrets
        if state.step == step and state.key.secret_bytes() == key.secret_bytes():
            # The run goes on in the process that began it, and is noted here from now on.
            self._watch()
            return schedule
        known = header["weights"].get(str(step))
        if known is None or known != identity.weights_digest(self._model):
            steps = ", ".join(header["weights"])
            raise ValueError(
                f"{self.path} does not know these weights at step {step}: noise must "
                f"not be used again with other weights. It knows those of the steps "
                f"{steps}, as model.save, model.save_weights, BackupAndRestore and "
                f"ModelCheckpoint saved them, with the optimizer. A program that starts "
                f"again makes the same weights after keras.utils.set_random_seed(seed)."
            )
        points = self._known_points()
        start = header["buffer_step"] if step >= header["buffer_step"] else 0
        state = run.secrets_of(
            key, step=start, buffer=self._buffer if start else None, points=points
        )
        # Noise of steps between is generated again, to have the vectors it keeps.
        if run.generator.memory_vectors:
            state.replay(range(start, step))
        buffer = state.secret_tensors()["buffer"]
        pinned = schedule.schedule_id if step else -1
        if self._memory and step != header["buffer_step"]:
            raise ValueError(
                f"{self.path} has what rows of tables remember of their noise at step "
                f"{header['buffer_step']} alone, and these weights are of step {step}. "
                f"Resume from the newest checkpoint."
            )
        state = run.secrets_of(
            key, step=step, schedule_id=pinned, buffer=buffer, points=points
        )
        run.adopt(state, self._memory or None)
        # The file knows these weights as the run's own.
        run.seal.is_open = True
        run.close_seal(self._model.weights)
        run.vouched = tuple(header["vouched"])
        run.initial_weights = header["initial_weights"]
        run.were_loaded = header["were_loaded"]
        header["resumed"].append(step)
        run.resumed = tuple(header["resumed"])
        self.resumed = True
        self._watch()
        return schedule

    def _known_points(self) -> np.ndarray:
        """Points of all steps that the run is known to have taken; 0 if not known."""
        noted, points = self._entries(), self._points
        assert points is not None
        size = max(len(points), noted[:, 0].max(initial=-1) + 1)
        known = np.zeros([size], np.int64).view(HiddenArray)
        known[noted[:, 0]] = noted[:, 1]
        np.copyto(known[: len(points)], points, where=points != 0)
        return known

    def _entries(self) -> np.ndarray:
        """Steps and points since the file was written last, int64, shape [entries, 2]."""
        content = HiddenBytes(self._noted)
        return np.frombuffer(content, "<i8").reshape(-1, 2).view(HiddenArray)

    def _secret(self, name: str) -> HiddenBytes | None:
        text = self._header[name]
        return None if text is None else HiddenBytes(bytes.fromhex(text))

    def _read(self) -> None:
        try:
            content, entries = self._file.read()
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                self._header = HiddenDict(json.loads(arrays["header"].tobytes()))
                self._buffer = arrays["buffer"].view(HiddenArray)
                self._points = arrays["points"].view(HiddenArray)
                count = sum(name.startswith("memory") for name in arrays.files)
                self._memory = [
                    arrays[f"memory{i}"].view(HiddenArray) for i in range(count)
                ]
            found = self._header["format"]
        except PermissionError:
            raise
        except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile):
            found = None  # The error itself may have the content.
        if found != _FORMAT:
            raise ValueError(
                f"{self.path} is no private state file of this version (format {_FORMAT}), "
                f"or is damaged: resume the run with the version that began it, or start a "
                f"new one, with its own budget."
            )
        self._noted = bytearray(b"".join(entries))
        noted = self._entries()
        if (self._known_points()[noted[:, 0]] != noted[:, 1]).any():
            raise ValueError(
                f"{self.path} has a step twice, with different sums: two processes went on "
                f"with one run (a fork, a copied machine), each with noise of its own. "
                f"Their releases are those of two runs. Start a new one, with its own "
                f"budget."
            )

    def _write(self) -> None:
        stream = io.BytesIO()
        text = HiddenBytes(json.dumps(self._header).encode())
        header = np.frombuffer(text, np.uint8).view(HiddenArray)
        assert self._buffer is not None and self._points is not None  # by record()
        memory: dict[str, Any] = {
            f"memory{i}": array for i, array in enumerate(self._memory)
        }
        self._points = self._known_points()
        np.savez(
            stream, header=header, buffer=self._buffer, points=self._points, **memory
        )
        self._file.replace(HiddenBytes(stream.getvalue()))
        self._noted.clear()

    def __repr__(self) -> str:
        return "PrivateRun(<secret>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("A run's private state is secret: it is not pickled or copied.")


def refuse_shared_folder(path: str | os.PathLike[str], callbacks: Any) -> None:
    """Raises ValueError if the file would be where a callback writes what is shared.

    Besides, `BackupAndRestore` deletes its folder when training has ended.
    """
    file = os.path.realpath(path)
    for callback in each_callback(callbacks):
        for folder, below in _folders_of(callback):
            inside = os.path.commonpath([file, folder]) == folder
            if os.path.dirname(file) == folder or (below and inside):
                raise ValueError(
                    f"private_state={os.fspath(path)!r} is in the folder of "
                    f"{type(callback).__name__}, which is shared or deleted: whoever "
                    f"reads it can remove the noise. Put it elsewhere."
                )


def _folders_of(callback: Any) -> list[tuple[str, bool]]:
    """Where a callback writes, and whether the folders below are its, too."""
    found = []
    for attribute in ("backup_dir", "log_dir"):
        folder = getattr(callback, attribute, None)
        if isinstance(folder, (str, os.PathLike)):
            found.append((os.path.realpath(folder), True))
    file = getattr(callback, "filepath", None)
    if isinstance(file, (str, os.PathLike)):
        # The part before the first placeholder, as in "models/{epoch}/weights.h5".
        fixed = os.path.dirname(os.fspath(file).split("{", maxsplit=1)[0])
        folder, here = os.path.realpath(fixed), os.path.realpath("")
        found.append((folder, os.path.commonpath([folder, here]) != folder))
    return found
