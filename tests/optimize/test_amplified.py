"""Tangents and steps of the search for amplified strategies."""

import dataclasses
import functools

import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf import workloads
from tf_bandmf.optimize import amplified, amplified_forms, lbfgs, objectives

FORMS = {
    "inverse": (amplified_forms.InverseBands, np.array([0.5, -1.0, -1.5])),
    "buffers": (amplified_forms.Buffers, np.array([2.0, 1.0, -0.5, 0.5])),
}


def problem(objective=objectives.MEAN, beta=0.0, form=amplified_forms.InverseBands):
    workload = workloads.momentum_sgd(24, beta)
    return amplified.Problem(form(workload), objective, 6, 2.0, 1e-5, 1000)


@pytest.mark.slow_cases("buffers", "inverse")
@pytest.mark.parametrize("name", FORMS)
def test_the_tangent_touches_the_objective(name):
    form, variables = FORMS[name]
    found = problem(form=form)
    noise = found.noise(variables, 0, None)
    value, gradient, weights = found.tangent(noise, variables)
    assert value == pytest.approx(found.value(noise, variables), rel=1e-9)
    gram = found.gram(tf.constant(variables)).numpy()
    log_sigma = noise.log_sigma(found.gram(tf.constant(variables)))
    np.testing.assert_allclose(np.sum(weights * gram), np.exp(2 * log_sigma), rtol=1e-9)
    for way in 1e-5 * np.eye(variables.size):
        difference = found.value(noise, variables + way)
        difference -= found.value(noise, variables - way)
        np.testing.assert_allclose(gradient @ way, 0.5 * difference, rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("beta", [0.0, 0.9])
def test_steps_lower_the_objective_until_none_does(beta):
    found = problem(beta=beta)
    start = np.array([0.0, -1.0, -1.0])
    before = found.value(found.noise(start, 0, None), start)
    options = lbfgs.Options(
        max_iterations=10,
        gradient_tolerance=2e-3,
        decrease_tolerance=2e-3,
        progress=False,
    )
    result = amplified.optimize(found, start, options)
    assert result.converged
    # By draws that the search did not see.
    noise = found.noise(result.position, 1000, None)
    after = found.value(noise, result.position)
    assert after < before - 0.01
    for way in 0.3 * np.concatenate([np.eye(3), -np.eye(3)]):
        assert found.value(noise, result.position + way) > after - 4e-3


class Recorded(amplified.Problem):
    """Notes for which noise its draws are made, and which they find there."""

    def noise(self, variables, seed, stddev):
        noise = super().noise(variables, seed, stddev)
        log_sigma = float(noise.log_sigma(self.gram(tf.constant(variables))))
        self.made.append((stddev, np.exp(log_sigma)))
        return noise


@functools.cache
def from_afar():
    """A problem and what six steps find from a bad start."""
    form = amplified_forms.InverseBands(workloads.prefix_sum(24))
    found = Recorded(form, objectives.MEAN, 6, 0.5, 1e-5, 1000)
    object.__setattr__(found, "made", [])
    options = lbfgs.Options(max_iterations=6, gradient_tolerance=0.0, progress=False)
    return found, amplified.optimize(found, np.array([3.0, 2.0, 2.0]), options)


@pytest.mark.slow
def test_new_draws_are_made_for_the_noise_of_their_point():
    found, _ = from_afar()
    assert len(found.made) > 1
    for stddev, needed in found.made[1:]:
        assert stddev == pytest.approx(needed, rel=0.02)


@pytest.mark.slow
def test_what_few_draws_find_is_not_worse_than_the_start():
    few = dataclasses.replace(problem(), num_draws=6)
    # Where 1,000 draws find nothing better.
    start = np.array([-0.2, -2.3, -5.8])
    options = lbfgs.Options(max_iterations=4, gradient_tolerance=0.0, progress=False)
    result = amplified.optimize(few, start, options)
    assert few.first_value(result.position) <= few.first_value(start)


@pytest.mark.slow
def test_too_few_steps_are_no_convergence():
    _, result = from_afar()
    assert not result.converged
    assert "6 steps" in result.message
