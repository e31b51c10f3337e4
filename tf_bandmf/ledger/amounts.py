"""Amounts of privacy as whole numbers, so that sums are exact and can be taken back.

Floats that are added and subtracted again drift. An amount is a whole number of units of
1e-30, rounded up. Numbers count as they are written: ten times 0.1 is 1.
"""

from __future__ import annotations

import decimal
import math
from fractions import Fraction

_DIGITS = 30
_UNITS = 10**_DIGITS
_CONTEXT = decimal.Context(prec=400, rounding=decimal.ROUND_CEILING)


def amount(value: float) -> int:
    """A finite number >= 0 in units, rounded up.

    Raises:
      ValueError: for anything else.
    """
    value = float(value)
    if not (math.isfinite(value) and value >= 0.0):
        raise ValueError(f"An amount must be finite and >= 0, found {value}.")
    scaled = decimal.Decimal(repr(value)).scaleb(_DIGITS, _CONTEXT)
    return int(scaled.to_integral_value(decimal.ROUND_CEILING, _CONTEXT))


def number(units: int) -> float:
    """The smallest float that is written as at least so many units."""
    value = units / _UNITS
    while amount(value) < units:
        value = math.nextafter(value, math.inf)
    return value


def square_amount(value: float) -> int:
    """The square of a number in units, rounded up; exact but for that."""
    square = Fraction(float(value)) ** 2 * _UNITS
    return math.ceil(square)
