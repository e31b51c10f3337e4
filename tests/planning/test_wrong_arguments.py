"""If an argument of `plan` is wrong, the error names it and the expected values."""

import pytest
from small_plans import small_plan

import tf_bandmf
from tf_bandmf import strategies, workloads

NOISE = "noise_multiplier"
IS_ZERO = "epsilon = 0 at delta.*smaller noise_multiplier"
IS_LARGE = r"epsilon > 10000 at delta = 1e-05\. Add noise"
PARTS = "Pass epsilon.*sampling=CyclicPoisson"


CYCLIC = {"sampling": tf_bandmf.CyclicPoisson(10_000, 100, 8)}
CYCLIC |= dict.fromkeys(("num_examples", "batch_size", "epochs"))


def make_plan(mechanism="identity", **changes):
    sizes = {"num_examples": 1000, "batch_size": 100, "epochs": 2}
    return small_plan(mechanism, **{**sizes, **changes})


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"confidence": 0.9}, "needs simulated accounting"),
        ({"mechanism": "lambda_cgd:0.9999999999"}, r"lambda must be in \[0, 1\), also"),
        ({NOISE: 1e9}, IS_ZERO),
        ({NOISE: 1e6, "sampling": "balls-in-bins"}, IS_ZERO),
        ({NOISE: 0.006}, IS_LARGE),
        ({NOISE: 0.006, "sampling": "balls-in-bins"}, IS_LARGE),
        ({"mechanism": "bsr:2", NOISE: 1.0, "sampling": "cyclic-poisson"}, PARTS),
        ({"epsilon": 4.0, NOISE: 1.0}, "exactly one"),
        ({"epsilon": 1e-13, "delta": 1e-14}, "larger"),
        ({"num_steps": 3}, "num_steps must be 20"),
        ({"sampling": tf_bandmf.MinSep(10)}, "epochs must be left out"),
        ({"sampling": "poisson", "num_steps": 80}, "num_steps must be left out"),
        ({"sampling": "cyclic-poisson", "mechanism": "bisr"}, "Use balls-in-bins"),
        ({"mechanism": "auto", NOISE: 1.0}, "Pass epsilon"),
        ({"mechanism": strategies.identity(19)}, "20"),
        ({"workload": workloads.prefix_sum(19)}, "19"),
        ({**CYCLIC, "mechanism": "lambda_cgd", "num_steps": 160}, "Use BallsInBins"),
        ({**CYCLIC, "mechanism": "bsr:16", "num_steps": 160}, "num_parts >= 16"),
        ({**CYCLIC, "num_steps": 160, "batch_size": 9}, "Omit batch_size=9.* 100"),
        ({**CYCLIC, "num_steps": 160, "num_examples": 9}, "Omit num_examples=9.*10000"),
    ],
)
def test_a_wrong_argument_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        make_plan(**changes)


def test_largest_lambda_is_a_float32_number_below_one():
    largest = 1.0 - 2.0**-24
    assert strategies.lambda_cgd(4, largest).in_float32().matrix is not None
    with pytest.raises(ValueError, match="lambda must be"):
        strategies.lambda_cgd(4, 1.0 - 2.0**-26)


@pytest.mark.parametrize("sampling", ["fixed-order", "poisson", "balls-in-bins"])
def test_the_largest_budget_has_guarantees_at_other_deltas(sampling):
    """At other deltas, epsilon may exceed 10,000, the maximum epsilon of a budget."""
    plan = make_plan(epsilon=1e4, sampling=sampling)
    epsilons = [plan.guarantee_at(delta).epsilon for delta in (1e-4, 1e-5, 1e-9)]
    assert epsilons[0] < 1e4 < epsilons[2]
    assert epsilons[1] == pytest.approx(1e4, rel=1e-3)


@pytest.mark.parametrize("budget", [{"epsilon": 500}, {NOISE: 0.03}])
def test_an_epsilon_that_promises_nothing_is_named(budget):
    with pytest.warns(UserWarning, match="epsilon = .* protects nobody"):
        make_plan(**budget)
