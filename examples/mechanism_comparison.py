"""Trains a model with several mechanisms at the same budget, and compares the results.

Other examples import this module, and call it with their data and model.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import keras
import matplotlib
import numpy as np
import rich.console
import rich.progress
import rich.table
import tensorflow as tf

import tf_bandmf
import tf_bandmf.keras

matplotlib.use("Agg")
from matplotlib import pyplot as plt

Data = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]

# Training many models one after another would make TensorFlow warn about retracing, so
# only errors are logged.
tf.get_logger().setLevel("ERROR")

console = rich.console.Console()

TITLES = {
    "identity": "DP-SGD",
    "lambda_cgd": "DP-λCGD",
    "bsr": "BSR",
    "bisr": "BISR",
}


@dataclasses.dataclass
class Run:
    """One training run: plan, learning rate, and test accuracy after each epoch.

    When `fit` ends, it replaces the weights by their moving average, so the last accuracy
    is that of the average.
    """

    plan: tf_bandmf.Plan
    learning_rate: float
    seed: int
    accuracy: list[float]


def train(
    plan: tf_bandmf.Plan,
    build_model: Callable[[], keras.Model],
    data: Data,
    seed: int,
    on_epoch: Callable[[], None] = lambda: None,
) -> Run:
    """Trains one model with the hyperparameters that the plan recommends.

    The seed determines the initial weights, but not the noise.
    """
    x_train, y_train, x_test, y_test = data
    keras.utils.set_random_seed(seed)
    model = tf_bandmf.keras.make_private(build_model())
    advised = plan.optimizer_arguments(model.count_params())
    model.compile(
        optimizer=tf_bandmf.keras.PrivateOptimizer(
            keras.optimizers.SGD(**advised), plan, additional_run=True
        ),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    tick = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: on_epoch())
    history = model.fit(
        plan.batches(x_train, y_train),
        epochs=plan.participation.epochs,
        validation_data=(x_test, y_test),
        validation_batch_size=1024,
        callbacks=[tick],
        verbose=0,
    )
    accuracy = history.history["val_accuracy"]
    accuracy[-1] = model.evaluate(x_test, y_test, batch_size=1024, verbose=0)[1]
    return Run(plan, advised["learning_rate"], seed, accuracy)


def train_all(
    plans: dict[str, tf_bandmf.Plan],
    build_model: Callable[[], keras.Model],
    data: Data,
    seeds: Sequence[int],
) -> dict[str, list[Run]]:
    """Trains one model for each mechanism and seed, and shows the progress."""
    jobs = [(name, seed) for name in plans for seed in seeds]
    runs: dict[str, list[Run]] = {name: [] for name in plans}
    total = sum(plans[name].participation.epochs for name, _ in jobs)
    with rich.progress.Progress(console=console) as progress:
        task = progress.add_task("training", total=total)
        for name, seed in jobs:
            progress.update(task, description=f"{TITLES[name]}, seed {seed}")
            run = train(
                plans[name],
                build_model,
                data,
                seed,
                lambda: progress.advance(task),
            )
            runs[name].append(run)
    return runs


def extra_memory(plan: tf_bandmf.Plan) -> str:
    """Returns the number of stored model-sized vectors as text, such as "7 x"."""
    vectors = plan.strategy.memory_vectors
    return "none" if vectors == 0 else f"{vectors} x"


def print_table(title: str, runs: dict[str, list[Run]]) -> None:
    """Prints one row per mechanism: mean and standard error of accuracy over seeds."""
    table = rich.table.Table(title=title)
    table.add_column("mechanism", no_wrap=True)
    for column in ("noise\nmult.", "sens(C)", "RMSE", "extra\nmemory"):
        table.add_column(column)
    table.add_column("learning\nrate", no_wrap=True)
    table.add_column("test accuracy", no_wrap=True)
    for name, group in runs.items():
        plan = group[0].plan
        mean, error = mean_and_standard_error([run.accuracy[-1] for run in group])
        table.add_row(
            TITLES[name],
            f"{plan.noise_multiplier:.4f}",
            f"{plan.sensitivity.value:.3f}",
            f"{plan.rmse():.2f}",
            extra_memory(plan),
            f"{group[0].learning_rate:g}",
            f"{mean:.2%} ± {error:.2%}" if len(group) > 1 else f"{mean:.2%}",
        )
    console.print(table)


def print_joint_guarantee(runs: dict[str, list[Run]]) -> None:
    """Prints the joint guarantee of all runs of the comparison."""
    plans = [run.plan for group in runs.values() for run in group]
    joint = tf_bandmf.compose(plans)
    delta = plans[0].delta
    console.print(
        f"Each of these {len(plans)} runs on the same data spends a separate budget. "
        f"Together, they are (epsilon = {joint.epsilon(delta):.4g}, delta = {delta:g})-DP. "
        f"A single run's statement holds if no results of the other runs are released."
    )


def mean_and_standard_error(values: Sequence[float]) -> tuple[float, float]:
    """Returns the mean, and its standard error (0 for a single value)."""
    if len(values) == 1:
        return float(values[0]), 0.0
    return float(np.mean(values)), float(np.std(values, ddof=1) / np.sqrt(len(values)))


def save_picture(path: str, runs: dict[str, list[Run]]) -> None:
    """Plots the test accuracy after each epoch, and the model's noise after each step."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for name, group in runs.items():
        accuracy = np.mean([run.accuracy for run in group], axis=0)
        left.plot(np.arange(1, len(accuracy) + 1), accuracy, label=TITLES[name])
        plan = group[0].plan
        per_step = plan.strategy.per_step_squared_error(plan.workload)
        right.plot(np.sqrt(per_step) * plan.noise_stddev, label=TITLES[name])
    left.set(xlabel="epoch", ylabel="test accuracy")
    right.set(
        xlabel="step", ylabel="standard deviation of the noise in the\nsum of gradients"
    )
    for axes in (left, right):
        axes.legend()
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
    plt.close(figure)
