"""Checks each registered matrix type's interface contract by dense linear algebra."""

import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf import matrices, workloads
from tf_bandmf.analysis import error
from tf_bandmf.noise.generator import updated
from tf_bandmf.noise.recurrences import recurrence_of

N = 12
KINDS = sorted(matrices.KINDS)


@pytest.fixture(params=KINDS)
def matrix(request):
    return matrices.KINDS[request.param].example(N)


def test_products_solves_and_norms_are_the_dense_ones(matrix):
    dense = matrix.to_dense()
    assert dense.shape == (N, N) and np.all(np.triu(dense, 1) == 0.0)
    x = np.random.default_rng(0).normal(size=(N, 3))
    for operand in (x, x[:, 0]):
        np.testing.assert_allclose(matrix.matmul(operand), dense @ operand, atol=1e-12)
        np.testing.assert_allclose(
            matrix.solve(operand), np.linalg.solve(dense, operand), atol=1e-11
        )
    np.testing.assert_allclose(matrix.column_norms(), np.linalg.norm(dense, axis=0))
    assert matrix.is_nonnegative() == bool(np.all(dense >= 0.0))


def test_it_says_nothing_of_its_structure_that_is_not_so(matrix):
    dense = matrix.to_dense()
    assert np.all(np.tril(dense, -matrix.bands) == 0.0)
    column = matrix.toeplitz_column()
    if column is not None:
        np.testing.assert_allclose(column, dense[:, 0], atol=1e-14)
        np.testing.assert_allclose(dense[1:, 1:], dense[:-1, :-1], atol=1e-14)
    inverse = matrix.banded_inverse()
    if inverse is not None:
        np.testing.assert_allclose(inverse.to_dense() @ dense, np.eye(N), atol=1e-12)
    if matrix.column_scale is None:
        assert matrix.core is matrix
    else:
        unscaled = matrix.core.to_dense()
        np.testing.assert_allclose(dense, unscaled * matrix.column_scale)
    if matrix.gram_diagonal_cost() is not None:
        gram = dense.T @ dense
        for offset in range(N):
            np.testing.assert_allclose(
                matrix.gram_diagonal(offset), np.diagonal(gram, offset), atol=1e-12
            )


def test_normalized_columns_have_norm_one(matrix):
    if matrix.column_scale is not None:
        pytest.skip("already scaled")
    normalized = matrix.normalize_columns()
    np.testing.assert_allclose(normalized.column_norms(), 1.0)
    dense = matrix.to_dense()
    np.testing.assert_allclose(
        normalized.to_dense(), dense / np.linalg.norm(dense, axis=0), atol=1e-14
    )


def test_it_is_rebuilt_from_its_configuration(matrix):
    config = matrix.to_config()
    assert config["kind"] == matrix.kind
    again = matrices.from_config(config)
    assert type(again) is type(matrix)
    np.testing.assert_array_equal(again.to_dense(), matrix.to_dense())


def test_leading_blocks_are_those_of_the_dense_matrix(matrix):
    dense = matrix.to_dense()
    for rows in (1, 3, N):
        block = matrices.leading_block(matrix, rows)
        np.testing.assert_allclose(block.to_dense(), dense[:rows, :rows], atol=1e-12)
    for rows in (0, N + 1):
        with pytest.raises(ValueError, match="num_rows"):
            matrices.leading_block(matrix, rows)


def test_float32_parameters_survive_float32(matrix):
    rounded = matrix.in_float32()
    twice = rounded.in_float32()
    np.testing.assert_array_equal(twice.to_dense(), rounded.to_dense())
    np.testing.assert_allclose(
        rounded.to_dense(), matrix.to_dense(), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    "workload",
    [
        workloads.prefix_sum(N),
        workloads.momentum_sgd(N, 0.5, 0.9, np.linspace(1.0, 0.2, N)),
    ],
    ids=["prefix", "schedule"],
)
def test_errors_are_those_of_the_dense_factor(matrix, workload):
    factor = workload.to_dense() @ np.linalg.inv(matrix.to_dense())
    np.testing.assert_allclose(
        error.per_step_squared_error(matrix, workload),
        np.sum(factor**2, axis=1),
        rtol=1e-9,
    )


def test_streamed_rows_are_those_of_the_dense_inverse(matrix):
    z = np.random.default_rng(1).normal(size=(N, 5)).astype(np.float32)
    table = tf.constant(z)

    def normals(steps, weights):
        return tf.linalg.matvec(tf.gather(table, steps), weights, transpose_a=True)

    recurrence = recurrence_of(matrix, jit_compile=False)
    streaming = matrix.streaming()
    assert recurrence.memory_vectors == streaming.memory_vectors
    buffer = tf.zeros([recurrence.memory_vectors, 5])
    rows = []
    for step in range(N):
        row, updates = recurrence.row(normals, buffer, tf.constant(step, tf.int64))
        buffer = updated(buffer, updates)
        rows.append(row.numpy())
    expected = np.linalg.solve(matrix.to_dense(), z.astype(np.float64))
    np.testing.assert_allclose(rows, expected, rtol=2e-4, atol=2e-5)


def test_a_kind_that_forgets_a_method_is_refused_with_its_name():
    class Wavelet(matrices.LowerTriangular):
        kind = "wavelet"

    with pytest.raises(TypeError, match="Wavelet lacks the methods example, matmul"):
        matrices.register(Wavelet)
    with pytest.raises(ValueError, match="of Other is already used by Dense"):
        matrices.register(type("Other", (matrices.Dense,), {}))
    assert sorted(matrices.KINDS) == KINDS
