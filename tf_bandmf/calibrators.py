"""How much noise a strategy gets: from a participation and a budget to a calibrator.

A calibrator is a function of a strategy and its sensitivity: tables and choices, which
look at many strategies, take one. Accounting is that of `accounting.dispatch`.
"""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Callable

from tf_bandmf.accounting.guarantee import Calibration
from tf_bandmf.participation import CyclicPoisson, Participation
from tf_bandmf.sensitivity import Sensitivity
from tf_bandmf.strategies import Strategy

Calibrator = Callable[[Strategy, Sensitivity], Calibration]


@dataclasses.dataclass(frozen=True)
class _ForBudget:
    """A calibrator that says for which budget, for strategies that depend on it."""

    calibrate: Calibrator
    epsilon: float
    delta: float

    def __call__(self, strategy: Strategy, sensitivity: Sensitivity) -> Calibration:
        return self.calibrate(strategy, sensitivity)

    @property
    def budget(self) -> dict[str, float]:
        return {"epsilon": self.epsilon, "delta": self.delta}


def unamplified(noise_multiplier: float = 1.0) -> Calibrator:
    """One Gaussian mechanism, no amplification: noise in proportion to sens(C).

    Args:
      noise_multiplier: sigma, per unit of sensitivity; 1 compares mechanisms without a
        budget.

    Raises:
      ValueError: if noise_multiplier is not finite and positive.
    """
    if not (math.isfinite(noise_multiplier) and noise_multiplier > 0.0):
        raise ValueError(
            f"noise_multiplier must be finite and > 0, found {noise_multiplier}."
        )

    def calibrate(strategy: Strategy, sensitivity: Sensitivity) -> Calibration:
        stddev = noise_multiplier * sensitivity.value
        return Calibration(stddev, noise_multiplier, "sensitivity")

    return calibrate


def for_budget(
    participation: Participation,
    epsilon: float,
    delta: float,
    confidence: float | None = None,
    progress: bool = False,
) -> Calibrator:
    """Noise for (epsilon, delta) by the accountant of the participation.

    Amplified noise is given per unit of column norm.

    Args:
      participation: what the sampler does.
      epsilon: > 0.
      delta: in (0, 1).
      confidence: of accounting by simulation; see `tf_bandmf.plan`.
      progress: show progress on accounting that takes longer than 2 seconds.

    Raises:
      ValueError: if the budget is invalid; the calibrator raises it for a strategy that
        the participation contradicts.
    """
    _check_budget(epsilon, delta)

    def calibrate(strategy: Strategy, sensitivity: Sensitivity) -> Calibration:
        # dp-accounting takes a second to import: only for those who have a budget.
        from tf_bandmf.accounting.dispatch import accountant_for

        accountant = accountant_for(
            strategy, participation, confidence, progress=progress
        )
        return _per_column_norm(accountant.calibrate(epsilon, delta), strategy)

    return _ForBudget(calibrate, epsilon, delta)


def cyclic_poisson(
    num_steps: int, epochs: int | Fraction, epsilon: float, delta: float
) -> Calibrator:
    """Cyclic Poisson sampling whose cycle is the number of bands of each strategy.

    With b parts an example is sampled with probability `epochs * b / num_steps` in its
    turn, so that `epochs` participations are expected (amplified-banded-mf, section 5).

    Args:
      num_steps: n.
      epochs: expected participations of an example, > 0.
      epsilon: > 0.
      delta: in (0, 1).

    Raises:
      ValueError: if the budget or epochs is invalid; the calibrator raises it for a
        strategy whose bands do not fit.
    """
    _check_budget(epsilon, delta)
    if not 0 < epochs <= num_steps:
        raise ValueError(
            f"epochs must be > 0 and <= num_steps = {num_steps}, found {epochs}."
        )

    def calibrate(strategy: Strategy, sensitivity: Sensitivity) -> Calibration:
        participation = cyclic_participation(num_steps, epochs, strategy)
        calibrator = for_budget(participation, epsilon, delta)
        return calibrator(strategy, sensitivity)

    return _ForBudget(calibrate, epsilon, delta)


def cyclic_participation(
    num_steps: int, epochs: int | Fraction, strategy: Strategy
) -> CyclicPoisson:
    """Cyclic Poisson sampling with as many parts as the strategy has bands.

    Only the rate `epochs / num_steps` matters to the accountant: the data set is the
    smallest one for which it is a batch size over a number of examples.

    Raises:
      ValueError: if the cycle does not fit `epochs` times into the run.
    """
    epochs = Fraction(epochs)
    parts = strategy.matrix.bands
    if epochs * parts > num_steps:
        raise ValueError(
            f"{strategy.family} has {parts} bands: a cycle of as many steps does not fit "
            f"{epochs} times into {num_steps}. Use fewer bands, or --sampling "
            f"balls-in-bins, which needs no banded strategy."
        )
    examples = num_steps * epochs.denominator
    return CyclicPoisson(examples, epochs.numerator, parts)


def balls_in_bins(
    num_bins: int,
    epsilon: float,
    delta: float,
    num_draws: int | None = None,
    progress: bool = False,
) -> Calibrator:
    """Balls in bins, an estimate; for any number of steps, unlike `BallsInBins`.

    A run of that participation ends with an epoch. Tables may also ask for another
    number of steps, and searches for fewer draws.

    Args:
      num_bins: b.
      epsilon: > 0.
      delta: in (0, 1).
      num_draws: of the simulation; by default those of the accountant. Equal draws are
        used for all strategies.
      progress: show progress on accounting that takes longer than 2 seconds.

    Raises:
      ValueError: if the budget is invalid; the calibrator raises it for a strategy with
        negative entries.
    """
    _check_budget(epsilon, delta)
    options = {} if num_draws is None else {"num_draws": num_draws}

    def calibrate(strategy: Strategy, sensitivity: Sensitivity) -> Calibration:
        from tf_bandmf.accounting.balls_in_bins import BallsInBinsAccountant

        accountant = BallsInBinsAccountant.of_strategy(
            strategy.matrix, num_bins, progress=progress, **options
        )
        stddev = accountant.calibrate_noise_stddev(epsilon, delta).noise_stddev
        return _per_column_norm(Calibration(stddev, stddev, "raw"), strategy)

    return _ForBudget(calibrate, epsilon, delta)


def _per_column_norm(found: Calibration, strategy: Strategy) -> Calibration:
    if found.normalization != "raw":
        return found
    norm = float(strategy.matrix.column_norms().max())
    return dataclasses.replace(
        found, noise_multiplier=found.noise_stddev / norm, normalization="column_norm"
    )


def _check_budget(epsilon: float, delta: float) -> None:
    from tf_bandmf.accounting import gaussian

    gaussian.check_positive("epsilon", epsilon)
    gaussian.check_delta(delta)
