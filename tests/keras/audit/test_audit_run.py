"""Tests that an audit contradicts a run's epsilon only if noise is missing."""

import keras
import pytest
from audited_runs import NUM, WIDTH, audited, linear, plan_of, problem
from small_models import make_min_sep_plan

import tf_bandmf.keras
from tf_bandmf.accounting.guarantee import fill
from tf_bandmf.keras.run import noising


def scaled():
    clipping = tf_bandmf.keras.Clipping(scaling="second_moment")
    return {"inner": keras.optimizers.Adam(0.05), "clipping": clipping}


@pytest.mark.attack(
    "An audit of a Keras run",
    tried="Includes each of 256 canaries by a coin flip, and guesses the included ones "
    "from the noisy gradients of all steps, and from the losses of the final model.",
    area="audit",
)
@pytest.mark.invariant(3, 4)
@pytest.mark.parametrize("kind", ["identity", "bsr:4", "scaled"])
@pytest.mark.slow_cases("identity", "scaled")
def test_a_sound_run_is_believed(kind, figure):
    plan = plan_of("bsr:4" if kind == "scaled" else kind)
    scales = scaled() if kind == "scaled" else {}
    # The audit uses the noisy gradient sums, which do not include the weight penalty.
    actual = audited(plan, **scales, kernel_regularizer="l2")
    assert not actual.contradicts and actual.white_box.num_canaries == WIDTH
    # An included canary participates three times, each time with the full clip norm.
    assert 0.8 / plan.noise_multiplier < actual.white_box.signal
    assert actual.white_box.signal <= (1 + 1e-5) / plan.noise_multiplier
    assert 0.1 * plan.epsilon < actual.white_box.epsilon <= plan.epsilon
    assert "White box: Audit with 256" in str(actual)
    least = fill("{:.1f down}", actual.white_box.epsilon)
    figure(f"{kind}: epsilon >= {least} of {plan.epsilon:g}")


@pytest.mark.parametrize("scales", [False, True])
@pytest.mark.slow_cases("True")
def test_a_run_without_noise_is_seen(scales, monkeypatch):
    def without_noise(total, noise, stddev, batch_size):
        return (total + 1e-3 * stddev * noise) / batch_size

    monkeypatch.setattr(noising, "noisy_mean", without_noise)
    plan = plan_of("identity", epsilon=1.0)
    actual = audited(plan, **(scaled() if scales else {}))
    assert actual.white_box.contradicts
    # Adam's steps do not scale with the gradient, so a black-box audit sees little.
    assert scales or actual.black_box.contradicts


@pytest.mark.slow
def test_an_amplified_run_has_a_black_box_alone():
    # Setting the noise multiplier directly avoids a calibration search. Here, epsilon
    # is near 8.
    changes = {"epsilon": None, "noise_multiplier": 0.25, "sampling": "poisson"}
    actual = audited(plan_of("identity", **changes))
    assert actual.white_box is None and not actual.contradicts
    assert "batches are secret" in str(actual)


def test_what_cannot_be_audited_is_refused():
    x, y = problem()
    model = linear(plan_of("identity"))
    for canaries in ([1, 1], [0.5, 1.0], [3], [-1, 2], [0, NUM]):
        with pytest.raises(ValueError, match="distinct indices"):
            tf_bandmf.keras.audit.audit_run(model, x, y, canaries=canaries)
    with pytest.raises(TypeError, match="makes no batches"):
        tf_bandmf.keras.audit.audit_run(
            linear(make_min_sep_plan()), x, y, canaries=[0, 1]
        )
    model.train_on_batch(next(iter(model.optimizer.plan.batches(x, y))))
    with pytest.raises(ValueError, match="new run"):
        tf_bandmf.keras.audit.audit_run(model, x, y, canaries=[0, 1])
    model.compile("sgd", "mse")
    with pytest.raises(TypeError, match="PrivateOptimizer"):
        tf_bandmf.keras.audit.audit_run(model, x, y, canaries=[0, 1])
