"""Saves or compares noise and final weights of small private runs with fixed seeds.

    python benchmarks/same_runs.py --save before.json
    python benchmarks/same_runs.py --compare before.json
    python benchmarks/same_runs.py --save before.json --only poisson # only these runs

Run the program with two versions of the library (set `PYTHONPATH`) on one machine. A
change of the library that promises the same behavior must not change any bits. If a
change alters the order of summation, the program prints the difference between the
weights. The file `benchmarks/results/same_runs.json` names the machine that produced
it, because other machines may round differently.
"""

from __future__ import annotations

import argparse
import base64
import dataclasses
import hashlib
import json
import os
import pathlib
import platform
import sys
import tempfile
from typing import Any, Callable

os.environ.setdefault("TF_BANDMF_CACHE", "off")

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf import noise
from tf_bandmf.noise.keys import NoiseKey

NUM_EXAMPLES, BATCH_SIZE, EPOCHS, WIDTH, CLASSES = 24, 4, 2, 6, 3
NUM_STEPS = NUM_EXAMPLES // BATCH_SIZE * EPOCHS
ROWS_PER_USER = 2
# The vocabulary size of models with integer inputs.
WORDS = 7


def sequential(*inner: Any) -> keras.Model:
    return keras.Sequential([keras.Input((WIDTH,)), *inner, layers.Dense(CLASSES)])


def dense() -> keras.Model:
    return sequential(layers.Dense(5, "tanh"))


def dropout() -> keras.Model:
    return sequential(layers.Dense(8), layers.Dropout(0.3))


def convolution() -> keras.Model:
    image = layers.Reshape((3, 2, 1))
    return sequential(image, layers.Conv2D(4, 2, activation="relu"), layers.Flatten())


def embedding() -> keras.Model:
    return sequential(layers.Embedding(WORDS, 4), layers.GlobalAveragePooling1D())


def recurrent() -> keras.Model:
    return sequential(layers.Reshape((WIDTH, 1)), layers.LSTM(4))


def attention() -> keras.Model:
    inputs = keras.Input((WIDTH,))
    x = layers.Dense(4)(layers.Reshape((WIDTH, 1))(inputs))
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 2)(x, x))
    return keras.Model(inputs, layers.Dense(CLASSES)(layers.Flatten()(x)))


def adapters() -> keras.Model:
    model = sequential(
        layers.Embedding(WORDS, 4), layers.Flatten(), layers.Dense(8, "tanh")
    )
    for layer in model.layers:
        if hasattr(layer, "enable_lora"):
            layer.enable_lora(2)
    return model


def sgd() -> keras.optimizers.Optimizer:
    return keras.optimizers.SGD(0.1, momentum=0.9)


@dataclasses.dataclass(frozen=True)
class Run:
    """A private run with a fixed seed.

    Attributes:
      model, inner: functions that build the network and Keras' optimizer.
      plan, private, make, batches, fit, compile: further arguments of `plan`,
        `PrivateOptimizer`, `make_private`, `Plan.batches`, `fit` and `compile`,
        respectively.
      reserve: arguments of `Plan.reserve`.
      policy: dtype policy of the layers.
      replicas: number of logical devices.
      is_resumed: True if a second model resumes from the private file and runs the
        second epoch.
    """

    mechanism: str = "bsr:3"
    model: Callable[[], keras.Model] = dense
    inner: Callable[[], keras.optimizers.Optimizer] = sgd
    plan: dict[str, Any] = dataclasses.field(default_factory=dict)
    private: dict[str, Any] = dataclasses.field(default_factory=dict)
    make: dict[str, Any] = dataclasses.field(default_factory=dict)
    batches: dict[str, Any] = dataclasses.field(default_factory=dict)
    fit: dict[str, Any] = dataclasses.field(default_factory=dict)
    compile: dict[str, Any] = dataclasses.field(default_factory=dict)
    reserve: dict[str, Any] = dataclasses.field(default_factory=dict)
    policy: str = "float32"
    replicas: int = 1
    is_resumed: bool = False


MECHANISMS = (
    *("identity", "tree", "bsr:3", "bsr:3:normalized", "bisr:3", "bisr:3:normalized"),
    *("bifr:2:0.6", "lambda_cgd:0.5", "lambda_cgd:0.5:normalized", "bandinv:2"),
    *("toeplitz:3", "banded:3", "blt:2", "dense"),
)
SAMPLINGS = {
    "shuffled": "bsr:3",
    "poisson": "identity",
    "cyclic-poisson": "bsr:2",
    "cyclic-fixed-size": "bsr:2",
    "balls-in-bins": "bisr:2",
    "b-min-sep": "bsr:2",
}
RUNS = {
    **{f"mechanism {name}": Run(name) for name in MECHANISMS},
    **{
        f"sampling {name}": Run(mechanism, plan={"sampling": name})
        for name, mechanism in SAMPLINGS.items()
    },
    "chacha20": Run("bsr:2", plan={"generator": "chacha20"}),
    "clip norm": Run(plan={"l2_norm_clip": 0.5}),
    "normals kept": Run("bisr:3", private={"keep_normals": True}),
    "dropout": Run(model=dropout),
    "convolution": Run(model=convolution),
    "convolution, padded": Run(
        "bisr:2",
        model=convolution,
        plan={"sampling": "balls-in-bins"},
        batches={"padded": True},
    ),
    "embedding": Run(model=embedding),
    "embedding, lazy": Run(
        "lambda_cgd:0.5",
        model=embedding,
        inner=lambda: keras.optimizers.SGD(0.1),
        make={"tables": "lazy"},
    ),
    "LSTM": Run("blt:2", model=recurrent),
    "attention": Run("bandinv:2", model=attention),
    "attention, XLA": Run("bisr:2", model=attention, compile={"jit_compile": True}),
    "adapters": Run(model=adapters),
    "Adam": Run("bisr:3", inner=lambda: keras.optimizers.Adam(0.01, use_ema=True)),
    "users": Run(plan={"unit": "one user"}),
    "bfloat16": Run(policy="mixed_bfloat16"),
    "float16": Run(policy="mixed_float16", private={"loss_scale_factor": 64.0}),
    "two replicas": Run(replicas=2),
    "two replicas, lambda_cgd": Run("lambda_cgd:0.5", replicas=2),
    "microbatches": Run(make={"microbatch_size": 2}),
    "automatic clipping": Run(private={"clipping": "automatic"}),
    "groups": Run(
        private={"clipping": tf_bandmf.keras.Clipping(groups="layers")},
    ),
    "class weights": Run(fit={"class_weight": {0: 1.0, 1: 0.5, 2: 0.25}}),
    "counts": Run(reserve={"counts": 0.05}),
    "resumed": Run(is_resumed=True),
    "resumed, LSTM, lambda_cgd": Run(
        "lambda_cgd:0.5", model=recurrent, is_resumed=True
    ),
}


def trained(run: Run) -> dict[str, str]:
    """Trains a model; returns its weights, and a digest of its first noise vectors."""
    given = {"sampling": "fixed-order", **run.plan}
    generator = given.pop("generator", "philox")
    plan = tf_bandmf.plan(
        run.mechanism,
        **_budget(run),
        num_examples=NUM_EXAMPLES,
        batch_size=BATCH_SIZE,
        epochs=EPOCHS,
        **given,
    )
    plan = dataclasses.replace(plan, test_seed=7, generator=generator)
    if run.reserve:
        plan = plan.reserve(**run.reserve)
    generator = noise.NoiseGenerator(plan.strategy, 50, generator=plan.generator)
    state = generator.initial_state(NoiseKey.for_testing(7))
    digest = hashlib.sha256()
    for step in range(NUM_STEPS):
        row, state = generator.next(state, tf.constant(step, tf.int64))
        digest.update(np.ascontiguousarray(row.numpy()).tobytes())
    weights = np.concatenate([np.ravel(w) for w in _weights(run, plan)])
    return {
        "noise": digest.hexdigest()[:16],
        "weights": base64.b64encode(weights.astype("<f4").tobytes()).decode(),
    }


def _budget(run: Run) -> dict[str, float]:
    # For these samplings, plans are made from an epsilon, not a noise multiplier.
    if run.plan.get("sampling", "").startswith(("cyclic", "b-min-sep")):
        return {"epsilon": 8.0, "delta": 1e-5}
    return {"noise_multiplier": 1.0, "delta": 1e-5}


def _weights(run: Run, plan: tf_bandmf.Plan) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    rows = NUM_EXAMPLES * (ROWS_PER_USER if run.plan.get("unit") else 1)
    x = rng.normal(size=(rows, WIDTH)).astype(np.float32)
    if run.model in (embedding, adapters):
        x = rng.integers(0, WORDS, (rows, WIDTH))
    y = rng.integers(0, CLASSES, rows)
    given = dict(run.batches)
    if run.plan.get("unit"):
        users = np.arange(rows) // ROWS_PER_USER
        given |= {"users": users, "rows_per_user": ROWS_PER_USER}
    with tempfile.TemporaryDirectory() as folder:
        fit = dict(run.fit)
        if run.is_resumed:
            fit["private_state"] = os.path.join(folder, "private")
            backup = os.path.join(folder, "backup")
            keep = {"save_freq": "epoch", "delete_checkpoint": False}
            fit["callbacks"] = [keras.callbacks.BackupAndRestore(backup, **keep)]
            _compiled(run, plan).fit(plan.batches(x, y, **given), verbose=0, **fit)
        model = _compiled(run, plan)
        batches = plan.batches(x, y, **given)
        model.fit(batches, epochs=EPOCHS, verbose=0, **fit)
        assert model.optimizer.steps_taken == NUM_STEPS
    return tf_bandmf.keras.to_plain(model).get_weights()


def _compiled(run: Run, plan: tf_bandmf.Plan) -> keras.Model:
    keras.utils.set_random_seed(1)
    keras.config.set_dtype_policy(run.policy)
    scope = tf.distribute.get_strategy()
    if run.replicas > 1:
        devices = [f"CPU:{i}" for i in range(run.replicas)]
        scope = tf.distribute.MirroredStrategy(devices)
    with scope.scope():
        model = tf_bandmf.keras.make_private(run.model(), **run.make)
        private = {"additional_run": True, **run.private}
        optimizer = tf_bandmf.keras.PrivateOptimizer(run.inner(), plan, **private)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer, loss, **{"jit_compile": False, **run.compile})
    keras.config.set_dtype_policy("float32")
    return model


def machine() -> str:
    """Describes the processor and the libraries, which may change the last bits."""
    processor = platform.processor() or platform.machine()
    info = pathlib.Path("/proc/cpuinfo")
    if info.exists():
        lines = info.read_text(encoding="utf-8").splitlines()
        models = [line for line in lines if line.startswith("model name")]
        processor = models[0].partition(":")[2].strip() if models else processor
    return f"{processor}; TensorFlow {tf.__version__}, Keras {keras.__version__}"


def difference(before: dict[str, str], now: dict[str, str]) -> str:
    """Describes how two runs differ, or returns an empty text if they are equal."""
    if before == now:
        return ""
    words = [] if before["noise"] == now["noise"] else ["other noise"]
    old, new = (
        np.frombuffer(base64.b64decode(run["weights"]), "<f4") for run in (before, now)
    )
    if old.shape != new.shape:
        words.append("other shapes")
    elif not np.array_equal(old, new):
        largest = np.max(np.abs(new - old)) / np.max(np.abs(old))
        words.append(f"weights differ by {largest:.1e} of the largest weight")
    return ", ".join(words)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", metavar="FILE")
    parser.add_argument("--compare", metavar="FILE")
    parser.add_argument("--only", default="", help="runs whose names contain this")
    arguments = parser.parse_args()
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration()] * 2,
    )
    before = {}
    if arguments.compare:
        with open(arguments.compare, encoding="utf-8") as file:
            before = json.load(file)
        if before["machine"] != machine():
            print(f"Saved on another machine: {before['machine']}.")
    names = [name for name in RUNS if arguments.only in name]
    runs = {}
    for name in names:
        runs[name] = trained(RUNS[name])
        note = difference(before["runs"][name], runs[name]) if before else ""
        digest = hashlib.sha256(runs[name]["weights"].encode()).hexdigest()[:16]
        print(f"{name:36} {runs[name]['noise']} {digest} {note}", flush=True)
    if arguments.save:
        saved = pathlib.Path(arguments.save)
        others = {}
        if arguments.only and saved.exists():
            others = json.loads(saved.read_text("utf-8"))["runs"]
        content = {"machine": machine(), "runs": {**others, **runs}}
        saved.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if before:
        other = [name for name in names if before["runs"][name] != runs[name]]
        same = len(names) - len(other)
        print(f"{same} of {len(names)} runs are the same, bit for bit.")
        if other:
            sys.exit(f"Other noise or weights: {', '.join(other)}.")


if __name__ == "__main__":
    main()
