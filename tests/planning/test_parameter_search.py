"""The search for a parameter, whose every value costs a simulation."""

import functools
import math

import pytest

from tf_bandmf.planning import parameter_search

GRID = [math.log(1.0 - x) for x in (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)]


@pytest.mark.parametrize("wall", [-math.inf, -2.4, -0.1])
@pytest.mark.parametrize("minimum", [-5.0, -2.0, -0.4, 0.0])
def test_it_is_found_downhill_and_beside_infinite_values(minimum, wall):
    tried = {}

    @functools.cache
    def error(x):
        tried[x] = math.cosh(x - minimum) if x > wall else math.inf
        return tried[x]

    parameter_search.search(error, GRID, len(GRID) // 2)
    least = max(minimum, wall, GRID[-1])
    assert min(tried.values()) <= math.cosh(least - minimum) * 1.1
    assert len(tried) <= len(GRID) + parameter_search.MOST_REFINED
