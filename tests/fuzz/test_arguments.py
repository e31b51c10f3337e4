"""Public functions refuse wrong values of any argument with an error that names it."""

import numpy as np
import pytest
from hostile import complaints, limited
from hypothesis import given, settings
from hypothesis import strategies as st
from small_plans import planned

import tf_bandmf
from tf_bandmf import noise, participation, strategies, workloads
from tf_bandmf.accounting import gaussian

WORKLOAD = workloads.prefix_sum(8)
SMALL = {"num_examples": 100, "batch_size": 10, "epochs": 2}
PLAN = {
    "mechanism": "identity",
    "epsilon": 1.0,
    "delta": 1e-5,
    **SMALL,
    "noise_multiplier": None,
    "num_steps": None,
    "sampling": None,
    "workload": None,
    "l2_norm_clip": 1.0,
    "unit": "one example",
}
FUNCTIONS = {
    "plan": (tf_bandmf.plan, PLAN),
    "MinSep": (participation.MinSep, {"min_separation": 3, "max_participations": 2}),
    "FixedEpochOrder": (participation.FixedEpochOrder, {**SMALL, "order_seed": 0}),
    "Shuffled": (participation.Shuffled, SMALL),
    "BallsInBins": (participation.BallsInBins, SMALL),
    "CyclicPoisson": (
        participation.CyclicPoisson,
        {"num_examples": 10, "batch_size": 2, "num_parts": 2},
    ),
    "identity": (strategies.identity, {"num_steps": 8}),
    "lambda_cgd": (strategies.lambda_cgd, {"num_steps": 8, "lambda_": 0.5}),
    "bisr": (strategies.bisr, {"workload": WORKLOAD, "bands": 2}),
    "binary_tree": (strategies.binary_tree, {"num_steps": 8}),
    "momentum_sgd": (
        workloads.momentum_sgd,
        {"num_steps": 8, "momentum": 0.5, "decay": 0.9, "learning_rates": None},
    ),
    "NoiseGenerator": (
        noise.NoiseGenerator,
        {
            "strategy": strategies.identity(3),
            "num_parameters": 3,
            "num_shards": 1,
            "generator": "philox",
        },
    ),
    "bands_that_fit": (
        tf_bandmf.bands_that_fit,
        {"num_bytes": 100, "num_parameters": 3},
    ),
    "compose": (tf_bandmf.compose, {"plans": []}),
    "compare": (
        tf_bandmf.compare,
        {
            "mechanisms": ["identity"],
            "num_steps": WORKLOAD.num_steps,
            "sampling": participation.MinSep(4, 2),
        },
    ),
    "advise": (
        tf_bandmf.advise,
        {
            **{"num_examples": 100, "epsilon": 1.0, "delta": 1e-5, "epochs": 2},
            "num_parameters": 10,
            "max_batch_size": 50,
            "sampling": "fixed-order",
            "mechanism": "identity",
        },
    ),
    "tuning_cost": (
        tf_bandmf.tuning_cost,
        {
            "plan": tf_bandmf.plan("identity", epsilon=1.0, delta=1e-5, **SMALL),
            "expected_trials": 3.0,
            "distribution": "geometric",
            "delta": None,
        },
    ),
}
# For each argument, the names of the hostile values that are valid for it. Functions
# must refuse all other values, except None, which stands for the default.
RIGHT = {
    "epsilon": {"half", "1.5", "tiny"},
    "delta": {"half", "tiny"},
    "momentum": {"0", "-0.0", "half", "tiny"},
    "decay": {"half", "1.5", "tiny"},
    "l2_norm_clip": {"half", "1.5"},
    "noise_multiplier": {"half", "1.5"},
    "unit": {"text", "number as text", "long text"},
    "lambda_": {"0", "-0.0", "half", "tiny"},
    "order_seed": {"0", "-0.0"},
    "min_separation": {"huge float", "2^63", "10^30"},
    "max_participations": {"huge float", "2^63", "10^30"},
    "num_examples": {"huge float", "2^63", "10^30"},
    "epochs": {"huge float", "2^63", "10^30"},
    "num_parameters": {"huge float", "2^63", "10^30"},
    "num_shards": {"huge float", "2^63", "10^30"},
    "num_bytes": {"huge float", "2^63", "10^30"},
    "max_batch_size": {"huge float", "2^63", "10^30"},
    "expected_trials": {"1.5"},
    "distribution": {"0", "-0.0", "half", "1.5", "inf"},
}
# For each argument, words that an error message may contain instead of its name.
NAMES = {
    "lambda_": ["lambda"],
    "num_examples": ["num_steps", "batch_size"],
    "batch_size": ["num_examples"],
    "epochs": ["num_steps"],
    "noise_multiplier": ["noise_multiplier", "epsilon"],
    "num_steps": ["num_rows", "participation"],
    "epsilon": ["noise_multiplier"],
    "num_parts": ["num_examples", "parts"],
}


@pytest.mark.slow_cases("tuning_cost")
@pytest.mark.attack(
    "Wrong arguments of public functions",
    tried="Every argument of 17 functions gets 32 values of wrong type, range and size.",
    area="fuzz",
)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_wrong_argument_gets_an_error_that_names_it(name):
    function, arguments = FUNCTIONS[name]
    accepts = lambda name, kind: kind == "None" or kind in RIGHT.get(name, ())  # noqa: E731
    wrong = complaints(function, arguments, accepts, NAMES)
    assert not wrong, wrong


BUDGET = st.fixed_dictionaries(
    {
        "epsilon": st.one_of(st.none(), st.floats(), st.integers()),
        "delta": st.one_of(st.none(), st.floats(), st.sampled_from([1e-5, 1e-9])),
        "noise_multiplier": st.one_of(st.none(), st.none(), st.floats()),
        "num_examples": st.integers(-2, 200),
        "batch_size": st.integers(-1, 50),
        "epochs": st.integers(-1, 5),
        "mechanism": st.sampled_from(["identity", "lambda_cgd:0.5", "bsr:2", "bisr:3"]),
        "workload": st.sampled_from(
            [None, *(f"sgd:momentum={m}" for m in ("0.9", "1.0", "-0.5", "nan"))]
        ),
        "l2_norm_clip": st.one_of(st.just(1.0), st.floats()),
    }
)


@pytest.mark.attack(
    "Random budgets",
    tried="Plans with random arguments, sensible or not: either the noise suffices for "
    "the budget, or an error says what is wrong.",
    area="fuzz",
)
@settings(max_examples=80, deadline=None, derandomize=True, database=None)
@given(BUDGET)
@pytest.mark.invariant(12)
def test_a_plan_of_any_numbers_is_right_or_refused(arguments):
    with limited():
        try:
            plan = tf_bandmf.plan(**arguments)
        except (ValueError, TypeError) as error:
            assert any(
                f"{name}" in str(error)
                for name in (*arguments, "clip", "bands", "momentum")
            )
            return
    assert 0.0 < plan.noise_stddev < np.inf
    actual = gaussian.gaussian_epsilon(plan.noise_multiplier, plan.delta)
    assert actual <= plan.epsilon * (1 + 1e-9)
    if arguments["epsilon"] is not None:
        assert plan.epsilon <= arguments["epsilon"] * (1 + 1e-9)


@pytest.mark.attack(
    "Absurd sizes",
    tried="Plans and strategies for up to 10^12 steps are refused at once, and the "
    "error says how much memory they would need.",
    area="load",
)
def test_absurd_sizes_are_refused_with_what_they_would_need():
    sizes = {"num_examples": 10**12, "batch_size": 10, "epochs": 1}
    with limited(), pytest.raises(ValueError, match=r"num_steps .* 1.6e\+12 bytes"):
        tf_bandmf.plan("identity", epsilon=1.0, delta=1e-13, **sizes)
    with limited(), pytest.raises(ValueError, match=r"num_steps .* 8e\+12 bytes"):
        strategies.identity(10**12)
    with limited(), pytest.raises(ValueError, match="num_steps of the binary tree"):
        strategies.binary_tree(10**7)
    with (
        limited(),
        pytest.raises(ValueError, match="num_steps must be <= 8192 for a den"),
    ):
        strategies.dense(workloads.prefix_sum(10**6), participation.MinSep(1, 1))
    many = participation.BallsInBins(10**6, 10, 1)
    with limited(), pytest.raises(ValueError, match="num_bins must be <= 8192"):
        planned("identity", sampling=many, noise_multiplier=1.0)
