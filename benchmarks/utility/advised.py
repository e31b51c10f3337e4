"""What advice is worth: the advised setting beside the tuned ones, no private trial.

    python benchmarks/utility/advised.py --data DIR --cache CACHE
    python benchmarks/utility/advised.py --data DIR --cache CACHE --networks [TASK ...]

The first command asks `tf_bandmf.advise` for Fashion-MNIST on scattering features, trains
as advised, and compares with the best tuned row of `results/fashion-mnist.csv`.
`--networks` does so for the networks of `cnn.py`, from pixels.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import pathlib
import time

import numpy as np

import tf_bandmf

HERE = pathlib.Path(__file__).parent
OUT = HERE / "results" / "advised"
EPSILON, DELTA = 3.0, 1e-5
# Of it, for the private mean, as in run.py.
MEAN_EPSILON, MEAN_DELTA = 0.1, 1e-6
EPOCHS, CLASSES = 40, 10
LINEAR_READOUTS = ("last", "mean of last fifth")


def advised_rows(
    task: str,
    advice: tf_bandmf.Advice,
    seed: int,
    accuracies: dict[str, float],
    seconds: float,
) -> list[dict[str, object]]:
    """Of the CSV file: a run, one row for each readout."""
    setting, guarantee = advice.setting, advice.plan.guarantee
    return [
        {
            "task": task,
            "mechanism": setting.mechanism,
            "sampling": setting.sampling,
            "seed": seed,
            "batch_size": setting.batch_size,
            "epochs": setting.epochs,
            "epsilon": guarantee.epsilon,
            "delta": guarantee.delta,
            "l2_norm_clip": advice.l2_norm_clip,
            "learning_rate": f"{advice.learning_rate:.4g}",
            "readout": readout,
            "accuracy": f"{accuracy:.4f}",
            "seconds": f"{seconds:.0f}",
        }
        for readout, accuracy in accuracies.items()
    ]


def summary(rows: list[dict[str, object]]) -> None:
    """Prints mean and standard error of each readout."""
    for readout in dict.fromkeys(row["readout"] for row in rows):
        found = [float(str(r["accuracy"])) for r in rows if r["readout"] == readout]
        accuracy = np.array(found)
        error = f" ± {standard_error(accuracy):.2%}" if len(found) > 1 else ""
        print(f"{rows[0]['task']}, {readout}: {accuracy.mean():.2%}{error}", flush=True)


def fashion_mnist(data: pathlib.Path, cache: pathlib.Path, seeds: int) -> None:
    """Trains as advised, and prints the accuracy beside that of the tuned rows.

    `linear.py` has no moving average: the mean over the last fifth of the steps, which
    has the same mean age, stands for it.
    """
    import features
    import linear

    x, y, num_train = features.load("fashion-mnist", data, cache)
    start = time.monotonic()
    advice = tf_bandmf.advise(
        num_examples=num_train,
        num_parameters=(x.shape[1] + 1) * CLASSES,
        epsilon=EPSILON - MEAN_EPSILON,
        delta=DELTA - MEAN_DELTA,
        epochs=EPOCHS,
    )
    print(f"{advice}\n\nAdvised in {time.monotonic() - start:.0f} s.", flush=True)
    clip = advice.l2_norm_clip
    plan = tf_bandmf.plan(**{**advice.arguments, "l2_norm_clip": 1.0}, test_seed=0)
    start = time.process_time()
    centre = features.private_mean(x[:num_train], MEAN_EPSILON, MEAN_DELTA, 0)
    train = linear.Features(x[:num_train], centre)
    test = linear.Features(x[num_train:], centre)
    models = linear.LinearModels(
        np.full(seeds, advice.learning_rate * clip),
        clip,
        advice.optimizer_arguments["momentum"],
        x.shape[1],
        CLASSES,
    )
    linear.train(plan, models, train, y[:num_train], 0)
    found = models.accuracy(test, y[num_train:])
    seconds = time.process_time() - start
    rows = []
    for seed in range(seeds):
        accuracies = {name: float(found[name][seed]) for name in LINEAR_READOUTS}
        rows += advised_rows("fashion-mnist", advice, seed, accuracies, seconds)
    write(OUT / "fashion-mnist.csv", rows)
    summary(rows)
    print(f"The best tuned row: {best_tuned():.2%}.")


def network(
    name: str, data: pathlib.Path, cache: pathlib.Path, seeds: int
) -> list[dict[str, object]]:
    """Trains a network of cnn.py as advised; flat clipping, both readouts."""
    import cnn
    import cnn_tasks
    import datasets
    import keras

    task = cnn_tasks.TASKS[name]
    images, y, num_train = datasets.load(task.dataset, data)
    x = task.inputs(images)
    advice = tf_bandmf.advise(
        num_examples=num_train,
        num_parameters=task.build_model().count_params(),
        epsilon=task.epsilon,
        delta=task.delta,
        epochs=task.epochs,
    )
    print(f"{name}\n{advice}", flush=True)
    clip, training = advice.l2_norm_clip, advice.optimizer_arguments
    setting = advice.setting
    row = cnn_tasks.Row("advised", setting.mechanism, setting.sampling, clip, "flat")
    task = dataclasses.replace(
        task,
        momentum=training["momentum"],
        ema_momentum=training["ema_momentum"],
        decay=1.0,
    )
    rows: list[dict[str, object]] = []
    run = f"{advice.plan.fingerprint[:16]}-{advice.learning_rate:g}"
    for seed in range(seeds):
        start = time.process_time()
        keras.utils.set_random_seed(seed)
        model = task.build_model()
        released = cnn.fit(
            task,
            row,
            tf_bandmf.plan(**advice.arguments, test_seed=seed),
            model,
            x[:num_train],
            y[:num_train],
            advice.learning_rate * clip,
            seed,
            cache / f"advised-{name}-{run}-{seed}",
        )
        accuracies = {}
        for readout in cnn_tasks.READOUTS:
            model.set_weights(released[readout])
            accuracies[readout] = cnn.accuracy_of(model, x[num_train:], y[num_train:])
        seconds = time.process_time() - start
        rows += advised_rows(name, advice, seed, accuracies, seconds)
        write(OUT / f"{name}.csv", rows)
    return rows


def best_tuned() -> float:
    """The best mean test accuracy of the rows of run.py, each at its tuned setting."""
    from results import Results, test_accuracy

    results = Results(HERE / "results" / "fashion-mnist.csv")
    names = {row["row"] for row in results.rows}
    return max(float(test_accuracy(results, name).mean()) for name in names)


def standard_error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / len(values) ** 0.5)


def write(path: pathlib.Path, rows: list[dict[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--cache", type=pathlib.Path, required=True)
    parser.add_argument("--networks", nargs="*", metavar="TASK", help="by default all")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.networks is not None:
        import cnn_tasks

        for name in arguments.networks or cnn_tasks.TASKS:
            summary(network(name, arguments.data, arguments.cache, arguments.seeds))
    else:
        fashion_mnist(arguments.data, arguments.cache, arguments.seeds)


if __name__ == "__main__":
    main()
