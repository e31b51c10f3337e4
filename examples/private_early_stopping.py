"""Early stopping on a private held-out set, which the run's guarantee also covers.

The data are handwritten digits: 1,080 images for training, 360 private held-out images,
and 357 images for testing. At the same (epsilon, delta), the program compares a plan
without private evaluations with plans that reserve a share of the budget for them. It
also compares the model of the last epoch with the model of the epoch that has the best
private accuracy. Nothing is downloaded.
"""

from __future__ import annotations

import argparse

if __name__ == "__main__":
    from tf_bandmf.cli.native_logs import drop_native_logs

    drop_native_logs()

import keras
import numpy as np
import sklearn.datasets

import tf_bandmf
import tf_bandmf.keras

Data = dict[str, tuple[np.ndarray, np.ndarray]]


def load_data() -> Data:
    """Returns images of 8 x 8 pixels and their digits, in three splits."""
    digits = sklearn.datasets.load_digits()
    order = np.random.RandomState(0).permutation(len(digits.target))
    x = (digits.data[order] / 16.0).astype(np.float32)
    y = digits.target[order]
    parts = {
        "train": slice(1080),
        "held out": slice(1080, 1440),
        "test": slice(1440, None),
    }
    return {name: (x[part], y[part]) for name, part in parts.items()}


class Best(keras.callbacks.Callback):
    """Stores the weights of the epoch with the highest private accuracy."""

    def __init__(self) -> None:
        super().__init__()
        self.accuracy, self.weights, self.epoch = -1.0, None, 0

    def on_epoch_end(self, epoch, logs=None):
        if logs and logs.get("private_accuracy", -1.0) > self.accuracy:
            self.accuracy, self.epoch = logs["private_accuracy"], epoch + 1
            self.weights = self.model.get_weights()


def train(plan: tf_bandmf.Plan, data: Data, factor: float, epochs: int, seed: int):
    """Trains a model, and evaluates it privately if the plan reserves budget for this.

    Args:
      plan: plan for training, with or without private evaluations.
      data: the three splits of the data.
      factor: factor by which the recommended learning rate is multiplied.
      epochs: number of epochs.
      seed: seed of the initial weights.

    Returns:
      The test accuracy after the last epoch, the test accuracy after the epoch with the
      best private accuracy, and the number of this epoch.
    """
    keras.utils.set_random_seed(seed)
    layers = [
        keras.layers.Input((64,)),
        keras.layers.Dense(32, activation="relu"),
        keras.layers.Dense(10),
    ]
    model = tf_bandmf.keras.make_private(keras.Sequential(layers))
    inner = plan.optimizer_arguments(model.count_params())
    inner["learning_rate"] *= factor
    optimizer = tf_bandmf.keras.PrivateOptimizer(
        keras.optimizers.SGD(**inner), plan, additional_run=True
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    best, callbacks = Best(), []
    if plan.measurements.evaluations:
        callbacks = [tf_bandmf.keras.PrivateEvaluation(*data["held out"]), best]
    model.fit(
        plan.batches(*data["train"]), epochs=epochs, verbose=0, callbacks=callbacks
    )
    last = model.evaluate(*data["test"], verbose=0)[1]
    if best.weights is None:
        return last, last, epochs
    model.set_weights(best.weights)
    return last, model.evaluate(*data["test"], verbose=0)[1], best.epoch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epsilon", type=float, default=4.0)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--factors", type=float, nargs="+", default=[1.0, 4.0])
    parser.add_argument(
        "--shares", type=float, nargs="+", default=[0.0, 0.05, 0.1, 0.2]
    )
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    data = load_data()
    plain = tf_bandmf.plan(
        "bisr:8",
        epsilon=arguments.epsilon,
        delta=1e-4,
        num_examples=len(data["train"][1]),
        batch_size=72,
        epochs=arguments.epochs,
        workload="sgd:momentum=0.9",
    )
    print("share  noise of steps  of accuracy  factor  last epoch  best epoch  which")
    for share in arguments.shares:
        plan = plain
        if share:
            plan = plain.reserve(metrics=share, evaluations=arguments.epochs)
        of_metric = plan.measurements.noise_multiplier or float("nan")
        for factor in arguments.factors:
            accuracies = [
                train(plan, data, factor, arguments.epochs, seed)
                for seed in range(arguments.seeds)
            ]
            last, best, epoch = np.mean(accuracies, axis=0)
            print(
                f"{share:5.2f}  {plan.rmse() / plain.rmse():14.3f}  "
                f"{0.5 * of_metric / 360:11.3f}  {factor:6.2g}  {last:10.3f}  {best:10.3f}"
                f"  {epoch:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
