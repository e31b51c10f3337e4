"""Whole numbers, and what is none."""

import math

import numpy as np
import pytest

from tf_bandmf.accounting.checks import whole_number


@pytest.mark.parametrize("value", [1, 10, 3.0, np.int64(7), np.float32(2.0)])
def test_whole_numbers_within_the_limits_are_returned_as_ints(value):
    actual = whole_number("bands", value, most=10)
    assert actual == value and type(actual) is int


@pytest.mark.parametrize(
    "value", [0, 11, 2.5, True, "3", None, [3], math.inf, math.nan, -1, 3 + 0j]
)
def test_anything_else_is_refused_with_the_limits(value):
    message = "^bands must be a whole number from 1 to num_steps = 10, found "
    with pytest.raises(ValueError, match=message):
        whole_number("bands", value, most=10, most_is="num_steps")


def test_the_least_is_a_limit_of_its_own():
    assert whole_number("seed", 0, least=0) == 0
    with pytest.raises(ValueError, match="seed must be a whole number >= 0, found -1"):
        whole_number("seed", -1, least=0)
