"""Tests that a run makes only reserved private evaluations, with independent noise."""

from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf
from same_weights import refused
from scipy import stats
from small_models import built, data, make_plan, make_private_model, plan_and_model

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf.keras.metrics.evaluation import evaluations_left, released
from tf_bandmf.keras.run import admission
from tf_bandmf.noise.keys import NoiseKey


@pytest.fixture
def reserved():
    return make_plan("bsr:2", test_seed=None).reserve(metrics=0.2, evaluations=3)


@pytest.fixture
def begun(reserved):
    """Returns a model that was trained for one epoch."""
    model = make_private_model(reserved)
    model.fit(reserved.batches(*data), epochs=1, verbose=0)
    return model


@pytest.fixture
def begun_at(reserved):
    """Returns a function that restores a run from its files, like a new process."""

    def make(path=None, checkpoint=None):
        admission.forget()
        model = make_private_model(reserved)
        built(model, checkpoint)
        if path is not None:
            model.begin_run(reserved.batches(*data), path)
        return model

    return make


def test_a_run_evaluates_as_often_as_its_plan_says(begun, reserved):
    x = data[0]
    # Half of the predictions are right, so the noisy accuracy is five standard
    # deviations away from 0 and 1, where it would be clipped.
    y = (begun.predict(x, verbose=0).argmax(1) + np.arange(len(x)) % 2) % 3
    one = begun.evaluate_privately(x, y)
    # A second evaluation at the same step draws new noise.
    again = begun.evaluate_privately(x, y)
    assert one != again
    metrics = [tf_bandmf.keras.PrivateAccuracy(), tf_bandmf.keras.PrivateLoss(2.0)]
    two = begun.evaluate_privately(*data, metrics=metrics)
    assert list(two) == ["accuracy", "loss"]
    # Two metrics share one noise budget, so the noise of each grows by sqrt(2).
    sigma = reserved.measurements.noise_multiplier
    assert one.noise["accuracy"] == pytest.approx(0.5 * sigma / 22)
    assert two.noise["accuracy"] == pytest.approx(0.5 * sigma / 22 * 2**0.5)
    assert two.noise["loss"] == pytest.approx(sigma / 22 * 2**0.5)
    assert evaluations_left(begun.optimizer.run) == 0
    with pytest.raises(ValueError, match="All 3 private evaluations"):
        begun.evaluate_privately(*data)
    assert "3 private evaluation" in str(begun.privacy_statement())


def test_early_stopping_on_a_private_metric():
    plan = make_plan(test_seed=None, epochs=4).reserve(metrics=0.2, evaluations=4)
    model = make_private_model(plan)
    evaluation = tf_bandmf.keras.PrivateEvaluation(*data, every=1)
    stopping = keras.callbacks.EarlyStopping("private_accuracy", mode="min", patience=0)
    history = model.fit(
        plan.batches(*data), epochs=4, verbose=0, callbacks=[evaluation, stopping]
    ).history
    shown = history["private_accuracy"]
    noise = 0.5 * plan.measurements.noise_multiplier / len(data[0])
    assert history["private_accuracy_noise"] == pytest.approx([noise] * len(shown))
    assert len(shown) == 4 - evaluations_left(model.optimizer.run)


def test_the_callback_asks_for_no_more_than_there_are(reserved):
    plan, model = plan_and_model("bsr:2", test_seed=None, epochs=6)
    callback = tf_bandmf.keras.PrivateEvaluation(*data)
    with pytest.raises(ValueError, match=r"plan\(\.\.\.\)\.reserve\(metrics"):
        model.fit(plan.batches(*data), epochs=6, verbose=0, callbacks=[callback])
    plan = plan.reserve(metrics=0.2, evaluations=3)
    model = make_private_model(plan)
    with refused(model, ValueError, "`every` to more than 1"):
        model.fit(plan.batches(*data), epochs=6, verbose=0, callbacks=[callback])


def test_wrong_targets_are_told_before_a_step(reserved):
    model, kinds = make_private_model(reserved), r"(U11\(22,|int32\(20,)\)\)\. y needs"
    for y in (data[1].astype(str), data[1][:-2]):
        callback = tf_bandmf.keras.PrivateEvaluation(data[0], y)
        with refused(model, ValueError, kinds):
            model.fit(reserved.batches(*data), verbose=0, callbacks=[callback])


@pytest.mark.slow
def test_what_is_refused(begun_at, begun, tmp_path):
    with pytest.raises(ValueError, match="taken no step"):
        begun_at().evaluate_privately(*data)
    with pytest.raises(RuntimeError, match="inside a tf"):
        tf.function(lambda: begun.evaluate_privately(*data))()
    begun.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    # A saved model has no noise key. If it drew a new key, evaluations would be
    # unlimited.
    with pytest.raises(tf.errors.InvalidArgumentError, match="restored from a file"):
        loaded.evaluate_privately(*data)
    begun.layers[0].bias.assign(begun.layers[0].bias + 1.0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="changed"):
        begun.evaluate_privately(*data)
    assert evaluations_left(begun.optimizer.run) == 3
    begun.optimizer.vouch_for_weights("rounded for the test")
    begun.evaluate_privately(*data)


def test_users_must_be_named():
    plan = make_plan("identity", test_seed=None, unit="one user")
    plan = plan.reserve(metrics=0.2, evaluations=2)
    model = make_private_model(plan)
    model.fit(plan.batches(*data), epochs=1, verbose=0)
    with pytest.raises(ValueError, match="Pass users="):
        model.evaluate_privately(*data)
    actual = model.evaluate_privately(*data, users=np.arange(22) // 2)
    sigma = plan.measurements.noise_multiplier
    assert actual.noise["accuracy"] == pytest.approx(0.5 * sigma / 11)


def release(plan, sums, about, *steps, secret=b"k" * 32):
    """Returns the noisy sums that evaluations of the metric `about` release at `steps`."""
    run = mock.MagicMock(plan=plan, key=NoiseKey(secret))
    run.notes, run.num_evaluations = {"evaluations": set()}, {}
    run.weights_digest.return_value = 7
    return [released(run, sums, [about]) for run.step in steps]


def test_the_law_of_the_noise():
    """Tests that 4000 draws with 40 keys have a normal distribution (p > 10^-6)."""
    plan = make_plan(test_seed=None).reserve(metrics=0.2, evaluations=4)
    sigma = plan.measurements.noise_multiplier
    sums = np.linspace(-5.0, 5.0, 25)
    drawn = [
        release(plan, sums, "accuracy", 1, 1, 2, 3, secret=bytes([key]) * 32)
        for key in range(40)
    ]
    drawn = (np.reshape(drawn, [160, 25]) - sums) / sigma
    assert stats.kstest(np.ravel(drawn), "norm").pvalue > 1e-6
    # Evaluations that differ in step, position within a step, or key share no noise.
    products = drawn @ drawn.T / 25
    assert np.max(np.abs(products - np.diag(np.diag(products)))) < 6 / 25**0.5


def test_noise_is_bound_to_what_it_is_added_to():
    plan = make_plan(test_seed=None).reserve(metrics=0.2, evaluations=9)
    sums = np.zeros(3)
    (first,) = release(plan, sums, "a", 4)
    np.testing.assert_array_equal(release(plan, sums, "a", 4), [first])
    other_plan = make_plan().reserve(metrics=0.3, evaluations=9)
    changed = [
        release(plan, sums, "b", 4),
        release(plan, sums, "a", 5),
        release(plan, sums + [0, 0, 2**-30], "a", 4),
        release(plan, sums, "a", 4, secret=b"l" * 32),
        release(other_plan, sums, "a", 4),
    ]
    assert all(np.all(np.abs(other - first) > 1e-6) for (other,) in changed)


def evaluated(model, data, are_right):
    """Returns the private accuracy if the predictions in `are_right` are correct."""
    classes = model.predict(data[0], verbose=0).argmax(1)
    return model.evaluate_privately(data[0], (classes + ~are_right) % 3)["accuracy"]


@pytest.mark.slow
@pytest.mark.attack(
    "Unlimited evaluations, by restoring a checkpoint",
    tried="Evaluates after the first epoch, restores that checkpoint as a new process "
    "would, and evaluates again: with the same labels, then with others, until the "
    "plan's 3 evaluations are spent. Compares the noise.",
    area="noise",
)
@pytest.mark.invariant(8, 11)
def test_a_restored_run_releases_the_same_number_or_spends_another(
    begun_at, reserved, tmp_path, figure
):
    path, checkpoint = tmp_path / "run.private", tmp_path / "run.weights.h5"
    model = begun_at(path)
    model.fit(reserved.batches(*data), epochs=1, verbose=0)
    model.save_weights(checkpoint)
    # 6, 8 or 16 of 22 predictions are right. If the accuracy were nearer to 0 or 1, its
    # noisy value could be clipped.
    some = np.arange(22) % 4 == 0
    first = evaluated(model, data, ~some)
    # Repeating an evaluation returns the same value. This reveals nothing new, so it is
    # not counted.
    again = begun_at(path, checkpoint)
    assert evaluated(again, data, ~some) == first
    assert evaluations_left(again.optimizer.run) == 2
    # After a restore, an evaluation with another sum draws independent noise, and
    # counts as a new evaluation.
    third = np.arange(22) % 3 == 0
    others = [evaluated(begun_at(path, checkpoint), data, s) for s in (some, third)]
    assert len({first, *others}) == 3
    # With shared noise, the two values would differ by exactly 10/22, as the exact
    # accuracies do.
    assert first - others[0] != pytest.approx(10 / 22, abs=1e-6)
    with pytest.raises(ValueError, match="All 3 private evaluations"):
        evaluated(begun_at(path, checkpoint), data, np.arange(22) % 2 == 0)
    figure("a fourth evaluation is refused; a repeated one returns the same number")


@pytest.mark.slow
@pytest.mark.attack(
    "Unlimited evaluations, by spending before the private file exists",
    tried="Spends the plan's 3 evaluations: before the run has a private file, after "
    "fit has created the file, and after a second fit has read it. Resumes from the "
    "file as a new process would, and tries a fourth.",
    area="noise",
)
@pytest.mark.invariant(8, 11)
def test_the_private_file_knows_all_that_was_spent(
    begun_at, reserved, tmp_path, figure
):
    path, checkpoint = tmp_path / "run.private", tmp_path / "run.weights.h5"
    model, batches = begun_at(), reserved.batches(*data)
    right = np.arange(22) % 4 == 0
    for options in ({}, {"private_state": path}, {"private_state": path}):
        model.fit(batches, steps_per_epoch=1, verbose=0, **options)
        evaluated(model, data, right)
    model.save_weights(checkpoint)
    with pytest.raises(ValueError, match="must keep private_state"):
        model.fit(batches, epochs=1, private_state=tmp_path / "other.private")
    again = begun_at(path, checkpoint)
    # Control: the restored run is at its third step, which permits evaluations.
    assert again.optimizer.steps_taken == 3
    assert evaluations_left(again.optimizer.run) == 0
    with pytest.raises(ValueError, match="All 3 private evaluations"):
        evaluated(again, data, ~right)
    figure("after 3 evaluations and a restart, a fourth is refused")


def test_what_is_spent_is_on_record_before_it_is_released():
    plan = make_plan(test_seed=None).reserve(metrics=0.2, evaluations=2)
    run = mock.MagicMock(plan=plan, key=NoiseKey(b"k" * 32), step=1)
    run.num_evaluations, run.note.side_effect = {}, OSError("No space left on device")
    with pytest.raises(OSError, match="No space"):
        released(run, np.zeros(1), ["a"])


@pytest.mark.slow
def test_it_is_in_the_ledger(tmp_path):
    pytest.importorskip("sqlalchemy")
    from tf_bandmf.ledger import BudgetExceededError, LedgerError

    plan = make_plan("identity", test_seed=None).reserve(metrics=0.2, evaluations=2)
    ledger = tf_bandmf.Ledger(f"sqlite:///{tmp_path}/budgets.db")
    ledger.add_dataset("patients", epsilon=4.1, delta=1e-5)
    bound = ledger.bind(plan, "patients")
    assert bound.measurements == plan.measurements
    model = make_private_model(bound)
    model.fit(bound.batches(*data), epochs=1, verbose=0)
    model.evaluate_privately(*data)
    # The ledger entry of the run includes the evaluations, so the budget has no room
    # for another run.
    with pytest.raises(BudgetExceededError):
        ledger.bind(plan, "patients")
    model.optimizer.end_run("the test ends it")
    with pytest.raises(LedgerError, match="ended"):
        model.evaluate_privately(*data)
