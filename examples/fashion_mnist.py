"""Compares correlated noise with DP-SGD on Fashion-MNIST at the same (epsilon, delta).

The program trains with each mechanism at the learning rate that the mechanism's plan
recommends, and prints the mean and standard error of the test accuracy. No mechanism uses
amplification by sampling, because all of them use the same fixed epoch order.

    python examples/fashion_mnist.py             # downloads the data with Keras' loader
    python examples/fashion_mnist.py --data DIR  # *-ubyte or *-ubyte.gz files in DIR
"""

from __future__ import annotations

import argparse
import gzip
import os

if __name__ == "__main__":
    from tf_bandmf.cli.native_logs import drop_native_logs

    drop_native_logs()

import keras
import mechanism_comparison as comparison
import numpy as np

import tf_bandmf

MECHANISMS = ("identity", "lambda_cgd", "bsr", "bisr")


def load_data(directory: str | None) -> comparison.Data:
    """Returns 60,000 images of 28 x 28 pixels for training, and 10,000 for testing."""
    if directory is None:
        train, test = keras.datasets.fashion_mnist.load_data()
    else:
        train, test = (
            (
                read_idx(directory, f"{part}-images-idx3-ubyte", 16).reshape(
                    -1, 28, 28
                ),
                read_idx(directory, f"{part}-labels-idx1-ubyte", 8),
            )
            for part in ("train", "t10k")
        )
    x_train, x_test = (x.astype(np.float32) / 255.0 for x in (train[0], test[0]))
    return x_train, train[1].astype(np.int32), x_test, test[1].astype(np.int32)


def read_idx(directory: str, name: str, header: int) -> np.ndarray:
    """Returns the content of an IDX file, which may be compressed with gzip.

    Args:
      directory: folder of the file.
      name: name of the file, without the suffix .gz.
      header: number of bytes of the header, which are skipped.
    """
    for suffix, opener in (("", open), (".gz", gzip.open)):
        path = os.path.join(directory, name + suffix)
        if os.path.exists(path):
            with opener(path, "rb") as file:
                return np.frombuffer(file.read(), np.uint8, offset=header)
    raise FileNotFoundError(f"{directory} must contain {name} or {name}.gz.")


def build_model() -> keras.Model:
    """Builds a multi-layer perceptron with 101,770 parameters."""
    return keras.Sequential(
        [
            keras.layers.Input((28, 28)),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="folder with the IDX files")
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", default="demo-output")
    arguments = parser.parse_args()

    data = load_data(arguments.data)
    plans = {
        mechanism: tf_bandmf.plan(
            mechanism,
            epsilon=arguments.epsilon,
            delta=arguments.delta,
            num_examples=len(data[0]),
            batch_size=arguments.batch_size,
            epochs=arguments.epochs,
            workload="sgd:momentum=0.9",
        )
        for mechanism in MECHANISMS
    }
    runs = comparison.train_all(plans, build_model, data, range(arguments.seeds))
    title = (
        f"Fashion-MNIST at epsilon = {arguments.epsilon:g}, delta = "
        f"{arguments.delta:g}, {arguments.seeds} seeds"
    )
    comparison.print_table(title, runs)
    comparison.print_joint_guarantee(runs)
    comparison.console.print("No mechanism is amplified by sampling here.")
    os.makedirs(arguments.out, exist_ok=True)
    picture = os.path.join(arguments.out, "fashion_mnist.png")
    comparison.save_picture(picture, runs)
    comparison.console.print(f"Saved {picture}.")


if __name__ == "__main__":
    main()
