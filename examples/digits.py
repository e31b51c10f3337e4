"""The quickstart: private training on scikit-learn's handwritten digits.

The program trains the same Keras model at the same (epsilon, delta) with DP-SGD,
DP-lambda-CGD and a banded square-root strategy. Run the program with `make demo`. It
needs no download.
"""

from __future__ import annotations

import argparse
import os

if __name__ == "__main__":
    from tf_bandmf.cli.native_logs import drop_native_logs

    drop_native_logs()

import keras
import mechanism_comparison as comparison
import numpy as np
import sklearn.datasets

import tf_bandmf

NUM_TRAIN = 1440


def load_data() -> comparison.Data:
    """Returns 1,440 images of 8 x 8 pixels for training, and 357 for testing."""
    digits = sklearn.datasets.load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))
    x = (digits.data[order] / 16.0).astype(np.float32)
    y = digits.target[order]
    return x[:NUM_TRAIN], y[:NUM_TRAIN], x[NUM_TRAIN:], y[NUM_TRAIN:]


def build_model() -> keras.Model:
    """Builds a small multi-layer perceptron."""
    return keras.Sequential(
        [
            keras.layers.Input((64,)),
            keras.layers.Dense(32, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--delta", type=float, default=1e-4)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=48)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", default="demo-output")
    arguments = parser.parse_args()

    plans = {
        mechanism: tf_bandmf.plan(
            mechanism,
            epsilon=arguments.epsilon,
            delta=arguments.delta,
            num_examples=NUM_TRAIN,
            batch_size=arguments.batch_size,
            epochs=arguments.epochs,
            workload="sgd:momentum=0.9",
        )
        for mechanism in ("identity", "lambda_cgd", "bsr")
    }
    seeds = range(arguments.seeds)
    runs = comparison.train_all(plans, build_model, load_data(), seeds)
    title = f"Digits at epsilon = {arguments.epsilon:g}, delta = {arguments.delta:g}"
    comparison.print_table(title, runs)
    comparison.print_joint_guarantee(runs)
    last = list(plans.values())[-1]
    print(last.statement())

    os.makedirs(arguments.out, exist_ok=True)
    picture = os.path.join(arguments.out, "digits.png")
    comparison.save_picture(picture, runs)
    last.save(os.path.join(arguments.out, "plan.json"))
    comparison.console.print(f"Saved {picture}, and the plan in the same folder.")


if __name__ == "__main__":
    main()
