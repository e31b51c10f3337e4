"""No registered accountant states an epsilon below a 60-digit lower bound."""

from importlib.metadata import version

import floors
import numpy as np
import pytest
from packaging.version import Version

import tf_bandmf
from tf_bandmf import participation as lib

N = 16
DELTAS = 10.0 ** np.array([-3.0, -6.0, -9.0, -12.0, -20.0])
NOISES = (1.0, 5.0, 100.0)
SMALL_NOISES = (0.05, 0.1, 0.25, 0.5, 0.7)
NEEDS_FINITE = pytest.mark.skipif(
    Version(version("dp-accounting")) < Version("0.6"),
    reason="dp-accounting 0.4 returns NaN for so little noise, which is refused",
)
STRATEGIES = {
    "identity": tf_bandmf.strategies.identity(N),
    "correlated": tf_bandmf.strategies.bsr(tf_bandmf.workloads.prefix_sum(N), bands=2),
}


def floor_of(participation, noise, epsilon):
    """Returns the delta of one sampled step, a lower bound on the delta of the run."""
    probability = 1.0
    if participation.is_amplified:
        size = participation.expected_batch_size()
        probability = size / participation.num_examples
    return floors.one_step(probability, noise, epsilon)


@pytest.mark.parametrize(
    "noises",
    [NOISES, pytest.param(SMALL_NOISES, marks=[pytest.mark.slow, NEEDS_FINITE])],
)
@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("kind", sorted(lib.PARTICIPATIONS))
@pytest.mark.invariant(12)
def test_no_certain_epsilon_is_below_its_floor(kind, name, noises):
    participation = lib.PARTICIPATIONS[kind].example(N)
    strategy = STRATEGIES[name]
    if strategy.matrix.bands > getattr(participation, "num_parts", N):
        pytest.skip("more bands than parts: refused")
    if participation.is_simulated:
        pytest.skip("simulated accountants have their own test below")
    accountant = participation.accountant(strategy.matrix)
    tried = 0
    for noise in noises:
        before = 0.0
        for delta in DELTAS:
            try:
                actual = accountant.guarantee(noise, float(delta))
            except ValueError as error:
                # The accountant may refuse noise that is far too small or too large.
                assert "epsilon" in str(error) or "delta must be" in str(error), error
                continue
            assert actual.kind in ("exact", "bound")
            # `floor_of` assumes a contribution of norm 1, and the columns of C have a
            # norm of at least 1. Therefore the result is not above the run's delta.
            assert floor_of(participation, noise, actual.epsilon) <= delta * (1 + 1e-9)
            assert actual.epsilon >= before
            before = actual.epsilon
            tried += 1
    assert tried >= 6


@pytest.mark.parametrize("confidence", [None, 0.99])
@pytest.mark.parametrize(
    "kind", [k for k, cls in sorted(lib.PARTICIPATIONS.items()) if cls.is_simulated]
)
def test_what_simulates_is_not_below_its_floor(kind, confidence):
    """Simulated epsilons (estimates and bounds) are not below that of a single step.

    This also holds for estimates, because a safety margin is added to them.
    """
    participation = lib.PARTICIPATIONS[kind].example(N)
    matrix = STRATEGIES["identity"].matrix
    accountant = participation.accountant(matrix, confidence)
    for noise, delta in ((1.0, 1e-2), (1.0, 1e-3), (2.0, 1e-2)):
        actual = accountant.guarantee(noise, delta)
        assert actual.kind == ("estimate" if confidence is None else "bound")
        assert floor_of(participation, noise, actual.epsilon) <= delta
