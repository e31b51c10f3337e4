"""Resuming a run: its secrets in a file of their own.

Checkpoints of a model hold no secret, so that they can be shared; and so a checkpoint
alone does not suffice to train on. What is missing is in the private state file: key,
seed of the sampler, kept noise vectors, and fingerprints of the weights that the run had
at the steps at which it was saved. Whoever reads it can remove the noise from all
checkpoints of the run.

Why resuming is safe: a run that was interrupted takes steps again which it had taken
after its last checkpoint. Noise that is used twice on different gradients cancels, and
gives the difference away. Therefore a run resumes only where step, weights, optimizer,
plan, data and their placement are those that it had there. Then batch and gradient are
the same, noise is the same, and what is released is the same as before. Two processes
that resume from one file release the same twice, too. What is left are operations that
are not deterministic (some on GPUs; `tf.config.experimental.enable_op_determinism` makes
them so) and callbacks that act on more than the run's own history.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tempfile
from typing import Any, NoReturn

import keras
import numpy as np
import tensorflow as tf

from tf_bandmf.keras.optimizer import PrivateOptimizer
from tf_bandmf.keras.secret_state import SecretState
from tf_bandmf.key_schedule import NoiseKey
from tf_bandmf.sampling.batches import BatchSchedule

_FORMAT = 1
# Keys of configurations whose values differ between models that are built alike.
_NAMES = (
    "name",
    "build_config",
    "inbound_nodes",
    "input_layers",
    "output_layers",
    "seed",
    "shared_object_id",
)


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

    __slots__ = ("_buffer", "_header", "_model", "_unconfirmed", "path", "resumed")

    def __init__(self, path: str, model: Any) -> None:
        self.path = os.fspath(path)
        self._model = model
        self._header: dict[str, Any] = {}
        self._buffer: np.ndarray | None = None
        self.resumed = False
        # Weights that the interrupted run had at steps which are taken again.
        self._unconfirmed: dict[str, str] = {}

    def begin(self, schedule: BatchSchedule) -> BatchSchedule:
        """Begins the run, or resumes it if the file exists.

        Args:
          schedule: the data, by `plan.batches`.

        Returns:
          The schedule of the run: with the sampler's seed that began it.

        Raises:
          ValueError: if the file is of another run, or does not know the weights.
          PermissionError: if others may read the file.
        """
        optimizer: PrivateOptimizer = self._model.optimizer
        if os.path.exists(self.path):
            self._read()
            return self._resume(optimizer, schedule)
        taken, step = (
            int(_value(optimizer.iterations)),
            int(optimizer.secret_state.step),
        )
        if taken != step:
            raise ValueError(
                f"The weights are those of step {taken} of a run, whose private state "
                f"file is not at {self.path}: without its key training would go on "
                f"with noise that the plan did not account for. Give the path of that "
                f"run's file, or start a new run from new weights."
            )
        seed = schedule.secret_seed()
        self._header = {
            "format": _FORMAT,
            "plan": optimizer.plan.fingerprint,
            "num_parameters": optimizer.generator.num_parameters,
            "optimizer": _optimizer_digest(optimizer),
            "computation": _computation(self._model),
            "model": _model_digest(self._model),
            "schedule_id": schedule.schedule_id,
            "sampler_seed": None if seed is None else seed.hex(),
            "key": optimizer.secret_state.key.secret_bytes().hex(),
            "weights": {},
            "random_states": {},
        }
        self.record()
        return schedule

    def record(self) -> None:
        """Writes down which weights the run has at this step: a checkpoint follows.

        Raises:
          RuntimeError: if a step was interrupted, or the run was resumed and is not the
            same any more.
        """
        optimizer: PrivateOptimizer = self._model.optimizer
        state = optimizer.secret_state
        step = int(state.step)
        if step != int(_value(optimizer.iterations)):
            raise RuntimeError(
                "A step was interrupted: these weights are of no step of the run, and "
                "it could not be resumed from them."
            )
        digest = _weights_digest(self._model)
        if self._unconfirmed.pop(str(step), digest) != digest:
            raise RuntimeError(
                f"The resumed run came to step {step} with other weights than the run "
                f"had before it was interrupted: what decides a step was changed, or is "
                f"not deterministic. Share no model from after the interruption "
                f"together with one from before: their noise is the same."
            )
        self._header["weights"][str(step)] = digest
        self._header["random_states"][str(step)] = [
            _value(variable).tolist() for variable in _random_states(self._model)
        ]
        self._header["buffer_step"] = step
        self._buffer = state.secret_tensors()["buffer"]
        self._write()

    def _resume(
        self, optimizer: PrivateOptimizer, schedule: BatchSchedule
    ) -> BatchSchedule:
        header = self._header
        for name, found, what in (
            ("plan", optimizer.plan.fingerprint, "plan"),
            ("num_parameters", optimizer.generator.num_parameters, "model"),
            ("optimizer", _optimizer_digest(optimizer), "inner optimizer"),
            (
                "computation",
                _computation(self._model),
                "microbatch_size or XLA setting",
            ),
            (
                "model",
                _model_digest(self._model),
                "loss, or layers with other settings",
            ),
        ):
            if header[name] != found:
                raise ValueError(
                    f"{self.path} is of a run with another {what}. A run is resumed "
                    f"with everything as it was; a new one needs a file of its own."
                )
        seed = header["sampler_seed"]
        schedule = schedule.continuing(None if seed is None else bytes.fromhex(seed))
        if schedule.schedule_id != header["schedule_id"]:
            raise ValueError(
                f"{self.path} is of a run on other data, or the same data in another "
                f"order. A run is resumed with the data that began it."
            )
        key = NoiseKey(bytes.fromhex(header["key"]))
        step, state = int(_value(optimizer.iterations)), optimizer.secret_state
        if int(state.step) == step and state.key.secret_bytes() == key.secret_bytes():
            return schedule  # The run goes on in the process that began it.
        known = header["weights"].get(str(step))
        # Keras' files do not hold what the next dropout masks follow from.
        states = header["random_states"].get(str(step), [])
        for variable, value in zip(_random_states(self._model), states):
            variable.assign(value)
        if known is None or known != _weights_digest(self._model):
            steps = ", ".join(header["weights"])
            raise ValueError(
                f"{self.path} does not know these weights at step {step}: noise must "
                f"not be used again with other weights. It knows those of the steps "
                f"{steps}, as model.save, model.save_weights, BackupAndRestore and "
                f"ModelCheckpoint saved them, with the optimizer."
            )
        generator = optimizer.generator
        buffer_step = header["buffer_step"] if step >= header["buffer_step"] else 0
        buffer = self._buffer if buffer_step else None
        with optimizer.strategy.scope():
            state = SecretState(generator, key, buffer_step, -1, buffer)
        # Noise of steps between is generated again, to have the vectors it keeps.
        if generator.memory_vectors and buffer_step < step:
            _replay(optimizer.strategy, state, step - buffer_step)
        buffer = state.secret_tensors()["buffer"]
        pinned = schedule.schedule_id if step else -1
        with optimizer.strategy.scope():
            optimizer.adopt(SecretState(generator, key, step, pinned, buffer))
        self._unconfirmed = {
            later: digest
            for later, digest in header["weights"].items()
            if int(later) > step
        }
        self.resumed = True
        return schedule

    def _read(self) -> None:
        mode = stat.S_IMODE(os.stat(self.path).st_mode)
        if os.name == "posix" and mode & 0o077:
            raise PermissionError(
                f"{self.path} holds the secrets of a run, but others may read it (mode "
                f"{mode:o}). If nobody did: chmod 600 {self.path}."
            )
        try:
            with open(self.path, "rb") as file:
                content = file.read()
            digest, content = content[:32], content[32:]
            if hashlib.sha256(content).digest() != digest:
                raise ValueError
            with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
                self._header = json.loads(arrays["header"].tobytes())
                self._buffer = arrays["buffer"]
            if self._header["format"] != _FORMAT:
                raise ValueError
        except (ValueError, KeyError, OSError, EOFError) as error:
            raise ValueError(
                f"{self.path} is no private state file of this version, or is damaged. "
                f"Its run cannot be resumed: start a new one, with its own budget."
            ) from error

    def _write(self) -> None:
        stream = io.BytesIO()
        header = np.frombuffer(json.dumps(self._header).encode(), np.uint8)
        assert self._buffer is not None  # set by record()
        np.savez(stream, header=header, buffer=self._buffer)
        content = stream.getvalue()
        folder = os.path.dirname(os.path.abspath(self.path))
        # Made with mode 0600, as mkstemp does, and complete before it has its name.
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=".private-state-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(content).digest())
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.path)
        except BaseException:
            os.unlink(temporary)
            raise
        if os.name == "posix":
            directory = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)

    def __repr__(self) -> str:
        return "PrivateRun(<secret>)"

    def __reduce__(self) -> NoReturn:
        raise TypeError("A run's private state is secret: it is not pickled or copied.")


def _replay(strategy: tf.distribute.Strategy, state: SecretState, steps: int) -> None:
    def step() -> tf.Tensor:
        return state.next_noise(tf.identity(state.step))[0]

    def once_more(done: tf.Tensor) -> tf.Tensor:
        strategy.run(step)
        return done + 1

    @tf.function(autograph=False)
    def again(count: tf.Tensor) -> None:
        tf.while_loop(lambda done: done < count, once_more, [tf.constant(0)])

    again(tf.constant(steps))


def _value(variable: Any) -> np.ndarray:
    """Of a Keras variable, on several replicas too."""
    return tf.convert_to_tensor(variable.value).numpy()


def _random_states(model: Any) -> list[Any]:
    """Variables of the seed generators of a model's layers."""
    weights = {id(variable) for variable in model.weights}
    return [variable for variable in model.variables if id(variable) not in weights]


def _weights_digest(model: Any) -> str:
    """Of everything that decides the next step: weights, seeds, optimizer."""
    digest = hashlib.blake2b(digest_size=32)
    for variable in [*model.variables, *model.optimizer.variables]:
        value = _value(variable)
        digest.update(f"{value.dtype}{value.shape}".encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    return digest.hexdigest()


def _computation(model: Any) -> list[Any]:
    """What decides how gradients are rounded: the same noise needs the same bits."""
    return [model._microbatch_size, bool(model.jit_compile), bool(model.run_eagerly)]


def _model_digest(model: Any) -> str:
    """Of the loss and of what the layers do, apart from names, which may change."""
    config = model.get_compile_config() or {}
    loss = [config.get("loss"), config.get("loss_weights")]
    layers = [
        [type(layer).__name__, layer.get_config()] for layer in model._flatten_layers()
    ]
    text = json.dumps(_without_names([loss, layers]), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def _without_names(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _without_names(item)
            for key, item in value.items()
            if key not in _NAMES and not callable(item)
        }
    if isinstance(value, (list, tuple)):
        return [_without_names(item) for item in value]
    return value


def _optimizer_digest(optimizer: PrivateOptimizer) -> str:
    inner = keras.optimizers.serialize(optimizer.inner_optimizer)
    config = {key: value for key, value in inner["config"].items() if key != "name"}
    # A plain learning rate is a variable, and saved with the weights.
    if isinstance(config.get("learning_rate"), float):
        del config["learning_rate"]
    text = json.dumps([inner["class_name"], config], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()
