"""Noise for a budget: the one place that answers.

`accountant_for` gives the accountant of a participation.
All noise is its standard deviation on the raw strategy `C`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from tf_bandmf import matrices
from tf_bandmf.accounting.guarantee import Calibration, Simulation
from tf_bandmf.files import configs
from tf_bandmf.participation import Participation
from tf_bandmf.strategies import Strategy

if TYPE_CHECKING:
    from tf_bandmf.accounting.base import Accountant

# Relative rounding of a noise multiplier.
_ROUNDING = 5e-10


def accountant_for(
    strategy: Strategy,
    participation: Participation,
    confidence: float | None = None,
) -> Accountant:
    """The accountant of a participation; there is no other way to one.

    The participation is what the sampler does. It alone says who accounts for it, so
    that no accountant can be asked about another sampler.

    Args:
      strategy: C.
      participation: what the sampler does.
      confidence: of a simulation, see `accounting.guarantee.Simulation`.

    Raises:
      ValueError: if the participation contradicts the strategy.
    """
    participation.validate_num_steps(strategy.num_steps)
    return participation.accountant(strategy.matrix, Simulation(confidence))


def calibrated(
    strategy: Strategy,
    participation: Participation,
    epsilon: float,
    delta: float,
    confidence: float | None = None,
) -> Calibration:
    """The smallest noise for a budget, by the accountant of the participation.

    A simulation that this process has made already, of the same matrix, participation,
    budget and confidence, to the last bit, is not made again.

    Args:
      strategy: C.
      participation: what the sampler does.
      epsilon: > 0.
      delta: in (0, 1).
      confidence: of a simulation, see `accounting.guarantee.Simulation`.

    Raises:
      ValueError: if the budget is invalid or the participation contradicts the strategy.
    """
    if not participation.is_simulated:
        return accountant_for(strategy, participation).calibrate(epsilon, delta)
    participation.validate_num_steps(strategy.num_steps)
    matrix = configs.dumps(strategy.matrix.to_config())
    how = Simulation(confidence)
    return _simulated(matrix, participation, how, (float(epsilon), float(delta)))


@functools.lru_cache(maxsize=8)
def _simulated(
    matrix: str, use: Participation, how: Simulation, budget: tuple[float, float]
) -> Calibration:
    """The noise for a budget by simulation, of a matrix as its configuration."""
    made = matrices.from_config(configs.loads(matrix))
    return use.accountant(made, how).calibrate(*budget)


def multiplier_of(noise_stddev: float, sensitivity: float) -> float:
    """The noise multiplier of a calibrated noise: per unit of sensitivity.

    Rounded up: the product with the sensitivity must not be smaller, and the epsilon of a
    later account, itself rounded up by 1e-10, not larger than the budget.
    """
    return noise_stddev / sensitivity * (1.0 + _ROUNDING)
