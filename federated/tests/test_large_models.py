"""Plans for models whose ring buffer would not fit."""

import functools
import logging

import pytest

import tf_bandmf
from tf_bandmf.files import machine
from tf_bandmf_federated import HostNoise, plan_that_fits

D = 10**8
BUDGET = dict(
    epsilon=4.0, delta=1e-6, num_steps=8, participation=tf_bandmf.MinSep(4, 2)
)


@functools.cache
def without_a_limit():
    return tf_bandmf.plan("auto", **BUDGET)


def ours(caplog):
    """What this package said; TensorFlow and others log to their own loggers."""
    return [r.getMessage() for r in caplog.records if r.name.startswith("tf_bandmf")]


def test_without_memory_a_stateless_mechanism_is_chosen_and_its_cost_said(caplog):
    with caplog.at_level(logging.WARNING, "tf_bandmf"):
        plan = plan_that_fits(D, memory_bytes=4 * D - 1, **BUDGET)
    assert plan.strategy.memory_vectors == 0
    (message,) = ours(caplog)
    wanted = without_a_limit()
    assert wanted.strategy.memory_vectors > 0
    assert message.startswith(f"{wanted.choice.mechanism} does not fit into 0.4 GB. ")
    assert f"keeps {wanted.strategy.memory_vectors} vectors of 100,000,000" in message
    assert f"Instead: {plan.choice.mechanism}. Noise keeps 0 vectors" in message
    more = plan.rmse() / wanted.rmse() - 1.0
    assert more > 0.0 and f"({100.0 * more:.1f}% more)" in message


def test_with_memory_it_is_the_plan_without_a_limit(caplog):
    with caplog.at_level(logging.WARNING, "tf_bandmf"):
        plan = plan_that_fits(1, **BUDGET)
    assert plan.fingerprint == without_a_limit().fingerprint
    assert not ours(caplog)


def test_wrong_arguments():
    with pytest.raises(TypeError, match="chooses mechanism itself"):
        plan_that_fits(D, mechanism="bsr", **BUDGET)
    with pytest.raises(ValueError, match=r"num_parameters must be .* >= 1, found 0"):
        plan_that_fits(0, **BUDGET)
    with pytest.raises(ValueError, match=r"memory_bytes must be .* >= 0, found -1"):
        plan_that_fits(D, memory_bytes=-1, **BUDGET)


def test_a_ring_buffer_beyond_the_machine_is_refused_before_it_is_made():
    def plan(mechanism):
        return tf_bandmf.plan(mechanism, **BUDGET)

    too_many = machine.memory_bytes() // 12 + 1  # of 3 vectors of 4 bytes
    with pytest.raises(MemoryError, match=r"keeps 3 vectors .*lambda_cgd"):
        HostNoise(plan("bsr:4"), too_many)
    HostNoise(plan("lambda_cgd"), too_many)
