"""The linear benchmark: scattering features, and training beside Keras' `fit`."""

import dataclasses
import pathlib

import keras
import numpy as np
import pytest

import tf_bandmf
import tf_bandmf.keras

# Of kymatio 0.3.0, `Scattering2D(J=2, shape=(28, 28))`.
KYMATIO = [0.51401514, 0.07062508, 0.03779833, 0.00683525, 0.00359482]
FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks" / "utility"


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


def test_scattering_of_a_constant_image_is_its_value():
    from scattering import CHANNELS, scattering

    found = scattering(np.full((2, 16, 16), 0.5))
    assert found.shape == (2, CHANNELS, 4, 4)
    np.testing.assert_allclose(found[:, 0], 0.5, rtol=1e-5)
    np.testing.assert_allclose(found[:, 1:], 0.0, atol=1e-6)


def test_scattering_has_kymatios_values():
    from scattering import scattering

    image = np.random.RandomState(0).random_sample((1, 28, 28)).astype(np.float32)
    found = scattering(image)[0, [0, 1, 9, 17, 80], 3, 3]
    np.testing.assert_allclose(found, KYMATIO, rtol=2e-4)


def test_colors_are_scattered_one_by_one():
    from scattering import CHANNELS, scattering

    images = np.random.default_rng(0).random((3, 8, 8, 3))
    together = scattering(images, chunk=2)
    for color in range(3):
        alone = scattering(images[..., color])
        part = together[:, color * CHANNELS : (color + 1) * CHANNELS]
        np.testing.assert_allclose(part, alone, atol=1e-6)


def test_group_normalized_examples_have_bounded_norm():
    from features import group_normalized

    found = group_normalized(np.random.default_rng(0).random((5, 6, 4, 4)), 3)
    np.testing.assert_allclose(
        np.linalg.norm(found.reshape(5, -1), axis=1), 96**0.5, rtol=1e-3
    )
    np.testing.assert_allclose(found.reshape(5, 3, -1).mean(axis=2), 0.0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    "mechanism, sampling",
    [("identity", "poisson"), ("bisr:3", "balls-in-bins"), ("bsr:2", "fixed-order")],
)
def test_linear_models_train_as_keras_does(mechanism, sampling):
    import linear

    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(60, 4)).astype(np.float32), rng.integers(0, 3, 60)
    centre, seed, rate = rng.normal(size=4).astype(np.float32), 5, 0.3
    plan = tf_bandmf.plan(
        mechanism,
        noise_multiplier=0.5,
        delta=1e-3,
        num_examples=60,
        batch_size=20,
        epochs=3,
        sampling=sampling,
        workload="sgd:momentum=0.9",
        test_seed=seed,
    )
    ours = linear.LinearModels([rate, 2 * rate], 1.0, 0.9, 4, 3)
    linear.train(plan, ours, linear.Features(x, centre), y, seed)

    dense = keras.layers.Dense(3, kernel_initializer="zeros")
    model = tf_bandmf.keras.make_private(
        keras.Sequential([keras.layers.Input((4,)), dense]), self_check=False
    )
    model.compile(
        tf_bandmf.keras.PrivateOptimizer(
            keras.optimizers.SGD(rate, momentum=0.9), plan, additional_run=True
        ),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    alone = linear.LinearModels([rate], 1.0, 0.9, 4, 3)
    linear.train(plan, alone, linear.Features(x, centre), y, seed)
    batches = plan.batches(x - centre, y.astype(np.int32))
    model.fit(batches, epochs=3, verbose=0)
    np.testing.assert_allclose(alone.weights[:4, 0], dense.kernel, atol=1e-4)
    np.testing.assert_allclose(alone.weights[4, 0], dense.bias, atol=1e-4)
    assert ours.shape == (5, 2, 3)


def test_readouts_average_late_weights():
    import linear

    models = linear.LinearModels([1.0], 1.0, 0.0, 1, 1)
    for step in range(10):
        models.update(np.full(models.shape, -1.0, np.float32), (step + 1) / 10)
    assert {
        name: models.sums[name][0, 0, 0] / models.counts[name] for name in models.sums
    } == {
        "last": 10.0,
        "mean of last fifth": 9.5,
        "mean of last half": 8.0,
    }


def test_a_stopped_run_of_linear_models_goes_on(monkeypatch, tmp_path):
    import linear

    monkeypatch.setattr(linear, "_KEEP_EVERY", 4)
    rng = np.random.default_rng(9)
    x, y = rng.normal(size=(60, 4)).astype(np.float32), rng.integers(0, 3, 60)
    plan = tf_bandmf.plan(
        "bsr:2",
        noise_multiplier=0.5,
        delta=1e-3,
        num_examples=60,
        batch_size=20,
        epochs=3,
        test_seed=5,
    )
    found = []
    for kept in (None, tmp_path / "run.npz", tmp_path / "run.npz"):
        models = linear.LinearModels([0.1, 0.2], 1.0, 0.9, 4, 3)
        linear.train(plan, models, linear.Features(x, np.zeros(4)), y, 5, kept)
        found.append(models)
    for models in found[1:]:
        np.testing.assert_array_equal(models.weights, found[0].weights)
        assert models.counts == found[0].counts
        for name, total in models.sums.items():
            np.testing.assert_array_equal(total, found[0].sums[name])
    assert found[2].take_up(tmp_path / "run.npz") == 8


def test_mirrored_channels_are_those_of_the_mirror_image():
    from scattering import mirrored_channels, scattering

    image = np.random.default_rng(2).random((1, 48, 48)).cumsum(axis=1).cumsum(axis=2)
    image = (image - image.mean()) / image.std()
    # The grid is 0, 4, ..., 44 and mirrored 47, ..., 3: the mirror image moves by 3.
    moved = np.roll(image[:, :, ::-1], -3, axis=2)
    expected = scattering(moved)[..., 4:-4]
    found = scattering(image)[:, mirrored_channels(), :, ::-1][..., 4:-4]
    np.testing.assert_allclose(found, expected, atol=2e-4)
    assert np.abs(scattering(image)[..., 4:-4] - expected).max() > 0.1


def test_symmetric_part_is_a_projection_on_an_orthonormal_basis():
    from scattering import CHANNELS, mirror_symmetric, mirrored_channels

    x = np.random.default_rng(3).normal(size=(2, 2 * CHANNELS, 4, 4))
    channels = np.concatenate([mirrored_channels(), CHANNELS + mirrored_channels()])
    mirrored = x[:, channels][..., ::-1]
    symmetric, antisymmetric = (x + mirrored) / 2, (x - mirrored) / 2
    found = mirror_symmetric(x)
    assert found.shape == (2, 2 * CHANNELS, 4, 2)
    np.testing.assert_allclose(
        np.square(found).sum(axis=(1, 2, 3)),
        np.square(symmetric).sum(axis=(1, 2, 3)),
        rtol=1e-5,
    )
    np.testing.assert_allclose(mirror_symmetric(mirrored), found, atol=1e-5)
    np.testing.assert_allclose(mirror_symmetric(antisymmetric), 0.0, atol=1e-6)


@pytest.mark.parametrize("units", ["raw", "public", "square root", "logarithm"])
def test_sums_of_the_release_have_sensitivity_one(units):
    from normalization import Release

    release = Release(0.7, 0.9, 8.0, units)
    x = np.random.default_rng(4).normal(size=(7, 243, 4, 4))
    x *= np.array([1e-6, 0.01, 0.1, 1.0, 10.0, 1e3, 0.0]).reshape(-1, 1, 1, 1)
    everyone = release.sums(x, chunk=3)
    norms = []
    for left_out in range(7):
        present = np.delete(x, left_out, axis=0)
        norms.append(np.linalg.norm(everyone - release.sums(present), axis=1))
    assert np.max(norms) <= 1.0 + 1e-12
    # Reached by long examples, by both sums: together sqrt(2), which `together` is for.
    np.testing.assert_allclose(norms[5], 1.0)
    if units != "logarithm":
        assert np.all(np.array(norms[0]) < 0.2)
    assert release.together == pytest.approx(8.0 / np.linalg.norm(norms[5]))


def test_release_has_the_statistics_of_the_channels():
    from normalization import Release

    rng = np.random.default_rng(5)
    x = rng.normal(size=(40, 3, 4, 4)) * np.array([0.1, 1.0, 5.0]).reshape(-1, 1, 1)
    x += np.array([2.0, 0.0, -1.0]).reshape(-1, 1, 1)
    found = Release(1e9, 1e9, 0.0).statistics(x, seed=0, chunk=7)
    np.testing.assert_allclose(found.mean, x.mean(axis=(0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(found.variance, x.var(axis=(0, 2, 3)), rtol=1e-4)
    normalized = found.normalized(x)
    np.testing.assert_allclose(normalized.mean(axis=(0, 2, 3)), 0.0, atol=1e-5)
    np.testing.assert_allclose(normalized.std(axis=(0, 2, 3)), 1.0, rtol=1e-3)


def test_release_has_the_noise_that_it_says():
    from normalization import Release

    x, clip, noise = np.zeros((10, 500, 2, 2)), 3.0, 8.0
    means = [Release(clip, 1.0, noise).statistics(x, seed).mean for seed in range(20)]
    np.testing.assert_allclose(np.std(means), noise * clip / 10, rtol=0.03)
    np.testing.assert_allclose(np.mean(means), 0.0, atol=0.1)


def test_channels_of_unknown_variance_are_left_out():
    from normalization import Statistics

    statistics = Statistics(np.array([1.0, 1.0]), np.array([0.0, 4.0]))
    found = statistics.normalized(np.full((1, 2, 1, 1), 3.0))
    np.testing.assert_allclose(found[0, :, 0, 0], [0.0, 1.0], atol=1e-5)


@pytest.mark.parametrize(
    "mechanism, sampling, exact",
    [
        ("identity", "poisson", False),
        pytest.param("banded:2", "cyclic-poisson", False, marks=pytest.mark.slow),
        ("bisr:3", "fixed-order", True),
        ("bisr:3", "balls-in-bins", False),
    ],
)
@pytest.mark.slow_cases("identity-poisson-*", "bisr:3-balls-in-bins-False")
def test_training_beside_a_release_has_the_joint_budget(mechanism, sampling, exact):
    from normalization import joint_epsilon, plan_beside

    setting = {
        "mechanism": mechanism,
        "num_examples": 60,
        "batch_size": 20,
        "epochs": 3,
        "sampling": sampling,
        "test_seed": 0,
    }
    released, delta = 2.5, 1e-3
    plan = plan_beside(released, epsilon=2.0, delta=delta, **setting)
    joint = joint_epsilon(plan, released, plan.noise_multiplier, delta)
    assert 2.0 * 0.99 <= joint <= 2.0
    assert plan.epsilon < joint
    # A release of hardly anything costs nothing.
    alone = joint_epsilon(plan, 1e4, plan.noise_multiplier, delta)
    assert alone == pytest.approx(plan.epsilon, rel=1e-2)
    # `compose`, which knows of balls in bins no more than (epsilon, delta), is above.
    release = tf_bandmf.plan(
        "identity",
        noise_multiplier=released,
        delta=delta,
        num_examples=60,
        batch_size=60,
        epochs=1,
    )
    composed = tf_bandmf.compose([plan, release]).epsilon(delta)
    if exact:
        assert joint == pytest.approx(composed, rel=1e-6)
    else:
        assert joint <= composed * 1.01


def test_release_beside_balls_in_one_bin_is_one_gaussian_mechanism():
    from normalization import joint_epsilon

    from tf_bandmf.accounting import gaussian

    plan = tf_bandmf.plan(
        "bisr:2",
        noise_multiplier=1.5,
        delta=1e-3,
        num_examples=20,
        batch_size=20,
        epochs=4,
        sampling="balls-in-bins",
    )
    expected = gaussian.gaussian_epsilon((1.5**-2 + 2.0**-2) ** -0.5, 1e-3)
    found = joint_epsilon(plan, 2.0, 1.5, 1e-3)
    assert found == pytest.approx(expected, rel=0.03)


def test_half_precision_features_and_several_clip_norms_train_alike():
    import linear

    rng = np.random.default_rng(6)
    x, y = rng.normal(size=(30, 4)).astype(np.float16), rng.integers(0, 3, 30)
    plan = tf_bandmf.plan(
        "identity",
        noise_multiplier=0.5,
        delta=1e-3,
        num_examples=30,
        batch_size=10,
        epochs=2,
        test_seed=0,
    )
    found = {}
    for dtype in (np.float16, np.float32):
        for clips in ([1.0], [1.0, 100.0]):
            models = linear.LinearModels([0.5] * len(clips), clips, 0.9, 4, 3)
            inputs = linear.Features(x.astype(dtype), np.zeros(4))
            linear.train(plan, models, inputs, y, 0)
            found[dtype, len(clips)] = models
    for count in (1, 2):
        np.testing.assert_array_equal(
            found[np.float16, count].weights, found[np.float32, count].weights
        )
    inputs = linear.Features(x, np.zeros(4))
    sums = [found[np.float16, count].clipped_sum for count in (1, 2)]
    for models in found.values():
        models.weights[:] = 0.0
    alone, several = (total(inputs, y, np.arange(30)) for total in sums)
    np.testing.assert_allclose(alone[:, 0], several[:, 0], rtol=1e-5)
    # Nobody is clipped to 100: the gradients' sum, divided by it.
    residuals = np.full((30, 3), 1 / 3) - np.eye(3)[y]
    expected = np.vstack([x.astype(np.float64).T @ residuals, residuals.sum(axis=0)])
    np.testing.assert_allclose(100.0 * several[:, 1], expected, atol=1e-4)


def test_network_is_the_published_one():
    import cnn_tasks

    model = cnn_tasks.fashion_network()
    assert model.count_params() == 26_010
    shapes = [layer.output.shape[1:] for layer in model.layers]
    assert (13, 13, 16) in shapes and (5, 5, 32) in shapes and (4, 4, 32) in shapes


@pytest.mark.slow
def test_network_trains_with_last_and_averaged_weights(monkeypatch, tmp_path):
    import cnn
    import cnn_tasks

    monkeypatch.setattr(cnn, "VALIDATION", 30)
    rng = np.random.default_rng(7)
    experiment = object.__new__(cnn.Experiment)
    experiment.task = dataclasses.replace(
        cnn_tasks.FASHION_MNIST, epochs=2, batch_size=30
    )
    experiment.x = rng.random((120, 28, 28, 1)).astype(np.float32)
    experiment.y = rng.integers(0, 10, 120).astype(np.int32)
    experiment.num_train, experiment.cache = 90, tmp_path
    row = cnn_tasks.Row("DP-SGD", "identity", "poisson")
    found = experiment.train(row, "validation", 0.4, seed=100)
    assert [run["readout"] for run in found] == list(cnn_tasks.READOUTS)
    assert all(0.0 <= float(run["accuracy"]) <= 1.0 for run in found)
    assert {run["steps"] for run in found} == {6}
