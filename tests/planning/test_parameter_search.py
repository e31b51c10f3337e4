"""The search for a parameter, whose every value costs a simulation."""

import math

import pytest

from tf_bandmf.planning import parameter_search

GRID = [math.log(1.0 - x) for x in (0.0, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)]


class Counted:
    def __init__(self, function):
        self.function, self.tried = function, {}

    def __call__(self, x):
        if x not in self.tried:
            self.tried[x] = self.function(x)
        return self.tried[x]


@pytest.mark.parametrize("minimum", [-5.0, -3.1, -2.0, -1.4, -0.4, 0.0])
def test_it_is_found_downhill_and_between_the_values_of_the_grid(minimum):
    error, middle = Counted(lambda x: math.cosh(x - minimum)), len(GRID) // 2
    parameter_search.search(error, GRID, middle)
    best = min(range(len(GRID)), key=lambda i: error.function(GRID[i]))
    assert len(error.tried) <= abs(best - middle) + 3 + parameter_search.MOST_REFINED
    within = min(max(minimum, GRID[-1]), GRID[0])
    assert min(error.tried.values()) <= error.function(within) * 1.005


@pytest.mark.parametrize("wall", [-2.4, -0.9, -0.1])
def test_where_values_are_infinite_it_turns_back_and_looks_close_to_them(wall):
    error = Counted(lambda x: math.exp(x) if x > wall else math.inf)
    parameter_search.search(error, GRID, len(GRID) // 2)
    above = [x for x in GRID if x > wall]
    below = max(x for x in GRID if x <= wall)
    closest = min(x for x, value in error.tried.items() if math.isfinite(value))
    assert closest - wall <= 0.5 * (above[-1] - below)
