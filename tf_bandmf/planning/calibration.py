"""How much noise for this budget: the one place that answers.

`accountant_for` gives the accountant of a participation. A calibrator is a function of a
strategy and its sensitivity: tables and choices, which look at many strategies, take one.
All noise is its standard deviation on the raw strategy `C`.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
import math
from fractions import Fraction
from typing import TYPE_CHECKING, Callable

from tf_bandmf.accounting.base import Simulation
from tf_bandmf.accounting.checks import check_delta, check_positive
from tf_bandmf.accounting.guarantee import Calibration
from tf_bandmf.analysis.sensitivity import Sensitivity
from tf_bandmf.files import configs
from tf_bandmf.participation import NAMED, Participation
from tf_bandmf.participation.scheme import Scheme
from tf_bandmf.strategies import Strategy

if TYPE_CHECKING:
    from tf_bandmf.accounting.base import Accountant

Calibrator = Callable[[Strategy, Sensitivity], Calibration]

# Calibrations by simulation, the last ones: by a digest of all that determines them.
_SIMULATED: collections.OrderedDict[bytes, Calibration] = collections.OrderedDict()
_MOST_SIMULATED = 8
# Relative rounding of a noise multiplier.
_ROUNDING = 5e-10


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


def accountant_for(
    strategy: Strategy,
    participation: Participation,
    confidence: float | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Accountant:
    """The accountant of a participation; there is no other way to one.

    The participation is what the sampler does. It alone says who accounts for it, so
    that no accountant can be asked about another sampler.

    Args:
      strategy: C.
      participation: what the sampler does.
      confidence: of a simulation, see `accounting.base.Simulation`.
      seed: likewise.
      progress: likewise.

    Raises:
      ValueError: if the participation contradicts the strategy.
    """
    participation.validate_num_steps(strategy.num_steps)
    simulation = Simulation(confidence, seed, progress)
    return participation.accountant(strategy.matrix, simulation)


def calibrated(
    strategy: Strategy,
    participation: Participation,
    epsilon: float,
    delta: float,
    confidence: float | None = None,
    progress: bool = False,
) -> Calibration:
    """The smallest noise for a budget, by the accountant of the participation.

    A simulation that this process has made already, of the same matrix, participation,
    budget and confidence, to the last bit, is not made again.

    Args:
      strategy: C.
      participation: what the sampler does.
      epsilon: > 0.
      delta: in (0, 1).
      confidence: of a simulation, see `accounting.base.Simulation`.
      progress: likewise.

    Raises:
      ValueError: if the budget is invalid or the participation contradicts the strategy.
    """
    _check_budget(epsilon, delta)
    accountant = accountant_for(strategy, participation, confidence, progress=progress)
    if not participation.is_simulated:
        return accountant.calibrate(epsilon, delta)
    content = [
        strategy.matrix.to_config(),
        f"{type(participation).__module__}.{type(participation).__qualname__}",
        participation.to_config(),
        float(epsilon).hex(),
        float(delta).hex(),
        None if confidence is None else float(confidence).hex(),
    ]
    key = hashlib.sha256(configs.canonical_bytes(content)).digest()
    found = _SIMULATED.get(key)
    if found is None:
        found = accountant.calibrate(epsilon, delta)
        _SIMULATED[key] = found
        while len(_SIMULATED) > _MOST_SIMULATED:
            _SIMULATED.popitem(last=False)
    return found


def multiplier_of(found: Calibration, sensitivity: float) -> float:
    """The noise multiplier of a calibrated noise: per unit of sensitivity.

    Rounded up: the product with the sensitivity must not be smaller, and the epsilon of a
    later account, itself rounded up by 1e-10, not larger than the budget.
    """
    return found.noise_stddev / sensitivity * (1.0 + _ROUNDING)


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
        return Calibration(noise_multiplier * sensitivity.value)

    return calibrate


def for_budget(
    participation: Participation,
    epsilon: float,
    delta: float,
    confidence: float | None = None,
    progress: bool = False,
) -> Calibrator:
    """Noise for (epsilon, delta) by the accountant of the participation.

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
        return calibrated(strategy, participation, epsilon, delta, confidence, progress)

    return _ForBudget(calibrate, epsilon, delta)


class Rough:
    """Noise for a budget up to about a percent, to compare many strategies: no guarantee.

    Each search begins where those before ended, in units of the sensitivity, which
    depends on the number of bands most of all.

    Args:
      epsilon: > 0.
      delta: in (0, 1).

    Raises:
      ValueError: if the budget is invalid.
    """

    def __init__(self, epsilon: float, delta: float) -> None:
        _check_budget(epsilon, delta)
        self._budget = epsilon, delta
        # The logarithm of noise per sensitivity, by the logarithm of bands.
        self._found: dict[float, float] = {}

    def under(self, participation: Participation) -> Calibrator:
        """The calibrator of a participation."""

        def calibrate(strategy: Strategy, sensitivity: Sensitivity) -> Calibration:
            unit, bands = sensitivity.value, math.log(strategy.matrix.bands)
            near = unit * math.exp(self._expected(bands)) if self._found else None
            accountant = accountant_for(strategy, participation)
            noise = accountant.rough_noise_stddev(*self._budget, near)
            self._found[bands] = math.log(noise / unit)
            return Calibration(noise, is_amplified=participation.is_amplified)

        return _ForBudget(calibrate, *self._budget)

    def _expected(self, bands: float) -> float:
        """On the line through the two nearest numbers of bands, and not far beyond."""
        nearest, *others = sorted(self._found, key=lambda known: abs(known - bands))
        if nearest == bands or not others:
            return self._found[nearest]
        apart = nearest - others[0]
        share = min(max((bands - nearest) / apart, -1.0), 1.0)
        return self._found[nearest] + share * (
            self._found[nearest] - self._found[others[0]]
        )


def for_rates(
    sampling: str,
    num_steps: int,
    separation: int,
    participations: int | Fraction,
    epsilon: float,
    delta: float,
    progress: bool = False,
) -> Calibrator:
    """Noise for a budget where only rates are known, not the data set.

    Under "cyclic-poisson" the cycle is the number of bands of each strategy: with b parts
    an example is sampled with probability `participations * b / num_steps` in its turn
    (arXiv:2306.08153, section 5). Under "balls-in-bins" `separation` is the number of
    bins, and the run need not end with an epoch.

    Args:
      sampling: a name in `samplings_with_rates()`.
      num_steps: n.
      separation: b.
      participations: expected, of one example, > 0.
      epsilon: > 0.
      delta: in (0, 1).
      progress: show progress on accounting that takes longer than 2 seconds.

    Raises:
      ValueError: if an argument is invalid; the calibrator raises it for a strategy whose
        bands do not fit.
    """
    _check_budget(epsilon, delta)
    if sampling not in samplings_with_rates():
        raise ValueError(
            f"sampling must be one of {', '.join(samplings_with_rates())}, found "
            f"{sampling!r}."
        )
    if not 0 < participations <= num_steps:
        raise ValueError(
            f"participations must be > 0 and <= num_steps = {num_steps}, found "
            f"{participations}."
        )
    rate = Fraction(participations)

    def calibrate(strategy: Strategy, sensitivity: Sensitivity) -> Calibration:
        participation = NAMED[sampling].of_rates(
            num_steps, separation, rate, strategy.matrix.bands
        )
        simulation = Simulation(progress=progress)
        accountant = participation.accountant(strategy.matrix, simulation)
        return accountant.calibrate(epsilon, delta)

    return _ForBudget(calibrate, epsilon, delta)


def for_scheme(scheme: Scheme, epsilon: float, delta: float) -> Calibrator:
    """Noise for a budget under cyclic sampling with as many parts as bands.

    Args:
      scheme: a cyclic one.
      epsilon: > 0.
      delta: in (0, 1).

    Raises:
      ValueError: if the budget is invalid; the calibrator raises it for a strategy whose
        bands do not fit.
    """
    _check_budget(epsilon, delta)

    def calibrate(strategy: Strategy, sensitivity: Sensitivity) -> Calibration:
        participation = scheme.participation(strategy.matrix.bands)
        return accountant_for(strategy, participation).calibrate(epsilon, delta)

    return _ForBudget(calibrate, epsilon, delta)


def samplings_with_rates() -> tuple[str, ...]:
    """The samplings that tables can compare strategies under, by name."""
    return tuple(sorted(name for name, cls in NAMED.items() if cls.has_rates()))


def _check_budget(epsilon: float, delta: float) -> None:
    check_positive("epsilon", epsilon)
    check_delta(delta)
