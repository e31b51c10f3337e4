"""What scale-then-privatize buys models that are trained with Adam.

    python benchmarks/scaling.py
    python benchmarks/scaling.py --task digits --rates 0.003,0.01,0.03,0.1

"documents": documents of 20 words out of 1,000, of Zipf's frequencies; the words of an
eighth of the vocabulary are three times as frequent in each of 4 classes. A table of word
vectors, their mean and a linear layer learn the class: as in language models, most rows of
the table have no gradient in most examples. 8,000 examples, batches of 400, 10 epochs,
epsilon 4; 4,000 others for validation, 4,000 for the test.

"digits": model, data, batches of 48, 20 epochs and epsilon 8 of `examples/digits.py`, with
Adam; its 357 other images are halved into validation and test.

Sampler and accountant are the same for all rows of a task. The learning rate of a row is
the one with the best mean accuracy in validation.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np

import tf_bandmf
import tf_bandmf.keras

WORDS, LENGTH, CLASSES = 1000, 20, 4
SIZES = (8000, 4000, 4000)


class Task(NamedTuple):
    """A model, its data (training, validation, test), and arguments of `tf_bandmf.plan`."""

    build_model: Callable[[], keras.Model]
    data: list[tuple[np.ndarray, np.ndarray]]
    arguments: dict[str, Any]


def documents() -> list[tuple[np.ndarray, np.ndarray]]:
    """Words and classes, for training, validation and test."""
    rng = np.random.default_rng(0)
    frequencies = 1.0 / np.arange(2, WORDS + 2)
    by_class = []
    for _ in range(CLASSES):
        own = rng.permutation(WORDS)[: WORDS // 8]
        weights = frequencies.copy()
        weights[own] *= 3.0
        by_class.append(weights / weights.sum())
    found = []
    for size in SIZES:
        y = rng.integers(0, CLASSES, size).astype(np.int32)
        x = np.zeros((size, LENGTH), np.int32)
        for label, weights in enumerate(by_class):
            mine = y == label
            x[mine] = rng.choice(WORDS, (int(mine.sum()), LENGTH), p=weights)
        found.append((x, y))
    return found


def of_words() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            keras.layers.Embedding(WORDS, 16),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(CLASSES),
        ]
    )


def documents_task() -> Task:
    settings = {"epsilon": 4.0, "delta": 1e-5, "batch_size": 400, "epochs": 10}
    return Task(of_words, documents(), {**settings, "l2_norm_clip": 0.5})


def digits_task() -> Task:
    sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples"))
    import digits

    x, y, other_x, other_y = digits.load_data()
    half = len(other_y) // 2
    data = [(x, y), (other_x[:half], other_y[:half]), (other_x[half:], other_y[half:])]
    settings = {"epsilon": 8.0, "delta": 1e-4, "batch_size": 48, "epochs": 20}
    return Task(digits.build_model, data, settings)


TASKS = {"documents": documents_task, "digits": digits_task}


def accuracies(
    mechanism: str, scaling: str | None, rate: float, seed: int, task: Task
) -> tuple[float, float]:
    """On validation and test data, after one training."""
    keras.utils.set_random_seed(seed)
    model = tf_bandmf.keras.make_private(task.build_model(), self_check=False)
    plan = tf_bandmf.plan(
        "lambda_cgd:0.9" if mechanism == "lambda_cgd" else mechanism,
        num_examples=len(task.data[0][1]),
        test_seed=seed,
        **task.arguments,
    )
    optimizer = tf_bandmf.keras.PrivateOptimizer(
        keras.optimizers.Adam(rate),
        plan,
        clipping=tf_bandmf.keras.Clipping(scaling=scaling),
        additional_run=True,
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss=loss)
    model.fit(plan.batches(*task.data[0]), epochs=task.arguments["epochs"], verbose=0)
    found = []
    for x, y in task.data[1:]:
        logits = model(x).numpy()
        found.append(float(np.mean(logits.argmax(1) == y)))
    return found[0], found[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=list(TASKS), default="documents")
    parser.add_argument("--scalings", default="none,second_moment")
    parser.add_argument("--mechanisms", default="identity,lambda_cgd")
    parser.add_argument("--rates", default="0.003,0.01,0.03")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    task = TASKS[options.task]()
    scalings = [None if s == "none" else s for s in options.scalings.split(",")]
    for mechanism in options.mechanisms.split(","):
        for scaling in scalings:
            best = None
            for rate in map(float, options.rates.split(",")):
                began = time.process_time()
                runs = [
                    accuracies(mechanism, scaling, rate, seed, task)
                    for seed in range(options.seeds)
                ]
                validation, test = (
                    [r[0] for r in runs],
                    [r[1] for r in runs],
                )
                took = time.process_time() - began
                print(
                    f"  {mechanism} {scaling} rate={rate:g} "
                    f"validation={statistics.mean(validation):.4f} "
                    f"test={statistics.mean(test):.4f} cpu={took:.0f}s",
                    flush=True,
                )
                if best is None or statistics.mean(validation) > best[0]:
                    best = (statistics.mean(validation), rate, test)
            assert best is not None
            spread = (
                statistics.stdev(best[2]) / len(best[2]) ** 0.5
                if options.seeds > 1
                else 0
            )
            print(
                f"{mechanism:12s} scaling={scaling}  rate={best[1]:g}  "
                f"test={statistics.mean(best[2]):.4f} ± {spread:.4f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
