"""The linear benchmark: its scattering features, and its training compared with `fit`."""

import pathlib

import keras
import numpy as np
import pytest
from small_models import make_private_model
from small_plans import small_plan

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks" / "utility"


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


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
    plan = small_plan(
        mechanism,
        60,
        20,
        3,
        noise_multiplier=0.5,
        delta=1e-3,
        sampling=sampling,
        workload="sgd:momentum=0.9",
        test_seed=seed,
    )
    ours = linear.LinearModels([rate, 2 * rate], 1.0, 0.9, 4, 3)
    linear.train(plan, ours, linear.Features(x, centre), y, seed)

    dense = keras.layers.Dense(3, kernel_initializer="zeros")
    inner = keras.optimizers.SGD(rate, momentum=0.9)
    model = make_private_model(
        plan, inner, model=[keras.Input((4,)), dense], additional_run=True
    )
    alone = linear.LinearModels([rate], 1.0, 0.9, 4, 3)
    linear.train(plan, alone, linear.Features(x, centre), y, seed)
    batches = plan.batches(x - centre, y.astype(np.int32))
    model.fit(batches, epochs=3, verbose=0)
    np.testing.assert_allclose(alone.weights[:4, 0], dense.kernel, atol=1e-4)
    np.testing.assert_allclose(alone.weights[4, 0], dense.bias, atol=1e-4)
    assert ours.shape == (5, 2, 3)
