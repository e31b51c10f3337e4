"""Trains small convolutional networks from pixels, with Keras.

    python benchmarks/utility/cnn.py --data DIR [--task TASK]

The networks are taken from Tramèr and Boneh (2021, arXiv:2011.11660) for Fashion-MNIST
and from arXiv:2505.12128, Table 2, for CIFAR-10 (`cnn_tasks.py`). They are trained with
`make_private`, `fit` and `plan.batches`. Each row is a mechanism with its settings. If
a row has several learning rates, the program chooses the rate and the readout (last
weights or moving average) on 10,000 held-out training images, as `run.py` does. Then it
trains with the chosen setting and several seeds. Results are appended to `results/`,
and finished runs are not repeated.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import pathlib
import time
from collections.abc import Iterable, Iterator, Sequence

import datasets
import keras
import numpy as np
from cnn_tasks import FASHION_MNIST, TASKS, Row, Task
from results import VALIDATION, Results, Run, measure, parser_of, record

import tf_bandmf
import tf_bandmf.keras

TUNING_SEED = 100


class LastWeights(keras.callbacks.Callback):
    """Stores the last weights before `fit` replaces them by their moving average."""

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        self.values = self.model.get_weights()


@functools.lru_cache
def plan_for(task: Task, row: Row, num_examples: int, num_train: int) -> tf_bandmf.Plan:
    """Makes a plan whose batch size is proportional to the number of examples."""
    return tf_bandmf.plan(
        row.mechanism,
        epsilon=task.epsilon,
        delta=task.delta,
        num_examples=num_examples,
        batch_size=task.batch_size * num_examples // num_train,
        epochs=task.epochs,
        sampling=row.sampling,
        workload=f"sgd:momentum={task.momentum},decay={task.decay}"
        if row.matched
        else None,
        l2_norm_clip=row.l2_norm_clip,
    )


def trained(
    task: Task,
    row: Row,
    plan: tf_bandmf.Plan,
    x: np.ndarray,
    y: np.ndarray,
    rate: float,
) -> tuple[keras.Model, dict[str, list[np.ndarray]]]:
    """Trains with a row's settings; returns the model and each readout's weights."""
    model = tf_bandmf.keras.make_private(task.build_model())
    rate /= row.l2_norm_clip
    inner = keras.optimizers.SGD(
        rate,
        momentum=task.momentum,
        weight_decay=(1.0 - task.decay) / rate if task.decay < 1.0 else None,
        use_ema=True,
        ema_momentum=task.ema_momentum,
    )
    optimizer = tf_bandmf.keras.PrivateOptimizer(
        inner, plan, clipping=row.clipping, additional_run=True
    )
    model.compile(
        optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    )
    last = LastWeights()
    model.fit(plan.batches(x, y), epochs=task.epochs, verbose=0, callbacks=[last])
    return model, {"last": last.values, "moving average": model.get_weights()}


def accuracy_of(model: keras.Model, x: np.ndarray, y: np.ndarray) -> float:
    """Returns the accuracy of predicting the class with the largest logit."""
    logits = model.predict(x, batch_size=1000, verbose=0)
    return float(np.mean(logits.argmax(axis=1) == y))


class Experiment:
    """A task, its images, and the training runs on them."""

    def __init__(self, task: Task, data: pathlib.Path) -> None:
        self.task = task
        images, self.y, self.num_train = datasets.load(task.dataset, data)
        self.x = task.inputs(images)

    def train(
        self, row: Row, phase: str, rate: float, seed: int
    ) -> list[dict[str, object]]:
        """Trains a model once; returns a row of the CSV file for each readout."""
        start = time.process_time()
        task, end = self.task, self.num_train
        train, test = slice(0, end), slice(end, None)
        if phase == "validation":
            train, test = slice(0, end - VALIDATION), slice(end - VALIDATION, end)
        x, y = self.x[train], self.y[train]
        plan = plan_for(task, row, len(x), end)
        plan = dataclasses.replace(plan, test_seed=seed)

        keras.utils.set_random_seed(seed)
        model, released = trained(task, row, plan, x, y, rate)
        actual = []
        for readout in row.readouts:
            model.set_weights(released[readout])
            accuracy = accuracy_of(model, self.x[test], self.y[test])
            run = {"phase": phase, "seed": seed, "learning_rate": rate}
            actual.append(
                record(task, row, plan, accuracy, start, readout=readout, **run)
            )
        return actual

    def runs(
        self, row: Row, phase: str, rates: Sequence[float], seeds: Iterable[int]
    ) -> Iterator[Run]:
        for rate, seed in itertools.product(rates, seeds):
            done = {"phase": phase, "seed": seed, "learning_rate": rate}
            yield done, functools.partial(self.train, row, phase, rate, seed)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--task", choices=TASKS, default=FASHION_MNIST.name)
    arguments = parser.parse_args()
    task = TASKS[arguments.task]
    runs = Experiment(task, arguments.data).runs
    measure(
        [row for row in task.rows if row.name in (arguments.rows or [row.name])],
        Results(arguments.out / f"{task.name}.csv"),
        lambda row: runs(row, "validation", row.learning_rates, [TUNING_SEED]),
        lambda row, rate: runs(row, "test", [rate], range(arguments.seeds)),
    )


if __name__ == "__main__":
    main()
