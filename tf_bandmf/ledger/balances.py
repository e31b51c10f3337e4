"""The balance of a data set: its privacy budget, and the spent part of the budget.

`tf_bandmf.compose` computes the joint cost of all releases. However, if the budget is a
zCDP rho, the joint cost is the sum of the releases' rhos, which is valid even if the
releases are chosen adaptively.
"""

from __future__ import annotations

import dataclasses
import functools
import math

from scipy import optimize

from tf_bandmf.accounting import gaussian
from tf_bandmf.accounting.checks import check_delta, check_positive
from tf_bandmf.ledger.releases import Dataset
from tf_bandmf.planning.composition import BASIC, Release, compose

ADAPTIVE = "sum of zCDP rhos (valid for adaptive plans)"
# The tolerance for rounding errors when the spent part is compared with the budget.
_ROUNDING = 1.0 + 1e-9
_LEAST_EPSILON = 1e-4


@dataclasses.dataclass(frozen=True)
class Budget:
    """The limit on the joint privacy cost of all releases of one data set.

    Attributes:
      epsilon, delta: the budget as (epsilon, delta), or None if the budget is a rho.
      rho: the budget as a zCDP rho, or None if the budget is (epsilon, delta).
    """

    epsilon: float | None = None
    delta: float | None = None
    rho: float | None = None

    def __post_init__(self) -> None:
        given = [v is not None for v in (self.epsilon, self.delta, self.rho)]
        if given not in ([True, True, False], [False, False, True]):
            raise ValueError(f"Pass epsilon and delta, or only rho, not {vars(self)}.")
        check_positive("epsilon" if self.rho is None else "rho", self.whole)
        if self.rho is None:
            check_delta(self.delta)

    @property
    def whole(self) -> float:
        """The size of the whole budget: its epsilon or its rho."""
        return self.epsilon if self.rho is None else self.rho  # type: ignore[return-value]

    def __str__(self) -> str:
        given = {k: v for k, v in vars(self).items() if v is not None}
        return ", ".join(f"{name} = {value:g}" for name, value in given.items())


@dataclasses.dataclass(frozen=True)
class Balance:
    """The budget of a data set, and the cost of its releases.

    Attributes:
      dataset: the data set.
      budget: the data set's current budget.
      costs: for each run or other release, a tuple of the parts of its privacy cost.
    """

    dataset: Dataset
    budget: Budget
    costs: tuple[tuple[Release, ...], ...] = ()

    @property
    def runs(self) -> int:
        """The number of recorded runs and other releases."""
        return len(self.costs)

    @property
    def risk(self) -> float:
        """A bound on the probability that any simulated privacy bound is wrong."""
        return math.fsum(release.risk for cost in self.costs for release in cost)

    def with_more(self, *cost: Release) -> Balance:
        """Returns the balance after one more run or release with this cost."""
        return dataclasses.replace(self, costs=(*self.costs, cost))

    @functools.cached_property
    def _spent(self) -> tuple[float, str]:
        releases = [release for cost in self.costs for release in cost]
        if self.budget.delta is not None:
            return best(releases, self.budget.delta, self.dataset.adjacency)
        rhos = [release.zcdp(self.dataset.replaces) for release in releases]
        return math.fsum(math.inf if rho is None else rho for rho in rhos), ADAPTIVE

    @property
    def spent(self) -> float:
        """The spent epsilon at the budget's delta, or the spent rho."""
        return self._spent[0]

    @property
    def method(self) -> str:
        """The accounting method that computed `spent`."""
        return self._spent[1]

    @property
    def part(self) -> float:
        """The fraction of the budget that is spent."""
        return self.spent / self.budget.whole

    @property
    def is_over(self) -> bool:
        """True if more than the whole budget is spent."""
        return self.part > _ROUNDING

    def fits(self, delta: float | None = None) -> float:
        """Returns the maximum epsilon of a run that still fits into the budget.

        The run must not be amplified by sampling.

        Args:
          delta: delta of the run; by default the delta of the budget, or 1e-6 if the
            budget is a rho.

        Returns:
          Epsilon for `tf_bandmf.plan`, rounded down to four digits, or 0 if no run
          fits.
        """
        delta = (self.budget.delta or 1e-6) if delta is None else delta

        def excess(log_epsilon: float) -> float:
            try:
                noise = gaussian.calibrate_noise_stddev(math.exp(log_epsilon), delta)
                run = Release.gaussian(noise, delta)
            except ValueError:  # No valid noise gives this epsilon and delta.
                return 1.0
            return min(self.with_more(run).part - _ROUNDING, 1.0)

        low, high = math.log(_LEAST_EPSILON), math.log(64.0 * (self.budget.whole + 1.0))
        if excess(low) > 0.0:
            return 0.0
        epsilon = math.exp(optimize.brentq(excess, low, high, xtol=1e-5) - 1e-5)
        digits = 3 - math.floor(math.log10(epsilon))
        return math.floor(epsilon * 10**digits) / 10**digits


def best(releases: list[Release], delta: float, adjacency: str) -> tuple[float, str]:
    """Returns the smallest proven joint epsilon of releases, and the method of proof.

    Each release may depend on the results of earlier releases, but its cost must be fixed
    in advance.
    """
    releases = [release for release in releases if release.epsilon or release.delta]
    if not releases:
        return 0.0, BASIC
    joint = compose(releases, adjacency)
    if len(releases) == 1 and joint.stated and joint.stated[1] == delta:
        return joint.stated[0], BASIC  # A single release costs its stated epsilon.
    bound = joint.bound_at(delta)
    return (max(bound.epsilon, 0.0), bound.accountant) if bound else (math.inf, BASIC)
