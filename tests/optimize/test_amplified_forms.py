"""Forms of C: never negative, with the first column and the errors of their matrix."""

import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf import matrices, workloads
from tf_bandmf.analysis import error
from tf_bandmf.optimize import amplified_forms

N = 40
WORKLOADS = {
    "prefix": workloads.prefix_sum(N),
    "momentum": workloads.momentum_sgd(N, 0.9, 0.99),
    "schedule": workloads.momentum_sgd(N, 0.5, 1.0, np.linspace(1.0, 0.2, N)),
}
FORMS = {
    "inverse": amplified_forms.InverseBands,
    "buffers": amplified_forms.Buffers,
}


@pytest.fixture(params=FORMS)
def form(request):
    return FORMS[request.param]


@pytest.mark.parametrize("seed", range(5))
def test_no_variables_give_negative_entries(form, seed):
    variables = np.random.default_rng(seed).normal(scale=4.0, size=6)
    matrix = form(WORKLOADS["prefix"]).matrix(variables)
    assert matrix.is_nonnegative()
    column = matrix.to_dense()[:, 0]
    assert column[0] == 1.0
    if form is amplified_forms.Buffers:
        assert np.all(np.diff(column) < 0.0)


def test_variables_of_a_matrix_give_it_again():
    variables = np.random.default_rng(0).normal(scale=4.0, size=6)
    inverse = amplified_forms.InverseBands
    y = -inverse.coefficients(tf.constant(variables)).numpy()[1:]
    np.testing.assert_allclose(inverse.variables(y), variables)


def test_decays_stay_apart_whatever_the_variables_are():
    variables = np.array([800.0, 60.0, -800.0, 1e9])
    matrix = amplified_forms.Buffers(WORKLOADS["prefix"]).matrix(variables)
    assert isinstance(matrix.in_float32(), matrices.BufferedToeplitz)


@pytest.mark.parametrize("name", WORKLOADS)
def test_column_and_errors_are_those_of_the_matrix(form, name):
    variables = np.random.default_rng(1).normal(size=4) - 0.5
    found, workload = form(WORKLOADS[name]), WORKLOADS[name]
    dense = found.matrix(variables).to_dense()
    column = found.column(tf.constant(variables)).numpy()
    np.testing.assert_allclose(column, dense[:, 0], atol=1e-14)
    factor = workload.to_dense() @ np.linalg.inv(dense)
    errors = found.errors(tf.constant(variables)).numpy()
    np.testing.assert_allclose(errors, np.sum(factor**2, axis=1), rtol=1e-10)
    stored = error.per_step_squared_error(found.matrix(variables), workload)
    np.testing.assert_allclose(errors, stored, rtol=1e-10)


@pytest.mark.parametrize("name", WORKLOADS)
def test_gradients_are_finite_differences(form, name):
    variables = np.random.default_rng(2).normal(size=4) - 0.5
    found = form(WORKLOADS[name])
    weights = np.random.default_rng(3).normal(size=(2, N))

    def value(x):
        both = tf.stack([found.column(x), tf.math.log(found.errors(x))])
        return tf.reduce_sum(weights * both)

    constant = tf.constant(variables)
    with tf.GradientTape() as tape:
        tape.watch(constant)
        here = value(constant)
    gradient = tape.gradient(here, constant).numpy()
    for derivative, way in zip(gradient, 1e-6 * np.eye(4)):
        ahead, behind = (
            float(value(tf.constant(variables + s * way))) for s in (1, -1)
        )
        difference = (ahead - behind) / 2e-6
        np.testing.assert_allclose(derivative, difference, rtol=1e-5, atol=1e-6)
