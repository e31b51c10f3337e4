"""Lower bounds on epsilon from the scores of canaries, and the results of audits."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from scipy import optimize, special

from tf_bandmf.accounting.gaussian import gaussian_epsilon
from tf_bandmf.accounting.guarantee import fill
from tf_bandmf.audit.bounds import (
    epsilon_from_guesses,
    epsilon_from_rates,
    mu_from_guesses,
    mu_from_rates,
)

# The numbers of guesses that `best_number_of_guesses` tries, as fractions of the number
# of canaries.
_SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 1.0)
# If mu is smaller than this, Gaussian DP has epsilon = 0 at every relevant delta.
_SMALLEST_MU = 1e-6
_least = functools.partial(fill, "{:.3g down}")


@dataclasses.dataclass(frozen=True)
class LowerBound:
    """A lower bound on epsilon from one method.

    Attributes:
      epsilon: the bound, at the delta of the audit.
      method: the method that computes the bound, with its source.
      assumes: what the bound assumes about the mechanism, beyond the audited claim.
      mu: the lower bound on mu of Gaussian DP from which epsilon was computed, or None.
    """

    epsilon: float
    method: str
    assumes: str
    mu: float | None = None


@dataclasses.dataclass(frozen=True)
class AuditResult:
    """The result of an audit: lower bounds on epsilon that hold jointly.

    Attributes:
      bounds: lower bounds, one for each method.
      delta: delta at which the bounds on epsilon hold.
      confidence: joint confidence of all bounds.
      num_canaries: number of canaries, m.
      num_included: number of canaries that took part.
      claimed_epsilon: claimed epsilon of the plan; None if nothing was claimed.
      signal: distance between a canary's mean score if it takes part and its mean score
        if it does not, in standard deviations of the score, as computed from the plan's
        noise; None if unknown. It is `1 / noise_multiplier` for a canary with the
        worst-case participation pattern.
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
        """The largest of the lower bounds on epsilon."""
        return max(bound.epsilon for bound in self.bounds)

    @property
    def contradicts(self) -> bool:
        """True if a lower bound exceeds the claimed epsilon.

        For a correct mechanism, this is True with probability at most `1 - confidence`.
        """
        return self.claimed_epsilon is not None and self.epsilon > self.claimed_epsilon

    def __str__(self) -> str:
        """Returns a report of a few lines with all bounds and the claimed epsilon."""
        lines = [
            f"Audit with {self.num_canaries} canaries, of which {self.num_included} took "
            f"part: epsilon >= {_least(self.epsilon)} at delta = {self.delta:g} "
            f"(confidence {self.confidence:g})."
        ]
        lines += [
            f"  epsilon >= {_least(one.epsilon)}: {one.method}. Assumes {one.assumes}."
            for one in self.bounds
        ]
        if self.claimed_epsilon is not None:
            verdict = "CONTRADICTS" if self.contradicts else "does not contradict"
            lines.append(
                f"This {verdict} the claim: epsilon = {self.claimed_epsilon:.6g}."
            )
        return "\n".join(lines)


def evaluate(
    scores: np.ndarray,
    included: np.ndarray,
    *,
    delta: float,
    confidence: float = 0.95,
    signal: float | None = None,
    is_gaussian: bool = False,
    are_independent: bool = False,
    threshold: float = 0.0,
    num_guesses: int | None = None,
    claimed_epsilon: float | None = None,
) -> AuditResult:
    """Computes lower bounds on epsilon from the scores of canaries.

    The audit guesses that the canaries with the `num_guesses / 2` largest scores took
    part, and that the canaries with the `num_guesses / 2` smallest scores did not. The
    bound of `epsilon_from_guesses` holds without any assumption about the mechanism. If
    `is_gaussian` or `are_independent` is True, more bounds are computed, which are
    usually larger.

    Args:
      scores: one score per canary, shape [m]; larger for canaries that seem to have
        taken part. Scores must be computed from what the run released, without looking
        at `included`.
      included: mask of the canaries that took part, bool, shape [m]. Independent fair
        coins must have decided which canaries took part.
      delta: delta of the audited guarantee.
      confidence: joint confidence of all bounds.
      signal: the distance that `AuditResult.signal` defines, from which a default for
        `num_guesses` is computed. None means 1.
      is_gaussian: True if the claim is Gaussian DP, as for the exact Gaussian
        accountant without amplification. Then bounds on mu are computed, too, and the
        epsilons that follow from them.
      are_independent: True if the scores are from independent runs, or from a mechanism
        that is claimed to make them independent. In this case, bounds from the
        true-positive and false-positive rates are computed, too.
      threshold: the score above which a test counts as positive in these rates. The
        threshold must be decided before the scores are seen.
      num_guesses: even number of guesses; None to choose the number from m and
        `signal`, without the scores.
      claimed_epsilon: the claimed epsilon, with which the bounds are compared, or None.

    Returns:
      The lower bounds, and how they compare to the claimed epsilon.

    Raises:
      ValueError: if the shapes differ, if a score is NaN, or if no canary or every
        canary took part.
    """
    scores, included = np.asarray(scores, np.float64), np.asarray(included, bool)
    if scores.ndim != 1 or scores.shape != included.shape or scores.size < 2:
        raise ValueError(
            f"scores and included must have the same shape [m] with m >= 2, but found "
            f"{scores.shape} and {included.shape}."
        )
    if np.any(np.isnan(scores)):
        raise ValueError("scores must not contain NaN.")
    positives, m = int(included.sum()), int(scores.size)
    if positives in (0, m):
        raise ValueError(
            f"Some canaries must take part and some must not, but {positives} of {m} took "
            f"part. Use more canaries."
        )
    count = 1 + is_gaussian + are_independent * (1 + is_gaussian)
    each = 1.0 - (1.0 - confidence) / count
    if num_guesses is None:
        num_guesses = best_number_of_guesses(m, round(signal or 1.0, 2), delta, each)
    right = _right_guesses(scores, included, num_guesses)
    nothing = "nothing: guesses in one run"
    bounds = [
        LowerBound(
            epsilon_from_guesses(m, num_guesses, right, delta, each),
            f"{right} of {num_guesses} guesses right (arXiv:2305.08846, Theorem 5.2)",
            nothing,
        )
    ]
    if is_gaussian:
        mu = mu_from_guesses(m, num_guesses, right, each)
        bounds.append(_of_mu(mu, delta, "guesses, arXiv:2410.22235", nothing))
    if are_independent:
        counts = _counts(scores, included, threshold)
        rates = f"TPR {counts[0]}/{counts[1]}, FPR {counts[2]}/{counts[3]}"
        trials = "that scores are independent, as in separate runs"
        epsilon = epsilon_from_rates(*counts, delta, each)
        bounds.append(LowerBound(epsilon, f"{rates} (Clopper-Pearson)", trials))
        if is_gaussian:
            mu = mu_from_rates(*counts, each)
            bounds.append(_of_mu(mu, delta, f"{rates}, arXiv:2302.07956", trials))
    return AuditResult(
        bounds=tuple(bounds),
        delta=delta,
        confidence=confidence,
        num_canaries=m,
        num_included=positives,
        claimed_epsilon=claimed_epsilon,
        signal=signal,
    )


@functools.lru_cache(maxsize=256)
def best_number_of_guesses(
    num_canaries: int, signal: float, delta: float, confidence: float
) -> int:
    """Returns the number of guesses with the largest expected bound.

    Args:
      num_canaries: number of canaries, m.
      signal: distance between a canary's mean score if it takes part and its mean score
        if it does not, in standard deviations. Scores are assumed to be normal.
      delta: delta of the guarantee.
      confidence: confidence of the bound.

    Returns:
      An even number in [2, m]. If the expected bound is 0 for every number of guesses,
      the result is about two fifths of m, since that many guesses can still detect
      gross faults.
    """
    best, chosen = 0.0, max(2, int(0.4 * num_canaries) // 2 * 2)
    means, most = np.array([0.5, -0.5]) * signal, abs(signal) + 40.0

    def excess(threshold: float, share: float) -> float:
        return float(special.ndtr(means - threshold).mean()) - 0.5 * share

    for share in _SHARES:
        guesses = max(2, int(share * num_canaries) // 2 * 2)
        # A fraction `share / 2` of the scores exceeds the threshold if the scores are a
        # mixture of N(signal / 2, 1) and N(-signal / 2, 1).
        threshold = optimize.brentq(excess, -most, most, args=(share,))
        tails = special.ndtr(means - threshold)
        # The expected number of right guesses, rounded down.
        right = int(np.floor(guesses * tails[0] / max(tails.sum(), 1e-300)))
        epsilon = epsilon_from_guesses(
            num_canaries, guesses, min(right, guesses), delta, confidence
        )
        if epsilon > best:
            best, chosen = epsilon, guesses
    return chosen


def best_threshold(
    scores: np.ndarray, included: np.ndarray, delta: float, confidence: float
) -> float:
    """Returns the threshold with the largest `epsilon_from_rates` for these scores.

    The threshold of an audit must not depend on the scores of the audited run.
    Therefore apply the result only to the scores of another run.

    Args:
      scores: one score per canary, shape [m].
      included: mask of the canaries that took part, bool, shape [m].
      delta: delta of the guarantee.
      confidence: confidence of the bound.
    """
    tails = np.geomspace(max(1e-4, 5.0 / scores.size), 0.5, 12)
    levels = np.concatenate([tails, 1.0 - tails])
    best, chosen = -1.0, 0.0
    for threshold in np.quantile(scores, levels):
        counts = _counts(scores, included, threshold)
        epsilon = epsilon_from_rates(*counts, delta, confidence)
        if epsilon > best:
            best, chosen = epsilon, float(threshold)
    return chosen


def _counts(
    scores: np.ndarray, included: np.ndarray, threshold: float
) -> tuple[int, int, int, int]:
    """Counts true positives, positives, false positives and negatives, in this order."""
    said = scores > threshold
    several = said & included, included, said & ~included, ~included
    return tuple(map(int, map(np.count_nonzero, several)))  # type: ignore[return-value]


def _right_guesses(scores: np.ndarray, included: np.ndarray, num_guesses: int) -> int:
    if num_guesses % 2 or not 2 <= num_guesses <= scores.size:
        raise ValueError(
            f"num_guesses must be even and in [2, {scores.size}], found {num_guesses}."
        )
    order = np.argsort(scores, kind="stable")
    half = num_guesses // 2
    return int(np.sum(included[order[-half:]]) + np.sum(~included[order[:half]]))


def _of_mu(mu: float, delta: float, method: str, assumes: str) -> LowerBound:
    epsilon = 0.0 if mu < _SMALLEST_MU else gaussian_epsilon(1.0 / mu, delta)
    return LowerBound(epsilon, f"mu >= {_least(mu)} ({method})", assumes, mu)
