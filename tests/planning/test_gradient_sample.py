"""Norms and alignment of public gradients."""

import numpy as np
import pytest

import tf_bandmf

Sample = tf_bandmf.GradientSample


def test_alignment_is_the_mean_cosine_of_two_examples():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, 6)) * rng.uniform(0.1, 9.0, size=(40, 1)) + 1.0
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = (unit @ unit.T)[~np.eye(40, dtype=bool)]
    found = Sample.of_gradients(rows, fan_in=3)
    assert found.alignment**2 == pytest.approx(cosines.mean())
    assert found.norms == pytest.approx(np.linalg.norm(rows, axis=1))
    assert found.num_parameters == 6 and found.fan_in == 3
    assert "40 examples" in repr(found)


def test_alignment_does_not_depend_on_the_number_of_examples():
    """The norm of the mean of m gradients does: noise of 1 / m is taken off."""
    rng = np.random.default_rng(1)

    def mean_alignment(count):
        return np.mean(
            [
                Sample.of_gradients(rng.normal(size=(count, 50)) + 0.3).alignment
                for _ in range(200)
            ]
        )

    assert mean_alignment(10) == pytest.approx(mean_alignment(100), abs=0.01)


def test_equal_and_opposite_gradients():
    same = np.ones((5, 3))
    assert Sample.of_gradients(same).alignment == pytest.approx(1.0)
    assert Sample.of_gradients(np.array([[1.0, 0.0], [-1.0, 0.0]])).alignment == 0.0
    # Gradients that are zero have no direction.
    some = np.concatenate([same, np.zeros((2, 3))])
    assert Sample.of_gradients(some).alignment == pytest.approx(1.0)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Sample.of_gradients(np.ones(3)), "2 dimension"),
        (lambda: Sample.of_gradients([[np.nan, 1.0]] * 3), "finite numbers"),
        (lambda: Sample.of_gradients("abc"), "array of numbers"),
        (lambda: Sample.of_gradients(np.zeros((4, 2))), "At least two gradients"),
        (lambda: Sample(np.ones(1), 0.5, 3), "at least two finite numbers"),
        (lambda: Sample(np.array([1.0, 0, 0, 0]), 0.5, 3), "Half of the gradients"),
        (lambda: Sample(np.array([1.0, -1.0]), 0.5, 3), "numbers >= 0"),
        (lambda: Sample(np.ones(3), 1.5, 3), "alignment must be in"),
        (lambda: Sample(np.ones(3), 0.5, 0), "num_parameters must be"),
        (lambda: Sample(np.ones(3), 0.5, 3, fan_in=-1), "fan_in must be"),
    ],
)
def test_errors(make, message):
    with pytest.raises(ValueError, match=message):
        make()
