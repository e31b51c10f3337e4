"""Calibration of noise for a budget, if the accountant simulates."""

import numpy as np
import pytest

import tf_bandmf
from tf_bandmf import matrices, strategies
from tf_bandmf.accounting.b_min_sep_simulator import BMinSepSimulator
from tf_bandmf.accounting.guarantee import Simulation
from tf_bandmf.participation import BMinSepSampling

SAMPLED = BMinSepSampling(400, 20, 3)


def banded(last=0.3, n=20):
    rows = np.tile([1.0, 0.5, last], (n, 1))
    rows[0, 1:] = rows[1, 2] = 0.0
    return strategies.Strategy("custom", matrices.RowBanded(rows), {}, {})


def alone(strategy, participation, epsilon, delta, confidence=None):
    simulation = Simulation(confidence)
    return participation.accountant(strategy.matrix, simulation).calibrate(
        epsilon, delta
    )


@pytest.fixture
def main_runs(monkeypatch):
    """Counts the simulation's main runs, without pilot runs."""
    actual = []
    original = BMinSepSimulator.simulate

    def counted(self, *arguments):
        actual.append(arguments)
        return original(self, *arguments)

    monkeypatch.setattr(BMinSepSimulator, "simulate", counted)
    return actual


def test_a_plan_uses_the_noise_of_its_choice(main_runs):
    use = {"num_examples": 640, "batch_size": 32, "epochs": 4}
    plan = tf_bandmf.plan("bsr", epsilon=2.5, delta=1e-5, sampling="b-min-sep", **use)
    count = len(main_runs)
    noise = alone(plan.strategy, plan.participation, 2.5, 1e-5).noise_stddev
    assert len(main_runs) == 2 * count
    assert plan.noise_stddev == pytest.approx(noise, rel=2e-7)
    assert plan.noise_stddev >= noise
