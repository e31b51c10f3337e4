"""L-BFGS in NumPy: what it tells while it runs, and problems of many variables."""

import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf.optimize import descent, lbfgs

SIZE = lbfgs._MANY_VARIABLES
SCALES = np.geomspace(1.0, 30.0, SIZE)


def quadratic(x):
    return float(0.5 * SCALES @ (x - 1.0) ** 2), SCALES * (x - 1.0)


def log_bowl(x):
    return tf.math.log1p(tf.reduce_mean(SCALES * (x - 2.0) ** 2))


def test_it_is_watched_at_the_start_every_20_iterations_and_at_the_end():
    seen = []

    def watch(iterations, position, value):
        assert value == quadratic(position)[0]
        seen.append(iterations)

    found = descent.minimize(quadratic, np.zeros(SIZE), 47, 0.0, watch=watch)
    assert not found.converged and found.num_iterations == 47
    assert seen == [0, 20, 40, 47]


def test_a_watcher_stops_it_with_its_message():
    found = descent.minimize(
        quadratic,
        np.zeros(SIZE),
        100,
        0.0,
        watch=lambda iterations, *_: "enough" if iterations >= 20 else None,
    )
    assert found.converged and found.message == "enough"
    assert found.num_iterations == 20


def test_more_memory_takes_fewer_iterations():
    counts = [
        descent.minimize(
            quadratic, np.zeros(SIZE), 500, 1e-8, max_pairs=pairs
        ).num_iterations
        for pairs in (1, 20)
    ]
    assert counts[1] < counts[0] < 500


def test_many_variables_are_optimized_with_about_an_evaluation_an_iteration():
    # Less is lost in the rounding of n log(...).
    options = lbfgs.Options(gradient_tolerance=1e-5, progress=False)
    result = lbfgs.minimize(log_bowl, np.zeros(SIZE), float(SIZE), options)
    assert result.converged and "gradient norm" in result.message
    np.testing.assert_allclose(result.position, 2.0, atol=1e-5)
    assert result.value == pytest.approx(1.0)
    assert result.num_evaluations <= 1.5 * result.num_iterations + 4


def test_many_variables_stop_at_the_certificate_or_say_that_they_did_not():
    def run(**options):
        return lbfgs.minimize(
            log_bowl,
            np.zeros(SIZE),
            float(SIZE),
            lbfgs.Options(progress=False, **options),
            gap=lambda x: float(np.max(np.abs(x - 2.0))),
        )

    certified = run(gap_tolerance=0.3, gradient_tolerance=0.0)
    assert certified.converged and "certified gap" in certified.message
    assert certified.optimality_gap <= 0.3
    few = run(max_iterations=3, gap_tolerance=0.0)
    assert not few.converged and "max_iterations = 3" in few.message
    assert few.optimality_gap == pytest.approx(np.max(np.abs(few.position - 2.0)))


def test_many_variables_without_a_finite_objective_are_refused():
    with pytest.raises(ValueError, match="must be finite and > 0 at the start"):
        lbfgs.minimize(
            lambda x: tf.math.log(tf.reduce_sum(x)),
            -np.ones(SIZE),
            1.0,
            lbfgs.Options(),
        )
