"""Lower bounds on epsilon, or on mu of Gaussian DP, from counts of correct guesses.

Each bound fails with probability at most `1 - confidence`, over the randomness of the
run and of the coins that decide which canaries take part. Arguments that docstrings
call "decided in advance" must not depend on the audited run.
"""

from __future__ import annotations

import bisect
import functools
import math
from typing import Callable

import numpy as np
from scipy import special, stats

from tf_bandmf.accounting.checks import check_delta

# The largest bound that the bisection can return, and the number of bisection steps.
_LARGEST = 50.0
_HALVINGS = 40


@functools.lru_cache(maxsize=1024)
def epsilon_from_guesses(
    num_canaries: int,
    num_guesses: int,
    num_right: int,
    delta: float,
    confidence: float = 0.95,
) -> float:
    """Returns a lower bound on epsilon from one run with many canaries.

    The bound is Theorem 5.2 of Steinke, Nasr, Jagielski (2023, arXiv:2305.08846): a
    fair coin decides for each canary whether it takes part, and the auditor guesses the
    outcomes of some coins. The bound assumes only that the mechanism is (epsilon,
    delta)-DP; guesses may depend on one another.

    Args:
      num_canaries: number of canaries, m.
      num_guesses: r <= m, number of guesses, decided in advance; the auditor makes no
        guess for the other m - r canaries.
      num_right: v <= r, number of correct guesses.
      delta: delta of the audited guarantee.
      confidence: in (0, 1).

    Returns:
      The largest epsilon that the guesses contradict, in [0, 50].

    Raises:
      ValueError: if a count, delta or confidence is out of range.
    """
    _check_counts(num_canaries, num_guesses, num_right)
    check_delta(delta)
    level = 1.0 - _checked(confidence)
    below = np.arange(1, num_right + 1)

    def is_contradicted(epsilon: float) -> bool:
        accuracy = special.expit(epsilon)
        p_value = stats.binom.sf(num_right - 1, num_guesses, accuracy)
        if num_right:
            near = np.cumsum(stats.binom.pmf(num_right - below, num_guesses, accuracy))
            p_value += 2.0 * num_canaries * delta * float(np.max(near / below))
        return bool(p_value < level)

    return _largest_contradicted(is_contradicted)


@functools.lru_cache(maxsize=1024)
def mu_from_guesses(
    num_canaries: int, num_guesses: int, num_right: int, confidence: float = 0.95
) -> float:
    """Returns a lower bound on mu of Gaussian DP from one run with many canaries.

    The bound is from Mahloujifar, Melis, Chaudhuri (2024, arXiv:2410.22235), Theorem
    3.2 and Algorithm 3. It assumes only that the mechanism is mu-GDP; guesses may
    depend on one another. If delta is small, the epsilon that follows from this mu is
    larger than the bound of `epsilon_from_guesses`.

    The arguments are those of `epsilon_from_guesses`, without delta.

    Returns:
      The largest mu that the guesses contradict, in [0, 50].

    Raises:
      ValueError: if a count or confidence is out of range.
    """
    _check_counts(num_canaries, num_guesses, num_right)
    level = 1.0 - _checked(confidence)
    share = num_guesses / num_canaries
    if num_guesses == 0 or num_right == 0:
        return 0.0

    def is_contradicted(mu: float) -> bool:
        right = level * share * num_right / num_guesses
        wrong = level * share - right
        for i in range(num_right - 1, -1, -1):
            # If the mechanism is mu-GDP, an event of probability `right` has a
            # probability of at least Phi(Phi^-1(right) - mu) on a neighboring data set.
            least = max(wrong, float(special.ndtr(special.ndtri(right) - mu)))
            right += i / (num_guesses - i) * (least - wrong)
            wrong = least
            if right + wrong > share:
                return True
        return False

    return _largest_contradicted(is_contradicted)


def epsilon_from_rates(
    true_positives: int,
    positives: int,
    false_positives: int,
    negatives: int,
    delta: float,
    confidence: float = 0.95,
) -> float:
    """Returns a lower bound on epsilon from trials with and without a canary.

    The trials must be independent. A test of whether the canary took part in an
    (epsilon, delta)-DP mechanism has true and false positive rates with
    `TPR <= exp(epsilon) FPR + delta`. The same holds for the opposite test (Kairouz,
    Oh, Viswanath, 2015, arXiv:1311.0776, Theorem 2.1). The function uses
    Clopper-Pearson bounds on both rates, which hold jointly with probability
    `confidence`.

    Args:
      true_positives: number of trials with the canary in which the test is positive;
        the threshold of the test must be decided in advance.
      positives: number of trials with the canary.
      false_positives: number of trials without the canary in which the test is
        positive.
      negatives: number of trials without the canary.
      delta: delta of the audited guarantee.
      confidence: in (0, 1).

    Returns:
      The lower bound on epsilon, >= 0.

    Raises:
      ValueError: if a count, delta or confidence is out of range.
    """
    check_delta(delta)
    low, high = _rates(
        true_positives, positives, false_positives, negatives, confidence
    )

    def log_ratio(numerator: float, denominator: float) -> float:
        if numerator - delta <= 0.0:
            return 0.0
        return math.log(numerator - delta) - math.log(denominator)

    return max(0.0, log_ratio(low, high), log_ratio(1.0 - high, 1.0 - low))


def mu_from_rates(
    true_positives: int,
    positives: int,
    false_positives: int,
    negatives: int,
    confidence: float = 0.95,
) -> float:
    """Returns a lower bound on mu of Gaussian DP from trials with and without a canary.

    A test of whether the canary took part in a mu-GDP mechanism has true and false
    positive rates with `TPR <= Phi(Phi^-1(FPR) + mu)`, where Phi is the standard normal
    distribution function (Dong, Roth, Su, 2019, arXiv:1905.02383, Definition 2.6; for
    audits: Nasr et al., 2023, arXiv:2302.07956).

    The arguments and errors are those of `epsilon_from_rates`, without delta.

    Returns:
      The lower bound on mu, >= 0.
    """
    low, high = _rates(
        true_positives, positives, false_positives, negatives, confidence
    )
    if low <= 0.0 or high >= 1.0:
        return 0.0
    return max(0.0, float(special.ndtri(low) - special.ndtri(high)))


def _rates(
    true_positives: int,
    positives: int,
    false_positives: int,
    negatives: int,
    confidence: float,
) -> tuple[float, float]:
    """Returns a lower bound on the TPR and an upper bound on the FPR.

    These are Clopper-Pearson bounds that hold jointly with probability `confidence`.
    """
    each = 0.5 * (1.0 + _checked(confidence))
    of_true = stats.binomtest(true_positives, positives, alternative="greater")
    of_false = stats.binomtest(false_positives, negatives, alternative="less")
    return of_true.proportion_ci(each).low, of_false.proportion_ci(each).high


def _largest_contradicted(is_contradicted: Callable[[float], bool]) -> float:
    """Returns the largest number in [0, 50] that is contradicted, or 0 if none is.

    Bisection finds it, because all smaller numbers are contradicted, too.
    """
    if not is_contradicted(0.0):
        return 0.0
    step, places = _LARGEST / 2**_HALVINGS, range(2**_HALVINGS)
    above = lambda place: not is_contradicted(place * step)  # noqa: E731
    return step * (bisect.bisect_left(places, True, key=above) - 1)


def _check_counts(canaries: int, guesses: int, right: int) -> None:
    if not 0 <= right <= guesses <= canaries or canaries < 1:
        raise ValueError(
            f"num_canaries ({canaries}) must be >= 1, num_guesses ({guesses}) must be "
            f"<= num_canaries, and num_right ({right}) must be in [0, num_guesses]."
        )


def _checked(confidence: float) -> float:
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must be in (0, 1), found {confidence}.")
    return confidence
