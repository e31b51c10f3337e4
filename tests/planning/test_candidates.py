"""The search for a parameter, whose every value costs a simulation."""

import math

import pytest

from tf_bandmf import workloads
from tf_bandmf.participation import BallsInBins
from tf_bandmf.planning import candidates, choosing

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
    candidates._search(error, GRID, middle)
    best = min(range(len(GRID)), key=lambda i: error.function(GRID[i]))
    assert len(error.tried) <= abs(best - middle) + 3 + candidates._REFINED
    within = min(max(minimum, GRID[-1]), GRID[0])
    assert min(error.tried.values()) <= error.function(within) * 1.005


@pytest.mark.parametrize("wall", [-2.4, -0.9, -0.1])
def test_where_values_are_infinite_it_turns_back_and_looks_close_to_them(wall):
    error = Counted(lambda x: math.exp(x) if x > wall else math.inf)
    candidates._search(error, GRID, len(GRID) // 2)
    above = [x for x in GRID if x > wall]
    below = max(x for x in GRID if x <= wall)
    closest = min(x for x, value in error.tried.items() if math.isfinite(value))
    assert closest - wall <= 0.5 * (above[-1] - below)


def test_a_mechanism_whose_simulation_overflows_for_large_gamma_is_compared():
    """With momentum C grows like a geometric series: gamma = 0.55 by 1.045 a step."""
    participation = BallsInBins(160, 16, 200)
    workload = workloads.momentum_sgd(participation.num_steps, 0.9)

    def chosen(name):
        (row,) = choosing.choose(
            workload, participation, epsilon=3.0, delta=1e-5, mechanism_names=(name,)
        ).table
        return row

    row = chosen("bifr:2")
    gamma = float(row.mechanism.split(":")[2])
    assert 0.3 < gamma < 0.55
    for other in (0.3, 0.5):
        assert row.rmse < chosen(f"bifr:2:{other}").rmse


def test_what_is_chosen_is_accounted_for_by_more_draws_than_what_is_not():
    participation = BallsInBins(320, 16, 4)
    options = {"epsilon": 2.0, "delta": 1e-5}
    workload = workloads.prefix_sum(participation.num_steps)
    names = ("identity", "lambda_cgd:0.8", "bisr:2")
    choice = choosing.choose(workload, participation, mechanism_names=names, **options)
    for name in names:
        alone = choosing.choose(
            workload, participation, mechanism_names=(name,), **options
        )
        row, full = choice.table[name], alone.table[name]
        assert (row.rmse == full.rmse) == (name == choice.mechanism)
        assert row.rmse == pytest.approx(full.rmse, rel=0.02)
