"""What an audit found."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class LowerBound:
    """A lower bound on epsilon.

    Attributes:
      epsilon: at the delta of the audit.
      method: how it was computed, with its source.
      assumes: what it assumes about the mechanism, besides the claim.
      mu: of Gaussian DP, if that is the claim.
    """

    epsilon: float
    method: str
    assumes: str
    mu: float | None = None


@dataclasses.dataclass(frozen=True)
class AuditResult:
    """Lower bounds on epsilon that all hold together at the confidence.

    Attributes:
      bounds: one for each method.
      delta: for which they hold.
      confidence: of all of them together.
      num_canaries: m.
      num_included: how many of them took part.
      claimed_epsilon: of the plan; None if nothing was claimed.
      signal: mean distance of the scores with and without the canary, in standard
        deviations of the plan's noise: `1 / noise_multiplier` for a canary with the
        worst pattern; None if unknown.
    """

    bounds: tuple[LowerBound, ...]
    delta: float
    confidence: float
    num_canaries: int
    num_included: int
    claimed_epsilon: float | None = None
    signal: float | None = None

    @property
    def epsilon(self) -> float:
        """The largest of the bounds."""
        return max(bound.epsilon for bound in self.bounds)

    @property
    def contradicts(self) -> bool:
        """Whether the run cannot have had the claimed epsilon.

        True for a correct mechanism with probability at most `1 - confidence`.
        """
        return self.claimed_epsilon is not None and self.epsilon > self.claimed_epsilon

    def __str__(self) -> str:
        """For people: a few lines."""
        lines = [
            f"Audit with {self.num_canaries} canaries, of which {self.num_included} took "
            f"part: epsilon >= {self.epsilon:.3g} at delta = {self.delta:g} (confidence "
            f"{self.confidence:g})."
        ]
        lines += [
            f"  epsilon >= {bound.epsilon:.3g}: {bound.method}. Assumes {bound.assumes}."
            for bound in self.bounds
        ]
        if self.claimed_epsilon is not None:
            verdict = "CONTRADICTS" if self.contradicts else "does not contradict"
            lines.append(
                f"This {verdict} the claim: epsilon = {self.claimed_epsilon:.6g}."
            )
        return "\n".join(lines)
