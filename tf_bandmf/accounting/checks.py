"""Checks of arguments: budgets, noise, integers and option names."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from tf_bandmf.workloads import is_number as is_number

_LARGEST_NUMBER = sys.float_info.max
# The minimum delta of a plan. The noise generator (`noise.box_muller`) omits the outer
# tails of the normal distribution. Both their probability and the probability of
# guessing the generator's 128-bit key are below a thousandth of this delta.
SMALLEST_DELTA = 1e-20
# LARGEST_EPSILON is the maximum epsilon of a plan; a larger epsilon is meaningless.
# LARGEST_STATED_EPSILON is the maximum epsilon that an accountant returns for a given
# noise and delta.
LARGEST_EPSILON, LARGEST_STATED_EPSILON = 1e4, 1e5


def check_positive(name: str, value: Any) -> None:
    """Raises ValueError unless the value is a finite number > 0."""
    if not (is_number(value) and 0.0 < value <= _LARGEST_NUMBER):
        raise ValueError(f"{name} must be finite and > 0, found {value!r}.")


def check_nonnegative(name: str, value: Any) -> None:
    """Raises ValueError unless the value is a finite number >= 0."""
    if not (is_number(value) and 0.0 <= value <= _LARGEST_NUMBER):
        raise ValueError(f"{name} must be finite and >= 0, found {value!r}.")


def whole_number(
    name: str, value: Any, least: int = 1, most: int | None = None, most_is: str = ""
) -> int:
    """Returns the value as an int, after checking that it is a whole number in range.

    Args:
      name: name of the value in the error message.
      value: the value to check, of any type.
      least: the minimum.
      most: the maximum, or None for no maximum.
      most_is: name of the maximum in the error message, such as "num_steps".

    Raises:
      ValueError: unless the value is a whole number from `least` to `most`.
    """
    largest = _LARGEST_NUMBER if most is None else most
    is_inside = is_number(value) and least <= value <= largest
    if not (is_inside and float(value).is_integer()):
        limit = f"{most_is} = {most}" if most_is else most
        limits = f">= {least}" if most is None else f"from {least} to {limit}"
        raise ValueError(f"{name} must be a whole number {limits}, found {value!r}.")
    return int(value)


def check_word(name: str, word: object, words: Iterable[str]) -> None:
    """Raises ValueError unless `word` is one of `words`."""
    if not isinstance(word, str) or word not in tuple(words):
        raise ValueError(f"{name} must be one of {', '.join(words)}, found {word!r}.")


def check_delta(delta: Any) -> None:
    """Raises ValueError unless delta is a number in (0, 1)."""
    if not is_number(delta) or not 0.0 < delta < 1.0:
        raise ValueError(f"delta must be in (0, 1), found {delta!r}.")


def check_confidence(confidence: Any) -> None:
    """Raises ValueError unless confidence is None or a number in [0.5, 1)."""
    if confidence is None or (is_number(confidence) and 0.5 <= confidence < 1.0):
        return
    raise ValueError(
        f"confidence must be in [0.5, 1), found {confidence!r}. For example, a bound with "
        f"confidence = 1 - 1e-6 is wrong with a probability of at most 1e-6."
    )


def check_planned_delta(delta: Any) -> None:
    """Raises ValueError unless delta is a number in [SMALLEST_DELTA, 1)."""
    check_delta(delta)
    if delta < SMALLEST_DELTA:
        raise ValueError(
            f"A plan's delta must be >= {SMALLEST_DELTA:g}, found {delta!r}. Use a larger "
            f"delta, because the generated normal noise omits the outermost tails."
        )


def no_privacy(noise_stddev: float, delta: float, limit: float) -> ValueError:
    """Returns the error to raise if the noise gives an epsilon above the limit."""
    return ValueError(
        f"noise_stddev = {noise_stddev} gives no meaningful privacy: epsilon > {limit:g} "
        f"at delta = {delta}. Add noise."
    )
