"""What scale-then-privatize buys an embedding model that is trained with Adam.

    python benchmarks/scaling.py

Documents of 20 words out of 1,000, of Zipf's frequencies; the words of an eighth of the
vocabulary are three times as frequent in each of 4 classes. A table of word vectors, their
mean and a linear layer learn the class: as in language models, most rows of the table have
no gradient in most examples. 8,000 examples, batches of 400, 10 epochs, epsilon 4, the same
sampler and accountant for all. The learning rate of a row is the one with the best mean
accuracy on 4,000 validation documents; the accuracy reported is on 4,000 others.
"""

from __future__ import annotations

import argparse
import statistics
import time

import keras
import numpy as np

import tf_bandmf
import tf_bandmf.keras

WORDS, LENGTH, CLASSES = 1000, 20, 4
SIZES = (8000, 4000, 4000)
BATCH_SIZE, EPOCHS = 400, 10


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


def accuracies(
    mechanism: str, scaling: str | None, rate: float, seed: int, data: list
) -> tuple[float, float]:
    """On validation and test documents, after one training."""
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            keras.layers.Embedding(WORDS, 16),
            keras.layers.GlobalAveragePooling1D(),
            keras.layers.Dense(CLASSES),
        ]
    )
    tf_bandmf.keras.make_private(model, self_check=False)
    plan = tf_bandmf.plan(
        mechanism,
        epsilon=4.0,
        delta=1e-5,
        num_examples=SIZES[0],
        batch_size=BATCH_SIZE,
        epochs=EPOCHS,
        lambda_=0.9 if mechanism == "lambda_cgd" else None,
        l2_norm_clip=0.5,
        test_seed=seed,
    )
    optimizer = tf_bandmf.keras.PrivateOptimizer(
        keras.optimizers.Adam(rate), plan, scaling=scaling, additional_run=True
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss=loss)
    model.fit(plan.batches(*data[0]), epochs=EPOCHS, verbose=0)
    found = []
    for x, y in data[1:]:
        logits = model(x).numpy()
        found.append(float(np.mean(logits.argmax(1) == y)))
    return found[0], found[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mechanisms", default="identity,lambda_cgd")
    parser.add_argument("--rates", default="0.003,0.01,0.03")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    data = documents()
    for mechanism in options.mechanisms.split(","):
        for scaling in (None, "second_moment"):
            best = None
            for rate in map(float, options.rates.split(",")):
                began = time.process_time()
                runs = [
                    accuracies(mechanism, scaling, rate, seed, data)
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
