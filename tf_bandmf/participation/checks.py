"""Checks of fields that several classes of participations have."""

from __future__ import annotations

from typing import Any

from tf_bandmf.accounting.checks import whole_number


def check_sizes(participation: Any, *names: str) -> None:
    """Converts fields to ints >= 1, and checks that `batch_size <= num_examples`.

    Args:
      participation: a frozen data class with the fields `num_examples` and `batch_size`.
      *names: names of the fields to check in addition to `num_examples`.

    Raises:
      ValueError: if a field is not a whole number >= 1, or `batch_size > num_examples`.
    """
    for name in ("num_examples", *names):
        most = participation.num_examples if name == "batch_size" else None
        value = getattr(participation, name)
        value = whole_number(name, value, most=most, most_is="num_examples")
        object.__setattr__(participation, name, value)


def largest_binomial(trials: int, probability: float, overflow: float) -> int:
    """Returns a number that a binomial variable exceeds with probability <= `overflow`."""
    import scipy.stats

    if probability >= 1.0:
        return trials
    return int(scipy.stats.binom.isf(overflow, trials, probability))
