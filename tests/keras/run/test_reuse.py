"""Tests that runs restored from old files never add equal noise to different sums."""

import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from same_weights import flat
from small_models import built, make_private_model
from small_plans import small_plan

from tf_bandmf.keras.run import noising

SIZE, BATCH, STDDEV = 40, 8, 3.0
LEARNING_RATE = 1.0


class Switched(keras.losses.Loss):
    """A loss that can change its sign without a change of its name or config."""

    sign = 1.0

    def call(self, y_true, y_pred):
        return Switched.sign * keras.ops.sum((y_pred - y_true) ** 2, axis=-1)


@pytest.fixture(autouse=True)
def as_before():
    yield
    Switched.sign = 1.0


def make_model(plan, checkpoint=None):
    layers = [keras.Input((SIZE,)), keras.layers.Dense(SIZE)]
    inner = keras.optimizers.SGD(LEARNING_RATE)
    model = make_private_model(plan, inner, model=layers, loss=Switched())
    if checkpoint is None:
        model.set_weights([np.zeros_like(w) for w in model.get_weights()])
        return model
    return built(model, checkpoint)


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3 * BATCH, SIZE)).astype("f4")
    return x, 100 * rng.normal(size=(3 * BATCH, SIZE)).astype("f4")


def plan_of(mechanism):
    return small_plan(mechanism, 3 * BATCH, BATCH, 1, noise_multiplier=STDDEV)


def begun(mechanism, folder):
    """Takes the first step of a run, saves its files, and returns its plan."""
    plan = plan_of(mechanism)
    model = make_model(plan)
    batches = model.begin_run(plan.batches(*data()), folder / "run.private")
    for batch in batches.dataset(0).take(1):
        model.train_on_batch(batch)
    model.save_weights(folder / "1.weights.h5")
    return plan


def step_from_a_copy(plan, folder, world, sign):
    """Resumes a run from copied files, and returns how step 2 changes its weights.

    The private file is copied to a name for this `world`. The loss of step 2 is
    multiplied by `sign`.
    """
    shutil.copy(folder / "run.private", folder / f"{world}.private")
    model = make_model(plan, folder / "1.weights.h5")
    batches = model.begin_run(plan.batches(*data()), folder / f"{world}.private")
    before = flat(model)
    Switched.sign = sign
    for batch in batches.dataset(1).take(1):
        model.train_on_batch(batch)
    return before - flat(model)


@pytest.mark.slow_cases(but=["lambda_cgd:0.9"])
@pytest.mark.attack(
    "A backup of a run, resumed with another loss",
    tried="Copies the private file and the checkpoint of step 1, and takes step 2 from "
    "each copy, with the loss and with its negative, which negates the clipped sum. "
    "Looks for the sum in the difference of the two releases.",
    area="noise",
)
@pytest.mark.parametrize("mechanism", ["bsr:2", "lambda_cgd:0.9", "identity"])
@pytest.mark.invariant(8, 11)
def test_two_worlds_share_no_noise(mechanism, tmp_path, figure):
    plan = begun(mechanism, tmp_path)
    releases = [
        step_from_a_copy(plan, tmp_path, world, sign)
        for world, sign in (("as it was", 1.0), ("changed", -1.0), ("again", 1.0))
    ]
    # Equal clipped sums give equal updates of the weights, bit for bit.
    np.testing.assert_array_equal(releases[0], releases[2])
    # The releases are S + N and -S + N', with the clipped sum S. If N' = N, their
    # difference is 2 S without noise. If N and N' are independent, the standard
    # deviation of each of the 1640 coordinates of the difference is sqrt(2) times that
    # of N; S adds little, because its norm is at most 8 clip norms.
    deviation = plan.noise_stddev / plan.expected_batch_size
    actual = (releases[0] - releases[1]).std() / (np.sqrt(2) * deviation)
    figure(f"{mechanism}: the difference has {actual:.2f} times the promised noise")
    assert actual > 0.85 and actual < 4.0
    mean = (releases[0] + releases[1]).std() / (np.sqrt(2) * deviation)
    assert mean > 0.85


def test_the_measure_sees_noise_that_is_reused(tmp_path, monkeypatch):
    # Control: noise that depends only on the step cancels in the difference.
    monkeypatch.setattr(
        noising, "keyed_digest", lambda *values, **options: tf.zeros([2], tf.int32)
    )
    plan = begun("identity", tmp_path)
    first = step_from_a_copy(plan, tmp_path, "a", 1.0)
    second = step_from_a_copy(plan, tmp_path, "b", -1.0)
    deviation = plan.noise_stddev / plan.expected_batch_size
    assert (first - second).std() < 0.6 * np.sqrt(2) * deviation
