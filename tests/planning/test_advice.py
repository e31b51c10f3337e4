"""Advice: what is predicted is what the plan has, and what follows from it."""

import dataclasses
import json
import math

import numpy as np
import pytest

import tf_bandmf
from tf_bandmf import workloads
from tf_bandmf.planning import learning_rates, run_settings, sampling_advice
from tf_bandmf.strategies import registry

DATA = {"num_examples": 4000, "num_parameters": 2410, "delta": 1e-5, "epochs": 8}


@pytest.fixture(scope="module", autouse=True)
def few_mechanisms():
    """What "auto" compares, in seconds: these tests do not depend on it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "auto_names", lambda *_: ("identity", "bisr"))
        patch.setattr(sampling_advice, "advised", lambda strategy, *_: strategy)
        yield


@pytest.fixture(scope="module")
def advice(few_mechanisms):
    return tf_bandmf.advise(epsilon=4.0, fan_in=64, **DATA)


def sample(scale=1.0, num_parameters=2410):
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, num_parameters)) + 0.2
    return tf_bandmf.GradientSample.of_gradients(scale * rows, fan_in=64)


def test_the_plan_has_exactly_the_predicted_noise(advice):
    again = tf_bandmf.plan(**advice.arguments)
    assert again.fingerprint == advice.plan.fingerprint
    assert again.noise_multiplier == advice.plan.noise_multiplier
    assert again.rmse() == advice.setting.rmse
    assert again.num_steps == advice.setting.num_steps
    assert (again.epsilon, again.delta) == (4.0, 1e-5)
    assert again.participation.sampling == advice.setting.sampling


def test_one_engine_chooses_the_mechanism_and_gives_its_reasons(advice):
    plan = tf_bandmf.plan(
        "auto",
        epsilon=4.0,
        delta=1e-5,
        num_examples=4000,
        batch_size=advice.setting.batch_size,
        epochs=8,
        sampling=advice.setting.sampling,
    )
    assert plan.fingerprint == advice.plan.fingerprint
    assert advice.setting.mechanism == plan.choice.mechanism
    assert plan.choice.reason in dict(advice.reasons)["mechanism"]
    assert advice.setting in advice.settings
    # What is asked of it is asked of the plan.
    named = tf_bandmf.advise(
        epsilon=4.0, mechanism="bsr:4", sampling="fixed-order", **DATA
    )
    assert {one.mechanism for one in named.settings} == {"bsr:4"}
    assert named.plan.strategy.family == "bsr"
    assert "mechanism" not in dict(named.reasons)
    kept = tf_bandmf.advise(
        epsilon=4.0, max_memory_vectors=0, sampling="fixed-order", **DATA
    )
    assert kept.plan.strategy.memory_vectors == 0
    with pytest.raises(ValueError, match="No setting of poisson"):
        tf_bandmf.advise(epsilon=4.0, mechanism="bisr:4", sampling="poisson", **DATA)


def test_the_comparison_is_right_to_two_percent(advice):
    for one in advice.settings:
        if one.batch_size not in (4000, 256):
            continue
        plan = tf_bandmf.plan(
            one.mechanism,
            epsilon=4.0,
            delta=1e-5,
            num_examples=4000,
            batch_size=one.batch_size,
            epochs=8,
            sampling=one.sampling,
        )
        assert one.rmse == pytest.approx(plan.rmse(), rel=0.02)


def test_the_smallest_useful_batch_within_a_tenth_of_the_least_noise(advice):
    chosen = advice.setting
    of_same = [one for one in advice.settings if one.sampling == chosen.sampling]
    useful = [one for one in of_same if not one.has_few_steps]
    assert 0 < len(useful) < len(of_same)
    least = min(one.noise_to_signal for one in useful)
    good = [one for one in useful if one.noise_to_signal <= 1.1 * least]
    assert chosen.batch_size == min(one.batch_size for one in good)
    assert len(good) < len(useful)
    # Sizes go down by powers of two; large batches have too few steps.
    sizes = [one.batch_size for one in of_same]
    assert sizes[0] == 4000 and sizes[1] == 2048
    assert all(a == 2 * b for a, b in zip(sizes[1:-1], sizes[2:], strict=True))
    assert max(one.batch_size for one in useful) < min(
        one.batch_size for one in of_same if one.has_few_steps
    )
    assert "too few steps" in dict(advice.reasons)["batch size"]


def test_more_budget_has_less_noise():
    found = [
        tf_bandmf.advise(epsilon=epsilon, sampling="fixed-order", **DATA)
        for epsilon in (0.5, 1.0, 2.0, 4.0, 8.0)
    ]
    ratios = [one.noise_to_signal for one in found]
    assert ratios == sorted(ratios, reverse=True) and len(set(ratios)) == 5
    # At each batch size; and less noise allows larger rates.
    for less, more in zip(found[:-1], found[1:], strict=True):
        of_more = {one.batch_size: one for one in more.settings}
        shared = [one for one in less.settings if one.batch_size in of_more]
        assert len(shared) > 3
        for one in shared:
            other = of_more[one.batch_size]
            assert other.noise_to_signal < one.noise_to_signal
            assert other.learning_rate >= one.learning_rate


def test_more_epochs_never_have_more_noise():
    settings = dict(DATA)
    found = []
    for settings["epochs"] in (2, 8, 32):
        one = tf_bandmf.advise(epsilon=2.0, sampling="fixed-order", **settings)
        found.append(one.noise_to_signal)
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_noise_to_signal_is_that_of_the_dense_matrices(momentum):
    n, d, batch = 30, 7, 50
    workload = workloads.momentum_sgd(n, momentum)
    dense = workload.to_dense()
    # DP-SGD with noise multiplier 3: the noise in the models is A Z.
    errors = 9.0 * np.square(dense).sum(axis=1)
    rmse = math.sqrt(errors.mean())
    noise = math.sqrt(d * errors.mean()) / batch
    signal = math.sqrt(np.square(dense.sum(axis=1)).mean())
    found = run_settings.noise_to_signal(workload, rmse, batch, d)
    assert found == pytest.approx(noise / signal)
    ratio = run_settings.noise_batch_ratio(workload, rmse, batch)
    assert ratio == pytest.approx(3.0 / batch)


def test_the_learning_rate_follows_from_the_noise(advice):
    # Noise in a weight: 3 / sqrt(fan-in).
    assert advice.setting.expected_batch_size == advice.plan.expected_batch_size
    noise = advice.learning_rate * advice.plan.rmse() / advice.plan.expected_batch_size
    assert noise * math.sqrt(64.0) == pytest.approx(3.0, rel=0.01)
    low, high = advice.learning_rate_range
    assert low == pytest.approx(advice.learning_rate / 2.0)
    assert high == pytest.approx(advice.learning_rate * 2.0)


def test_without_a_fan_in_it_is_guessed_from_the_number_of_parameters():
    named, guessed = (
        tf_bandmf.advise(epsilon=4.0, sampling="fixed-order", **DATA, **given)
        for given in ({"fan_in": 10.0 * math.sqrt(DATA["num_parameters"])}, {})
    )
    assert guessed.setting == named.setting
    assert guessed.learning_rate == named.learning_rate
    assert "is a guess" in dict(guessed.reasons)["learning rate"]
    assert "is a guess" not in dict(named.reasons)["learning rate"]


def test_the_moving_average_remembers_a_tenth_of_the_steps(advice):
    # The mean age of what an average with momentum g holds is about 1 / (1 - g).
    age = 1.0 / (1.0 - advice.ema_momentum)
    assert age == pytest.approx(0.1 * advice.plan.num_steps)
    assert learning_rates.ema_momentum(10) == learning_rates.ema_momentum(1) == 0.0


def test_the_learning_rate_is_limited_where_there_is_little_noise():
    found = tf_bandmf.advise(
        epsilon=1000.0, momentum=0.5, fan_in=1, sampling="fixed-order", **DATA
    )
    assert found.learning_rate * found.l2_norm_clip == pytest.approx(5.0)
    assert "noise would allow more" in dict(found.reasons)["learning rate"]


def test_public_gradients_give_clip_norm_and_signal(advice):
    public = sample()
    found = tf_bandmf.advise(epsilon=4.0, public_gradients=public, **DATA)
    assert found.setting == advice.setting
    median = np.median(public.norms)
    assert found.l2_norm_clip == pytest.approx(0.1 * median, rel=0.01)
    assert found.plan.l2_norm_clip == found.l2_norm_clip
    # The same update for gradients that are clipped to another norm.
    per_clip = found.learning_rate * found.l2_norm_clip
    assert per_clip == pytest.approx(advice.learning_rate * advice.l2_norm_clip)
    assert found.noise_to_signal == pytest.approx(
        advice.noise_to_signal / public.alignment
    )
    assert "clips 100%" in dict(found.reasons)["clip norm"]


def test_the_scale_of_gradients_changes_clip_norm_and_rate_alone():
    one, ten = (
        tf_bandmf.advise(
            epsilon=4.0,
            sampling="fixed-order",
            public_gradients=sample(scale),
            **DATA,
        )
        for scale in (1.0, 10.0)
    )
    assert ten.l2_norm_clip == pytest.approx(10.0 * one.l2_norm_clip, rel=0.01)
    assert ten.learning_rate == pytest.approx(0.1 * one.learning_rate, rel=0.01)
    assert ten.noise_to_signal == pytest.approx(one.noise_to_signal)
    assert ten.setting == one.setting


def test_limits_are_kept():
    settings = {**DATA, "epochs": None, "max_examples_seen": 9000}
    settings["sampling"] = "fixed-order"
    found = tf_bandmf.advise(epsilon=4.0, max_batch_size=100, **settings)
    assert found.setting.epochs == 2
    assert max(one.batch_size for one in found.settings) == 100
    assert found.setting.batch_size <= 100


@pytest.mark.slow_cases("cyclic-poisson")
@pytest.mark.parametrize("sampling", ["shuffled", "cyclic-poisson"])
def test_a_sampling_that_is_named_is_used(sampling):
    settings = {**DATA, "num_examples": 400, "epochs": 2}
    found = tf_bandmf.advise(
        epsilon=2.0, sampling=sampling, max_batch_size=32, **settings
    )
    assert {one.sampling for one in found.settings} == {sampling}
    assert found.plan.participation.sampling == sampling


def test_a_sampling_that_demands_more_must_be_worth_it(monkeypatch, advice):
    """3% less noise."""
    batch_sizes = run_settings.Scan.batch_sizes

    def with_less(part):
        def less(self, sampling, *arguments):
            found = batch_sizes(self, "fixed-order", *arguments)
            if sampling == "fixed-order":
                return found
            return [
                dataclasses.replace(
                    one,
                    sampling=sampling,
                    mechanism="identity",
                    noise_to_signal=(1.0 - part) * one.noise_to_signal,
                )
                for one in found
            ]

        return less

    for part, wanted in ((0.02, "fixed-order"), (0.04, "poisson")):
        monkeypatch.setattr(run_settings.Scan, "batch_sizes", with_less(part))
        found = tf_bandmf.advise(epsilon=4.0, fan_in=64, max_batch_size=512, **DATA)
        assert found.setting.sampling == wanted
        assert found.plan.participation.sampling == wanted
        text = dict(found.reasons)["sampling"]
        assert "It demands" in text and f"has {100 * part:.0f}%" in text


def test_advice_is_json_and_text(advice):
    found = tf_bandmf.advise(
        epsilon=4.0, sampling="fixed-order", expected_trials=5, **DATA
    )
    record = json.loads(json.dumps(found.to_record(), allow_nan=False))
    assert record["batch_size"] == found.setting.batch_size
    assert record["tuning"]["epsilon"] == found.tuning.epsilon > 4.0
    assert record["kind"] == "exact" and record["alignment"] is None
    text = str(found)
    for word in ("batch size", "learning rate", "at least", "private trials"):
        assert word in text
    assert "private trials:" in text and "private trials:" not in str(advice)
    assert "guess" in dict(found.reasons)["learning rate"]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"epochs": None}, "Say what can be computed in one way"),
        ({"max_examples_seen": 1e6}, "Say what can be computed in one way"),
        ({"epochs": 0}, "epochs must be a whole number >= 1"),
        ({"epochs": None, "max_examples_seen": 10}, "less than one epoch"),
        ({"num_parameters": None}, "num_parameters is missing"),
        ({"num_parameters": -1}, "num_parameters must be a whole number"),
        ({"num_examples": 0}, "num_examples must be a whole number"),
        ({"max_batch_size": 0}, "max_batch_size must be a whole number"),
        ({"sampling": "uniform"}, "sampling must be one or more of fixed-order"),
        ({"sampling": ()}, "sampling must be one or more of fixed-order"),
        ({"mechanism": "bisrr"}, "mechanism"),
        ({"mechanism": 4}, "mechanism"),
        ({"max_memory_vectors": -1}, "max_memory_vectors must be"),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\)"),
        ({"fan_in": 0}, "fan_in must be finite and > 0"),
        ({"epsilon": -1.0}, "epsilon must be finite and > 0"),
        ({"delta": 2.0}, r"delta must be in \(0, 1\)"),
        ({"expected_trials": 0.5}, "expected_trials must be a number from 1"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_wrong_arguments(change, message):
    settings = {**DATA, "epsilon": 4.0, "sampling": "fixed-order", **change}
    with pytest.raises(ValueError, match=message):
        tf_bandmf.advise(**settings)


def test_gradients_are_a_sample():
    with pytest.raises(TypeError, match="public_gradients must be a GradientSample"):
        tf_bandmf.advise(epsilon=4.0, public_gradients=np.ones((3, 2)), **DATA)
