"""The optimizer's outcomes, above all the bad ones."""

import functools

import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf.optimize import compiled, lbfgs
from tf_bandmf.optimize.options import Options

SCALES = np.array([1.0, 3.0, 10.0])


def bowl(x):
    """log(1 + a quadratic): the minimum is 1, at 2."""
    inside = 1.0 + np.sum(SCALES * (x - 2.0) ** 2)
    return float(np.log(inside)), 2.0 * SCALES * (x - 2.0) / inside


in_bowl = functools.partial(lbfgs.minimize, bowl)


def test_finds_the_minimum_twice_the_same():
    options = Options(gradient_tolerance=1e-8)
    results = [in_bowl(np.zeros(3), options) for _ in range(2)]
    assert results[0].converged and "gradient norm" in results[0].message
    assert results[0].optimality_gap is None
    np.testing.assert_allclose(results[0].position, 2.0, atol=1e-7)
    np.testing.assert_allclose(results[0].value, 1.0)
    np.testing.assert_array_equal(results[0].position, results[1].position)


def test_too_few_iterations_are_reported_with_the_best_position():
    result = in_bowl(np.zeros(3), Options(max_iterations=2))
    assert not result.converged
    assert "max_iterations = 2" in result.message
    assert result.num_iterations == 2
    assert 1.0 < result.value < np.exp(bowl(np.zeros(3))[0])


def test_a_failed_line_search_is_reported():
    wrong_way = lambda x: (float(x.sum()), -np.ones(2))  # noqa: E731
    result = lbfgs.minimize(wrong_way, np.ones(2), Options())
    assert not result.converged
    assert "line search failed" in result.message
    assert result.gradient_norm == pytest.approx(1.0)
    np.testing.assert_array_equal(result.position, 1.0)


def test_regions_without_a_value_are_passed_over():
    def log_barrier(x):
        if x[0] <= 0.0:
            return np.inf, np.zeros(1)
        return float(x[0] - 1e-3 * np.log(x[0])), np.array([1.0 - 1e-3 / x[0]])

    found = lbfgs.minimize(log_barrier, np.ones(1), Options(gradient_tolerance=1e-8))
    assert found.converged
    np.testing.assert_allclose(found.position, 1e-3, rtol=1e-4)


def test_the_certificate_stops_the_optimization():
    options = Options(gap_tolerance=0.5)
    result = in_bowl(np.zeros(3), options, gap=lambda x: 0.25)
    assert result.converged and result.num_iterations == 0
    assert "certified gap" in result.message
    assert result.optimality_gap == 0.25


def test_a_certificate_that_is_far_from_met_is_looked_at_twice():
    def gap(x):
        looks.append(np.array(x))
        return 0.5

    def rosenbrock(x):
        valley = 100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2
        return tf.math.log1p(tf.reduce_sum(valley))

    looks = []
    options = Options(gradient_tolerance=1e-6, gap_tolerance=1e-15)
    function = compiled.value_and_gradient(rosenbrock, 6)
    result = lbfgs.minimize(function, np.zeros(6), options, gap=gap)
    assert result.num_iterations > 20  # a third look, if there were one every time
    np.testing.assert_array_equal(looks, [np.zeros(6), result.position])
    assert result.optimality_gap == 0.5


def test_a_gap_that_is_met_at_the_end_counts():
    def gap(x):
        return 0.5 if np.all(x == 0.0) else 0.0

    result = in_bowl(np.zeros(3), Options(max_iterations=1), gap=gap)
    assert result.converged and "certified gap" in result.message
    assert result.optimality_gap == 0.0


def test_xla_finds_the_same_value_and_gradient():
    def loss(x):
        return tf.math.log(tf.reduce_sum(tf.scan(lambda a, b: 0.5 * a + b, x**2)))

    position = np.linspace(-1.0, 2.0, 50)
    plain = compiled.value_and_gradient(loss, 50)(position)
    by_xla = compiled.value_and_gradient(loss, 50, by_xla=True)(position)
    for one, other in zip(plain, by_xla):
        np.testing.assert_allclose(one, other, rtol=1e-13)


def test_a_start_without_a_finite_objective_is_refused():
    without = lambda x: (np.nan, np.ones(2))  # noqa: E731
    with pytest.raises(ValueError, match="must be finite and > 0 at the start"):
        lbfgs.minimize(without, -np.ones(2), Options())


@pytest.mark.parametrize("progress, shown", [(True, True), (None, False)])
def test_progress_appears_on_stderr_only_when_asked(progress, shown, capsys):
    in_bowl(np.zeros(3), Options(progress=progress, max_iterations=1))
    captured = capsys.readouterr()
    assert captured.out == ""
    assert ("L-BFGS" in captured.err) == shown


@pytest.mark.parametrize(
    "argument, value",
    [
        ("max_iterations", -1),
        ("gradient_tolerance", float("nan")),
        ("gap_tolerance", -1e-3),
        ("decrease_tolerance", float("inf")),
        ("correction_pairs", 0),
    ],
)
def test_invalid_options_are_refused(argument, value):
    with pytest.raises(ValueError, match=f"{argument} must be"):
        Options(**{argument: value})
