"""The Gaussian accountant is accurate, and its delta is never below the exact one."""

import floors
import hypothesis
import mpmath
import numpy as np
import pytest
from hypothesis import strategies as st

from tf_bandmf.accounting import gaussian

SETTINGS = hypothesis.settings(derandomize=True, deadline=None, max_examples=30)


@SETTINGS
@hypothesis.given(epsilon=st.floats(0.01, 50.0), log10_delta=st.floats(-12.0, -1.0))
def test_calibration_is_safe_and_tight(epsilon, log10_delta):
    delta = 10.0**log10_delta
    sigma = gaussian.calibrate_noise_stddev(epsilon, delta)
    assert gaussian.gaussian_delta(sigma, epsilon) <= delta
    assert gaussian.gaussian_delta(sigma * (1 - 1e-6), epsilon) > delta
    actual = gaussian.gaussian_epsilon(sigma, delta)
    np.testing.assert_allclose(actual, epsilon, rtol=1e-5)
    assert gaussian.gaussian_delta(sigma, actual) <= delta


@pytest.mark.parametrize("noise", [0.008, 0.007])
def test_an_epsilon_near_the_largest_of_a_budget_is_stated(noise):
    """Epsilons from 8,000 to 11,000 are accurate; one above 100,000 raises an error."""
    actual = gaussian.gaussian_epsilon(noise, 1e-5)
    with mpmath.workdps(50):
        s = mpmath.mpf(noise)
        places = [sign / (2 * s) - actual * s for sign in (1, -1)]
        exact = mpmath.ncdf(places[0]) - mpmath.exp(actual) * mpmath.ncdf(places[1])
    assert 8_000 < actual < 11_000
    assert float(exact) == pytest.approx(1e-5, rel=1e-4) and exact <= 1e-5
    with pytest.raises(ValueError, match="epsilon > 100000"):
        gaussian.gaussian_epsilon(0.1 * noise, 1e-5)


@pytest.mark.invariant(12)
def test_no_delta_is_below_60_digits():
    rng = np.random.default_rng(1)
    noises = 10.0 ** rng.uniform(-2.0, 2.0, 400)
    places = rng.uniform(-2.0, 30.0, 400)
    epsilons = (places + 0.5 / noises) / noises
    # In these two cases, rounding errors could make delta too small by a factor of
    # 1 - 6e-14.
    cases = [(2.2564810416155723, 3.627097444543423), (0.3, 100.0)]
    for noise, epsilon in [*zip(noises.tolist(), epsilons.tolist()), *cases]:
        if not 0.0 <= epsilon <= 1e4:
            continue
        actual = gaussian.gaussian_delta(noise, epsilon)
        floor = floors.gaussian(1.0, noise, epsilon)
        assert floor <= actual <= floor * (1 + 1e-6) + 1e-280, (noise, epsilon)
