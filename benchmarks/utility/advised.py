"""What advice is worth: the advised setting beside the tuned ones, no private trial.

    python benchmarks/utility/advised.py --data DIR --cache CACHE
    python benchmarks/utility/advised.py --data DIR --cache CACHE --networks [TASK ...]
    python benchmarks/utility/advised.py --data DIR --cache CACHE --ablation
    python benchmarks/utility/advised.py --digits

The first command asks `tf_bandmf.advise` for Fashion-MNIST on scattering features, with
gradients on public images of another kind (CIFAR-10 in grey), trains as advised, and
compares with the best tuned row of `results/fashion-mnist.csv`. `--networks` does so for
the networks of `cnn.py`, from pixels; public are images of the other data set.
`--ablation` is where the rule for the clip norm was measured: it and the learning rate on
a grid, on held-out training images. `--digits` compares with a grid on the data of
examples/digits.py.
"""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import pathlib
import sys
import time

import numpy as np

import tf_bandmf

HERE = pathlib.Path(__file__).parent
OUT = HERE / "results" / "advised"
EPSILON, DELTA = 3.0, 1e-5
# Of it, for the private mean, as in run.py.
MEAN_EPSILON, MEAN_DELTA = 0.1, 1e-6
EPOCHS, MOMENTUM, CLASSES = 40, 0.9, 10
VALIDATION, DIMENSIONS = 10_000, 400
NUM_PUBLIC = 500
LINEAR_READOUTS = ("last", "mean of last fifth")


def grey_cifar_10(data: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """Public images: [m, 28, 28], float32 in [0, 1], and their labels."""
    import PIL.Image

    with np.load(data / "cifar10_jpeg.npz") as file:
        offsets = file["train_offsets"][: NUM_PUBLIC + 1]
        encoded = file["train_jpeg"][: offsets[-1]].tobytes()
        labels = file["train_labels"][:NUM_PUBLIC].astype(int)
    images = [
        np.asarray(PIL.Image.open(io.BytesIO(encoded[a:b])).convert("L"))[2:30, 2:30]
        for a, b in itertools.pairwise(offsets)
    ]
    return np.stack(images).astype(np.float32) / 255.0, labels


def colored_fashion_mnist(data: pathlib.Path) -> tuple[np.ndarray, np.ndarray]:
    """Public images: [m, 32, 32, 3], three times the same, and their labels."""
    import datasets

    images, labels, _ = datasets.load("fashion-mnist", data)
    padded = np.pad(images[:NUM_PUBLIC], ((0, 0), (2, 2), (2, 2)))
    return np.repeat(padded[..., None], 3, axis=-1), labels[:NUM_PUBLIC]


def linear_gradients(data: pathlib.Path) -> tf_bandmf.GradientSample:
    """Of the linear model at zero weights, on public images."""
    import features
    from scattering import scattering

    images, labels = grey_cifar_10(data)
    x = scattering(images)
    x = features.group_normalized(x, features.GROUPS).reshape(NUM_PUBLIC, -1)
    x = np.hstack([x - x.mean(axis=0), np.ones((NUM_PUBLIC, 1))])
    residuals = np.full((NUM_PUBLIC, CLASSES), 1.0 / CLASSES)
    residuals[np.arange(NUM_PUBLIC), labels] -= 1.0
    # The gradient of an example is the outer product of its features and residuals.
    sizes = np.linalg.norm(x, axis=1), np.linalg.norm(residuals, axis=1)
    total = (x / sizes[0][:, None]).T @ (residuals / sizes[1][:, None])
    return tf_bandmf.GradientSample.of_sum(
        sizes[0] * sizes[1], np.linalg.norm(total), total.size, fan_in=x.shape[1] - 1
    )


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
        epsilon=EPSILON - MEAN_EPSILON,
        delta=DELTA - MEAN_DELTA,
        epochs=EPOCHS,
        momentum=MOMENTUM,
        public_gradients=linear_gradients(data),
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
        MOMENTUM,
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
    import network as compiled

    import tf_bandmf.keras

    task = cnn_tasks.TASKS[name]
    is_grey = task.dataset == "fashion-mnist"
    public, labels = (grey_cifar_10 if is_grey else colored_fashion_mnist)(data)
    keras.utils.set_random_seed(0)
    model = task.build_model()
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    images, y, num_train = datasets.load(task.dataset, data)
    x = task.inputs(images)
    advice = tf_bandmf.advise(
        num_examples=num_train,
        epsilon=task.epsilon,
        delta=task.delta,
        epochs=task.epochs,
        momentum=task.momentum,
        public_gradients=tf_bandmf.keras.sample_gradients(
            model, task.inputs(public).astype(np.float32), labels
        ),
    )
    print(f"{name}\n{advice}", flush=True)
    clipped = compiled.compiled(
        task.source, x[:num_train], y[:num_train], cache, task.frame
    )
    rows: list[dict[str, object]] = []
    run = f"{advice.plan.fingerprint[:16]}-{advice.learning_rate:g}"
    for seed in range(seeds):
        start = time.process_time()
        keras.utils.set_random_seed(seed)
        model = task.build_model()
        released = compiled.train(
            tf_bandmf.plan(**advice.arguments, test_seed=seed),
            model.get_weights(),
            num_train,
            clipped,
            rate=advice.learning_rate,
            momentum=task.momentum,
            ema_momentum=advice.ema_momentum,
            automatic=False,
            seed=seed,
            kept=cache / f"advised-{name}-{run}-{seed}.npz",
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


def ablation(data: pathlib.Path, cache: pathlib.Path) -> None:
    """Clip norm and learning rate on a grid, by accuracy on held-out images."""
    import features
    import linear

    x, y, num_train = features.load("fashion-mnist", data, cache)
    path = cache / f"fashion-mnist-{DIMENSIONS}.npy"
    x = features.leading_components(x, VALIDATION, DIMENSIONS, path)
    end = num_train - VALIDATION
    centre = x[:end].mean(axis=0)
    train = linear.Features(x[:end], centre)
    held_out = linear.Features(x[end:num_train], centre)
    median = np.median(np.sqrt(train.squared_norms)) * np.sqrt(0.9)
    rates = np.array([0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0])
    rows = []
    for mechanism, batch_size in (("identity", 6827), ("bisr:16", 1707)):
        plan = tf_bandmf.plan(
            mechanism,
            epsilon=EPSILON,
            delta=DELTA,
            num_examples=end,
            batch_size=batch_size,
            epochs=EPOCHS,
            workload=f"sgd:momentum={MOMENTUM}",
            test_seed=0,
        )
        for part in (0.01, 0.1, 1.0):
            models = linear.LinearModels(
                rates, part * median, MOMENTUM, DIMENSIONS, CLASSES
            )
            linear.train(plan, models, train, y[:end], 100)
            found = models.accuracy(held_out, y[end:num_train])["last"]
            noise = rates * plan.rmse() / batch_size * np.sqrt(3969)
            for rate, units, accuracy in zip(rates, noise, found, strict=True):
                rows.append(
                    {
                        "mechanism": mechanism,
                        "batch_size": batch_size,
                        "clip_part": part,
                        "learning_rate": rate,
                        "weight_noise": f"{units:.2f}",
                        "accuracy": f"{accuracy:.4f}",
                    }
                )
                print(rows[-1], flush=True)
            write(OUT / "ablation.csv", rows)


def digits(seeds: int) -> None:
    """Advised beside a grid of learning rates, on the data of the quickstart."""
    sys.path.insert(0, str(HERE.parents[1] / "examples"))
    import digits as example
    import keras
    import mechanism_comparison as comparison

    import tf_bandmf.keras

    data = example.load_data()
    keras.utils.set_random_seed(0)
    model = example.build_model()
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    # Made up: pixels between 0 and 1, any label.
    rng = np.random.default_rng(0)
    sample = tf_bandmf.keras.sample_gradients(
        model,
        rng.uniform(size=(256, 64)).astype(np.float32),
        rng.integers(0, 10, 256),
    )
    advice = tf_bandmf.advise(
        num_examples=example.NUM_TRAIN,
        epsilon=8.0,
        delta=1e-4,
        epochs=20,
        sampling="fixed-order",
        public_gradients=sample,
    )
    print(advice)
    rows = []
    settings = {
        "advised": (advice.plan, [advice.learning_rate]),
        "tuned": (
            tf_bandmf.plan(**{**advice.arguments, "l2_norm_clip": 1.0}),
            [0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0],
        ),
        "quickstart": (
            tf_bandmf.plan(
                "lambda_cgd",
                epsilon=8.0,
                delta=1e-4,
                num_examples=example.NUM_TRAIN,
                batch_size=48,
                epochs=20,
            ),
            [0.5],
        ),
    }
    for name, (plan, rates) in settings.items():
        for rate in rates:
            found = np.array(
                [
                    comparison.train(
                        plan, example.build_model, data, rate, seed
                    ).accuracy[-1]
                    for seed in range(seeds)
                ]
            )
            rows.append(
                {
                    "setting": name,
                    "batch_size": int(plan.expected_batch_size),
                    "l2_norm_clip": plan.l2_norm_clip,
                    "learning_rate": f"{rate:.4g}",
                    "accuracy": f"{found.mean():.4f}",
                    "standard_error": f"{standard_error(found):.4f}",
                    "seeds": seeds,
                }
            )
            print(rows[-1], flush=True)
    write(OUT / "digits.csv", rows)


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
    parser.add_argument("--data", type=pathlib.Path)
    parser.add_argument("--cache", type=pathlib.Path)
    parser.add_argument("--ablation", action="store_true")
    parser.add_argument("--networks", nargs="*", metavar="TASK", help="by default all")
    parser.add_argument("--digits", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.digits:
        digits(arguments.seeds)
        return
    if arguments.data is None or arguments.cache is None:
        parser.error("--data and --cache are needed, but for --digits")
    if arguments.networks is not None:
        import cnn_tasks

        for name in arguments.networks or cnn_tasks.TASKS:
            summary(network(name, arguments.data, arguments.cache, arguments.seeds))
    elif arguments.ablation:
        ablation(arguments.data, arguments.cache)
    else:
        fashion_mnist(arguments.data, arguments.cache, arguments.seeds)


if __name__ == "__main__":
    main()
