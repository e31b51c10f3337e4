"""Wrong arguments of `plan`: the error names the argument and what is expected."""

import pytest
from small_plans import planned

import tf_bandmf
from tf_bandmf import MinSep, Poisson, strategies

BASE = {
    "mechanism": "identity",
    "epsilon": 1.0,
    "delta": 1e-5,
    "num_examples": 1000,
    "batch_size": 100,
    "epochs": 2,
}
NO_EPOCHS = {"num_examples": None, "batch_size": None, "epochs": None}


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"epsilon": 1e6}, "epsilon must be <= 10000, found 1000000.0"),
        ({"mechanism": 3}, "mechanism must be a name.*or a Strategy, found 3"),
        ({"mechanism": None}, "mechanism must be a name.*or a Strategy, found None"),
        ({"workload": "const"}, "workload must be prefix, identity or sgd:"),
        ({"test_seed": True}, "test_seed must be an int or None, found True"),
        ({"confidence": 0.9}, "confidence must be None where accounting"),
        (
            {"confidence": 0.9, "sampling": "cyclic-poisson"},
            "confidence must be None where accounting",
        ),
        ({"mechanism": "lambda_cgd:0.9999999999"}, r"lambda must be in \[0, 1\), also"),
        (
            {"sampling": "poisson", "epochs": None},
            "epochs missing: give num_examples",
        ),
        (
            {"epsilon": None, "noise_multiplier": 1e9},
            "epsilon = 0 at delta.*smaller noise_multiplier",
        ),
        *[
            (
                {"epsilon": None, "noise_multiplier": 1e6, "sampling": sampling},
                "epsilon = 0 at delta.*smaller noise_multiplier",
            )
            for sampling in ("poisson", "balls-in-bins")
        ],
        *[
            (
                {"epsilon": None, "noise_multiplier": 0.006, "sampling": sampling},
                r"epsilon > 10000 at delta = 1e-05\. Add noise",
            )
            for sampling in ("fixed-order", "balls-in-bins")
        ],
        (
            {
                **{"mechanism": "bsr:2", "epsilon": None, "noise_multiplier": 1.0},
                "sampling": "cyclic-poisson",
            },
            "number of parts.*chosen for a budget: give epsilon.*CyclicPoisson",
        ),
        *[
            (
                {**NO_EPOCHS, "sampling": MinSep(1), "num_steps": steps},
                f"num_steps must be a whole number >= 1, found {steps!r}",
            )
            for steps in (-5, 0, 2.5, "10", True)
        ],
        (
            {
                **NO_EPOCHS,
                "sampling": MinSep(1),
                "num_steps": 5,
                "batch_size": "10",
            },
            "batch_size must be finite and > 0, found '10'",
        ),
    ],
)
def test_a_wrong_argument_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        planned(**{**BASE, **changes})


@pytest.mark.parametrize("delta", [0.0, 1e-21, 1.0])
@pytest.mark.parametrize("budget", [{"epsilon": 1.0}, {"noise_multiplier": 2.0}])
def test_a_delta_out_of_range_under_poisson_sampling_is_refused(delta, budget):
    participation = Poisson(num_examples=1000, batch_size=100)
    with pytest.raises(ValueError, match="delta"):
        tf_bandmf.plan(
            "identity",
            delta=delta,
            sampling=participation,
            num_steps=20,
            **budget,
        )


def test_largest_lambda_is_a_float32_number_below_one():
    largest = 1.0 - 2.0**-24
    assert strategies.lambda_cgd(4, largest).in_float32().matrix is not None
    with pytest.raises(ValueError, match="lambda must be"):
        strategies.lambda_cgd(4, 1.0 - 2.0**-26)


@pytest.mark.parametrize("sampling", ["fixed-order", "poisson", "balls-in-bins"])
def test_the_largest_budget_has_guarantees_at_other_deltas(sampling):
    """They were refused as epsilons above 10,000."""
    plan = tf_bandmf.plan(**{**BASE, "epsilon": 1e4, "sampling": sampling})
    epsilons = [plan.guarantee_at(delta).epsilon for delta in (1e-4, 1e-5, 1e-9)]
    assert epsilons[0] < 1e4 < epsilons[2]
    assert epsilons[1] == pytest.approx(1e4, rel=1e-3)


def test_an_epsilon_that_promises_nothing_is_named():
    with pytest.warns(UserWarning, match="epsilon = 500 promises nothing"):
        tf_bandmf.plan(
            "identity",
            epsilon=500,
            delta=1e-5,
            num_examples=100,
            batch_size=10,
            epochs=1,
        )
