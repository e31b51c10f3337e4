"""Choosing a mechanism and its parameters for a budget."""

import numpy as np
import pytest

import tf_bandmf
from tf_bandmf import strategies, workloads
from tf_bandmf.participation import BallsInBins, FixedEpochOrder, MinSep
from tf_bandmf.participation.scheme import Scheme, samplings
from tf_bandmf.planning import band_search, calibration, choosing
from tf_bandmf.strategies import FAMILIES

BUDGET = {"epsilon": 2.0, "delta": 1e-5}
WORKLOAD = workloads.prefix_sum(80)
FIXED = FixedEpochOrder(2000, 100, 4)
CLOSED = ("identity", "lambda_cgd", "bisr", "bsr")


def test_without_memory_only_what_keeps_nothing_is_compared():
    choice = choosing.choose(
        WORKLOAD, FIXED, mechanism_names=CLOSED, max_memory_vectors=0, **BUDGET
    )
    assert all(row.memory_vectors == 0 for row in choice.table)
    assert choice.excluded == {"bsr": "it keeps at least one vector."}
    assert choice.mechanism.startswith("bisr:")
    assert choice.mechanism in choice.reason and choice.reason in str(choice)


def test_a_mechanism_with_its_size_keeps_what_it_needs():
    once, name = MinSep(80, 1), ("bsr:40",)
    choice = choosing.choose(WORKLOAD, once, mechanism_names=name, **BUDGET)
    assert choice.strategy.memory_vectors == 39
    with pytest.raises(ValueError, match="39 vectors, found max_memory_vectors = 31"):
        choosing.choose(
            WORKLOAD, once, mechanism_names=name, max_memory_vectors=31, **BUDGET
        )


def test_the_rows_are_those_of_the_named_mechanisms():
    from tf_bandmf.planning import comparison

    choice = choosing.choose(WORKLOAD, FIXED, mechanism_names=CLOSED, **BUDGET)
    calibrator = calibration.for_budget(FIXED, **BUDGET)
    for row in choice.table:
        again = comparison.build_row(row.mechanism, WORKLOAD, FIXED, calibrator)
        assert again.rmse == row.rmse
    # No other number of bands is better.
    for family in ("bisr", "bsr"):
        found = min(r.rmse for r in choice.table if r.mechanism.startswith(family))
        for p in (1, 2, 4, 8, 16):
            name = f"{family}:{p}"
            other = comparison.build_row(name, WORKLOAD, FIXED, calibrator)
            assert found <= other.rmse


def test_among_equals_the_cheapest_is_chosen():
    # bsr:1 is identity.
    choice = choosing.choose(
        workloads.identity(80),
        FIXED,
        mechanism_names=("bsr:2", "bisr:2", "identity"),
        **BUDGET,
    )
    assert choice.mechanism == "identity"


def test_a_plan_keeps_the_choice_in_its_file(tmp_path):
    plan = tf_bandmf.plan(
        "bisr",
        num_examples=2000,
        batch_size=100,
        epochs=4,
        max_memory_vectors=0,
        **BUDGET,
    )
    path = str(tmp_path / "plan.json")
    plan.save(path)
    loaded = tf_bandmf.Plan.load(path)
    assert loaded.fingerprint == plan.fingerprint
    for made in (plan, loaded):
        choice = made.choice
        (row,) = choice.table
        assert row.mechanism == choice.mechanism
        # The plan rounds coefficients to float32.
        np.testing.assert_allclose(plan.rmse(), row.rmse, rtol=1e-5)
    assert choosing.Choice.of_strategy(strategies.identity(4)) is None


def test_amplified_lambda_is_smaller_and_better_than_the_unamplified_one():
    """arXiv:2601.22334, section 5.1. The simulation has fixed seeds."""
    participation = BallsInBins(2000, 100, 4)
    choice = choosing.choose(
        WORKLOAD, participation, mechanism_names=("lambda_cgd",), **BUDGET
    )
    plain = strategies.optimized_lambda_cgd(WORKLOAD, participation)
    assert choice.strategy.parameters["lambda"] < plain.parameters["lambda"]
    calibrator = calibration.for_budget(participation, **BUDGET)
    noise = calibrator(plain, plain.sensitivity(participation)).noise_stddev
    error = np.sqrt(plain.per_step_squared_error(WORKLOAD).mean()) * noise
    assert choice.table[choice.mechanism].rmse < error


@pytest.mark.slow
def test_cyclic_sampling_gets_as_many_parts_as_bands():
    plan = tf_bandmf.plan(
        "bsr",
        num_examples=2000,
        batch_size=25,
        epochs=1,
        sampling="cyclic-poisson",
        **BUDGET,
    )
    choice = plan.choice
    assert plan.participation.num_parts == plan.strategy.matrix.bands > 1
    assert choice.mechanism == f"bsr:{plan.participation.num_parts}"
    assert plan.expected_batch_size == 25.0 and plan.num_steps == 80


@pytest.mark.parametrize("sampling", samplings())
def test_every_sampling_has_a_participation(sampling):
    scheme = Scheme(sampling, 2000, 100, 4)
    participation = scheme.participation(4 if scheme.is_cyclic else None)
    participation.validate_num_steps(scheme.num_steps)
    assert scheme.num_steps == 80
    with pytest.raises(ValueError, match="num_parts is for cyclic sampling"):
        scheme.participation(None if scheme.is_cyclic else 4)


@pytest.mark.slow
def test_the_best_number_of_bands_follows_the_published_pattern():
    """arXiv:2405.15913, Fig. 3b: roughly linear in epsilon and in 1 / epochs.

    The figure is within a factor of 2 and the minimum is flat: what the pattern predicts
    must cost at most 2% more than the best number, and the direction must be right.
    """

    def search(epochs, epsilon):
        found = band_search.best_bands(
            workloads.prefix_sum(1024),
            epochs,
            epsilon,
            1e-6,
            mechanism="bsr:normalized",
            candidates=[2, 4, 8, 16, 32],
        )
        return found.best.bands, {c.bands: c.rmse for c in found.candidates}

    middle, _ = search(8, 2.0)
    more, errors = search(8, 4.0)
    assert more > middle
    assert errors[2 * middle] <= 1.02 * errors[more]
    fewer, errors = search(16, 2.0)
    assert fewer < middle
    assert errors[middle // 2] <= 1.02 * errors[fewer]
    # The rule of thumb of arXiv:2405.15913, section 4.3: epsilon sqrt(n) / k.
    assert 4.0 <= middle <= 16.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "median"}, "objective must be"),
        ({"max_memory_vectors": -1}, "max_memory_vectors must be"),
        ({"mechanism_names": ("magic",)}, "mechanism must be one of"),
        ({"mechanism_names": ("bsr:4",), "max_memory_vectors": 2}, "keeps 3 vectors"),
        ({"mechanism_names": ("tree:2",)}, "takes no value"),
    ],
)
def test_a_choice_without_candidates_or_goal_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        choosing.choose(WORKLOAD, FIXED, **BUDGET, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampling": "random"}, "sampling must be one of fixed-order"),
        ({"sampling": "poisson", "num_steps": 80}, "either sampling"),
        ({"sampling": "cyclic-poisson", "mechanism": "bisr"}, "use balls-in-bins"),
        ({"mechanism": "auto:4"}, "auto chooses all parameters itself"),
        ({"mechanism": "auto", "epsilon": None, "noise_multiplier": 1.0}, "budget"),
    ],
)
def test_a_plan_whose_sampling_contradicts_it_is_refused(options, message):
    data = {"num_examples": 2000, "batch_size": 100, "epochs": 4}
    with pytest.raises(ValueError, match=message):
        tf_bandmf.plan(**{**BUDGET, **data, **options})


@pytest.mark.slow
def test_doubling_epsilon_doubles_the_bands_and_doubling_epochs_halves_them():
    """arXiv:2405.15913, Fig. 3b, exactly: normalized Toeplitz strategies."""
    n, counts = 4096, [2**i for i in range(9)]
    workload = workloads.prefix_sum(n)
    build_many = FAMILIES["toeplitz"].build_many
    found = list(build_many(workload, MinSep(512, 8), counts, True))

    def best(epochs, epsilon):
        calibrate = calibration.for_rates(
            "cyclic-poisson", n, n // epochs, epochs, epsilon, 1e-6
        )
        participation = MinSep(n // epochs, epochs)

        def amplified(strategy):
            sensitivity = strategy.sensitivity(participation)
            error = strategy.per_step_squared_error(workload).mean() ** 0.5
            return error * calibrate(strategy, sensitivity).noise_stddev

        return min(found, key=amplified).noise_bands

    bands = {(k, eps): best(k, eps) for k in (4, 8, 16) for eps in (1.0, 2.0)}
    assert bands == {
        (4, 1.0): 32,
        (4, 2.0): 64,
        (8, 1.0): 16,
        (8, 2.0): 32,
        (16, 1.0): 8,
        (16, 2.0): 16,
    }
