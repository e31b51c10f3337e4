"""Trains a small convolutional network on Fashion-MNIST end to end, with Keras.

    python benchmarks/utility/cnn.py --data DIR --cache CACHE [--compiled]

The network of Tramèr and Boneh (2021, arXiv:2011.11660) through `make_private`, `fit`
and `plan.batches`. As `run.py`: each row chooses the learning rate and the readout on
10,000 held-out training images, then trains with several seeds; results are appended to
`results/`, and what is there is not done again. A run that was stopped goes on from its
last epochs. `--compiled` trains with network.c instead of Keras, to the same weights in
less than a fourth of the time.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import time

import datasets
import keras
import network
import numpy as np
from results import HERE, VALIDATION, Results, best, report

import tf_bandmf
import tf_bandmf.keras

TASK = "fashion-mnist-cnn"
EPSILON, DELTA = 3.0, 1e-5
# 30 steps an epoch, published: 2048.
BATCH_SIZE, EPOCHS, MOMENTUM = 2000, 40, 0.9
TUNING_SEEDS = (100,)
# What a run releases: the last weights, or their exponential moving average.
EMA_MOMENTUM = 0.99
READOUTS = ("last", "moving average")


@dataclasses.dataclass(frozen=True)
class Row:
    """A mechanism; `learning_rates` are per unit of clip norm."""

    name: str
    mechanism: str
    sampling: str
    l2_norm_clip: float = 1.0
    clipping: str = "automatic"
    learning_rates: tuple[float, ...] = (0.2, 0.4)
    readouts: tuple[str, ...] = READOUTS


ROWS = (
    # The published settings: clip norm 0.1, learning rate 4 x 0.1 per unit of it.
    Row("published", "identity", "poisson", 0.1, "flat", (0.4,), ("last",)),
    Row("DP-SGD", "identity", "poisson", learning_rates=(0.2, 0.4, 0.8)),
    Row("BISR", "bisr:4", "balls-in-bins"),
    # More noise in the models, so smaller rates.
    Row(
        "DP-SGD, no sampling",
        "identity",
        "fixed-order",
        learning_rates=(0.05, 0.1, 0.2),
    ),
    Row("BISR, no sampling", "bisr", "fixed-order"),
)


def build_model() -> keras.Model:
    """26,010 parameters; inputs [28, 28, 1], logits [10]."""
    layers = keras.layers
    return keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.ZeroPadding2D(2),
            layers.Conv2D(16, 8, strides=2, activation="tanh"),
            layers.MaxPooling2D(2, strides=1),
            layers.Conv2D(32, 4, strides=2, activation="tanh"),
            layers.MaxPooling2D(2, strides=1),
            layers.Flatten(),
            layers.Dense(32, activation="tanh"),
            layers.Dense(10),
        ]
    )


class LastWeights(keras.callbacks.Callback):
    """The weights of the last step: `fit` ends with the moving average in their place."""

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        self.values = self.model.get_weights()


def plan_for(row: Row, num_examples: int, cache: pathlib.Path) -> tf_bandmf.Plan:
    """Calibrated once and kept; the batch is the same share of the examples."""
    name = f"{TASK}-{row.mechanism}-{row.sampling}-{num_examples}".replace(":", "_")
    path = cache / f"plan-{name}-{row.l2_norm_clip:g}.json"
    if path.exists():
        return tf_bandmf.Plan.load(str(path))
    plan = tf_bandmf.plan(
        row.mechanism,
        epsilon=EPSILON,
        delta=DELTA,
        num_examples=num_examples,
        batch_size=BATCH_SIZE * num_examples // 60_000,
        epochs=EPOCHS,
        sampling=row.sampling,
        l2_norm_clip=row.l2_norm_clip,
        test_seed=0,
    )
    cache.mkdir(parents=True, exist_ok=True)
    plan.save(str(path))
    return plan


def fit(
    row: Row,
    plan: tf_bandmf.Plan,
    model: keras.Model,
    x: np.ndarray,
    y: np.ndarray,
    rate: float,
    seed: int,
    kept: pathlib.Path,
) -> dict[str, list[np.ndarray]]:
    """Weights after training with Keras, for each readout; goes on from what is kept."""
    start = model.get_weights()
    model = tf_bandmf.keras.make_private(build_model(), self_check=False)
    model.set_weights(start)
    model.compile(
        tf_bandmf.keras.PrivateOptimizer(
            keras.optimizers.SGD(
                rate / row.l2_norm_clip,
                momentum=MOMENTUM,
                use_ema=True,
                ema_momentum=EMA_MOMENTUM,
            ),
            plan,
            clipping=row.clipping,
            additional_run=True,
        ),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    secret = plan.batches(x, y).secret_seed()
    if secret is not None:
        secret = seed.to_bytes(32, "little")
    kept.mkdir(parents=True, exist_ok=True)
    last = LastWeights()
    model.fit(
        plan.batches(x, y, sampler_seed=secret),
        epochs=EPOCHS,
        verbose=0,
        callbacks=[keras.callbacks.BackupAndRestore(kept / "backup"), last],
        private_state=kept / "run.private",
    )
    return {"last": last.values, "moving average": model.get_weights()}


class Experiment:
    """Images of Fashion-MNIST, and runs on them."""

    compiled = False

    def __init__(self, data: pathlib.Path, cache: pathlib.Path, compiled: bool) -> None:
        images, self.y, self.num_train = datasets.load("fashion-mnist", data)
        self.x, self.cache, self.compiled = images[..., None], cache, compiled

    def train(
        self, row: Row, phase: str, rate: float, seed: int
    ) -> list[dict[str, object]]:
        """One run, as a row of the CSV file for each readout.

        `seconds` are of the process: those after the last restart.
        """
        start = time.process_time()
        end = self.num_train
        train, test = slice(0, end), slice(end, None)
        if phase == "validation":
            train, test = slice(0, end - VALIDATION), slice(end - VALIDATION, end)
        x, y = self.x[train], self.y[train]
        plan = plan_for(row, len(x), self.cache)
        plan = dataclasses.replace(plan, test_seed=seed)

        keras.utils.set_random_seed(seed)
        plain = build_model()
        kept = self.cache / f"{TASK}-{row.name}-{phase}-{rate:g}-{seed}"
        if self.compiled:
            released = network.train(
                plan,
                plain.get_weights(),
                x,
                y,
                rate=rate / row.l2_norm_clip,
                momentum=MOMENTUM,
                ema_momentum=EMA_MOMENTUM,
                automatic=row.clipping == "automatic",
                seed=seed,
                cache=self.cache,
                kept=kept.with_name(kept.name + ".npz"),
            )
        else:
            released = fit(row, plan, plain, x, y, rate, seed, kept)
        found = []
        for readout in row.readouts:
            plain.set_weights(released[readout])
            logits = plain.predict(self.x[test], batch_size=1000, verbose=0)
            accuracy = float(np.mean(logits.argmax(axis=1) == self.y[test]))
            found.append(
                {
                    "task": TASK,
                    "row": row.name,
                    "mechanism": row.mechanism,
                    "sampling": row.sampling,
                    "phase": phase,
                    "seed": seed,
                    "batch_size": BATCH_SIZE,
                    "epochs": EPOCHS,
                    "steps": plan.num_steps,
                    "epsilon": EPSILON,
                    "delta": DELTA,
                    "kind": plan.kind,
                    "noise_stddev": f"{plan.noise_stddev / plan.l2_norm_clip:.4f}",
                    "l2_norm_clip": row.l2_norm_clip,
                    "learning_rate": rate,
                    "readout": readout,
                    "accuracy": f"{accuracy:.4f}",
                    "seconds": f"{time.process_time() - start:.0f}",
                }
            )
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--cache", type=pathlib.Path, required=True)
    parser.add_argument("--rows", nargs="+", default=[row.name for row in ROWS])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--compiled", action="store_true", help="with network.c")
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "results")
    arguments = parser.parse_args()

    results = Results(arguments.out / f"{TASK}.csv")
    experiment = Experiment(arguments.data, arguments.cache, arguments.compiled)
    for row in (row for row in ROWS if row.name in arguments.rows):
        rate, readout = row.learning_rates[0], row.readouts[0]
        if len(row.learning_rates) > 1:
            for seed in TUNING_SEEDS:
                for tried in row.learning_rates:
                    wanted = {"phase": "validation", "seed": seed}
                    if not results.of(row=row.name, learning_rate=tried, **wanted):
                        found = experiment.train(row, "validation", tried, seed)
                        results.append(found)
            rate, readout = best(results.of(row=row.name, phase="validation"))
        for seed in range(arguments.seeds):
            done = {"phase": "test", "seed": seed, "learning_rate": rate}
            if not results.of(row=row.name, **done):
                results.append(experiment.train(row, "test", rate, seed))
        report(results, row.name, rate, readout)


if __name__ == "__main__":
    main()
