"""The linear benchmark: scattering features, and training beside Keras' `fit`."""

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


def test_scattering_has_kymatios_values():
    from scattering import scattering

    image = np.random.RandomState(0).random_sample((1, 28, 28)).astype(np.float32)
    found = scattering(image)[0, [0, 1, 9, 17, 80], 3, 3]
    np.testing.assert_allclose(found, KYMATIO, rtol=2e-4)


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
        keras.Sequential([keras.layers.Input((4,)), dense])
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


def test_release_has_the_noise_that_it_says():
    from normalization import Release

    x, clip, noise = np.zeros((10, 500, 2, 2)), 3.0, 8.0
    means = [Release(clip, 1.0, noise).statistics(x, seed).mean for seed in range(20)]
    np.testing.assert_allclose(np.std(means), noise * clip / 10, rtol=0.03)
    np.testing.assert_allclose(np.mean(means), 0.0, atol=0.1)


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
