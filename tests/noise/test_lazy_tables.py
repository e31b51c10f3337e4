"""Tests that drawing noise only for rows that are read does not change its distribution."""

import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf import matrices
from tf_bandmf.noise import lazy
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.noise.lazy_tables import Jumps, LazyTable
from tf_bandmf.noise.normals import weighted_normals

_STEPS = 9
_RATES = np.linspace(0.5, 0.1, _STEPS)
_UPDATES = {
    "sgd": lazy.LinearUpdate(),
    "decay": lazy.LinearUpdate(weight_decay=0.3),
    "momentum": lazy.LinearUpdate(momentum=0.8),
    "nesterov": lazy.LinearUpdate(momentum=0.8, nesterov=True, weight_decay=0.2),
}
_MATRICES = {
    "independent": matrices.ToeplitzBanded(np.ones(1), _STEPS),
    "toeplitz": matrices.ToeplitzBanded.example(_STEPS),
    "banded": matrices.RowBanded.example(_STEPS),
    "inverse": matrices.Inverse.example(_STEPS),
    "scaled": matrices.ColumnScaled.example(_STEPS),
    "scaled inverse": matrices.Inverse.example(_STEPS).normalize_columns(),
    "buffered": matrices.BufferedToeplitz.example(_STEPS),
}
_KEYS = NoiseKey.for_testing(3).step_keys(2 * _STEPS + 2)


_STDDEV, _BATCH_SIZE = 0.7, 4.0


def _system(kind, update):
    noise = lazy.noise_system(_MATRICES[kind])
    return lazy.row_system(noise, update, _STDDEV, _BATCH_SIZE)


def _eager(kind, update):
    """Returns each step's weights as linear functions of the normals, [n + 1, n]."""
    noising = np.linalg.inv(_MATRICES[kind].to_dense())
    weights, velocity = np.zeros([2, _STEPS + 1, _STEPS])
    for t in range(_STEPS):
        gradient = _STDDEV * noising[t] * _RATES[t] / _BATCH_SIZE
        decayed = weights[t] * (1.0 - _RATES[t] * update.weight_decay)
        velocity[t + 1] = update.momentum * velocity[t] - gradient
        moved = velocity[t + 1]
        if update.nesterov:
            moved = update.momentum * velocity[t + 1] - gradient
        weights[t + 1] = decayed + moved
    return weights


@pytest.mark.parametrize("update", _UPDATES)
@pytest.mark.parametrize("kind", _MATRICES)
def test_all_pairs_of_reads_have_the_covariance_of_the_eager_noise(kind, update):
    update = _UPDATES[update]
    jumps = Jumps(_system(kind, update), _STEPS)
    times = [2, 3, 7, 9]
    m = jumps.entries
    # Instead of random numbers, the state holds coefficients of the normals that would
    # be drawn at each read.
    state, reads, last = np.zeros([m, m * len(times)]), [], 0
    for t in range(_STEPS):
        rate = tf.constant(_RATES[t], tf.float64)
        jumps.advance(tf.constant(t), rate)
        if t + 1 not in times:
            continue
        jump = jumps.since_release(tf.constant(t + 1))
        product, factor = jump.matrices[last - jump.first]
        fresh = np.zeros_like(state)
        place = m * len(reads)
        fresh[:, place : place + m] = factor.numpy()
        state, last = product.numpy() @ state + fresh, t + 1
        reads.append(state[0])
    expected = _eager(kind, update)[times]
    np.testing.assert_allclose(
        np.array(reads) @ np.array(reads).T,
        expected @ expected.T,
        rtol=2e-6,
        atol=1e-7 * np.max(expected**2),
    )


def test_what_is_shown_has_the_law_of_the_eager_noise():
    update = lazy.LinearUpdate(momentum=0.8, weight_decay=0.2)
    rows, columns = 3000, 24
    jumps = Jumps(_system("inverse", update), _STEPS)
    weights = [tf.Variable(tf.zeros([rows, columns])) for _ in range(2)]
    tables = [LazyTable(w, jumps, number) for number, w in enumerate(weights)]
    nothing = tf.zeros([rows // 3, columns])

    @tf.function(autograph=False)
    def step(t, rate, touched):
        now, key = jumps.since_release(t), tf.gather(_KEYS, 2 * t)
        for table in tables:
            table.bring_up_to_date(touched, now, key)
            table.add(touched, nothing, t, rate)
        jumps.advance(t, rate)

    @tf.function(autograph=False)
    def release(t):
        now, key = jumps.since_release(t), tf.gather(_KEYS, 2 * t + 1)
        for table, into in zip(tables, weights):
            table.release(into, now, key)
        jumps.released(t)

    rng, both = np.random.default_rng(5), []
    for t in range(_STEPS):
        touched = tf.constant(rng.permutation(rows)[: rows // 3], tf.int32)
        step(tf.constant(t), tf.constant(_RATES[t], tf.float64), touched)
        if t + 1 in (3, 4, 9):
            release(tf.constant(t + 1))
            both.append([table.numpy() for table in weights])
    shown, other = np.swapaxes(both, 0, 1)
    drawn = np.einsum("arc,brc->ab", shown, shown) / (rows * columns)
    expected = _eager("inverse", update)[[3, 4, 9]]
    expected = expected @ expected.T
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    # The tolerance is five standard errors of the mean of 72,000 products.
    np.testing.assert_array_less(np.abs(drawn - expected) / scale, 5 * 2**0.5 / 268)
    # The noise is independent between tables, between columns and between rows.
    across = np.mean(shown * other, axis=(1, 2)) / np.diag(expected)
    np.testing.assert_array_less(np.abs(across), 5 / 268)
    last = shown[-1] / np.sqrt(expected[-1, -1])
    across = last.T @ last / rows
    np.testing.assert_array_less(np.abs(across - np.eye(columns)), 6 * 2**0.5 / 54)
    neighbours = np.mean(last[1:] * last[:-1], axis=1)
    np.testing.assert_array_less(np.abs(neighbours.mean()), 5 / 268)


def _after_a_step(weights, kind="inverse"):
    """Makes a lazy table, and takes a step that reads no rows, at learning rate 0.1."""
    jumps = Jumps(_system(kind, lazy.LinearUpdate()), _STEPS)
    table = LazyTable(weights, jumps)
    jumps.advance(tf.constant(0), tf.constant(0.1, tf.float64))
    return jumps, table


# A release processes the table in parts of equal size, so its last part may overlap the
# part before it. With 720 rows, the second part overlaps most of the first part.
@pytest.mark.slow_cases("5000")
@pytest.mark.parametrize("rows", [5000, 720])
def test_a_release_is_made_of_parts_and_a_second_one_changes_nothing(monkeypatch, rows):
    columns = 3
    monkeypatch.setattr("tf_bandmf.noise.lazy_tables._RELEASE_NUMBERS", 4096)
    weights = tf.Variable(tf.random.normal([rows, columns]))
    jumps, table = _after_a_step(weights)
    assert rows / 2 < table._rows_of(4096) < rows or rows > 4096
    before = weights.numpy()
    table.release(weights, jumps.since_release(tf.constant(1)), _KEYS[0])
    first = weights.numpy()
    moved = first - before
    assert len(np.unique(moved)) > 0.99 * moved.size
    error = 5 / (2 * moved.size) ** 0.5
    np.testing.assert_allclose(np.std(moved), 0.7 / 4 * 0.1, rtol=error)
    jumps.released(tf.constant(1))
    table.release(weights, jumps.since_release(tf.constant(1)), _KEYS[1])
    np.testing.assert_array_equal(weights.numpy(), first)


# Rows are processed in parts of 8. These counts of rows make no part, an incomplete
# part, one part, one part and a row, and three parts.
@pytest.mark.slow_cases("False-9", "False-24")
@pytest.mark.parametrize("count", [0, 5, 8, 9, 24])
@pytest.mark.parametrize("traces", [False, True])
def test_rows_of_a_step_get_the_normals_of_their_part(monkeypatch, count, traces):
    columns, together, block = 4, 8, 4096
    numbers = together * columns
    monkeypatch.setattr("tf_bandmf.noise.lazy_tables._STEP_NUMBERS", numbers)
    jumps, table = _after_a_step(tf.Variable(tf.zeros([30, columns])), "independent")
    key = tf.constant(_KEYS[0])

    def step(rows):
        table.bring_up_to_date(rows, jumps.since_release(tf.constant(1)), key)

    if traces:
        step = tf.function(step, autograph=False)
        step = step.get_concrete_function(tf.TensorSpec([None], tf.int32))
    rows = np.random.default_rng(0).permutation(30)[:count].astype("i4")
    step(tf.constant(rows))
    expected = np.zeros([30, columns])
    for part, first in enumerate(range(0, count, together)):
        some = rows[first : first + together]
        normals = weighted_normals(key[None], tf.ones([1]), block * (part + 1))
        normals = np.reshape(normals[block * part :][:numbers], [together, columns])
        expected[some] = 0.7 / 4 * 0.1 * normals[: some.size]
    drawn = table.weights_of(tf.range(30))
    np.testing.assert_allclose(drawn, expected, rtol=1e-6)
    is_behind = np.isin(np.arange(30), rows, invert=True)
    clocks = table.clocks_of(tf.range(30))
    np.testing.assert_array_equal(clocks, np.where(is_behind, 0, 1))


def test_weights_that_a_step_takes_to_zero_are_refused():
    jumps = Jumps(_system("inverse", lazy.LinearUpdate(weight_decay=2.0)), _STEPS)
    jumps.entering(tf.constant(0), tf.constant(0.4, tf.float64))
    with pytest.raises(tf.errors.InvalidArgumentError, match="must not be 1"):
        jumps.entering(tf.constant(0), tf.constant(0.5, tf.float64))


def test_mechanisms_that_remember_too_much_are_refused():
    with pytest.raises(ValueError, match="at most 8 noise values"):
        lazy.noise_system(matrices.Dense.example(20))
    with pytest.raises(ValueError, match=r"at most 8 noise values.*bisr:9"):
        lazy.noise_system(matrices.ToeplitzBanded(np.linspace(1.0, 0.1, 12), 40))


def test_tables_show_no_secret():
    table = LazyTable(
        tf.Variable(tf.ones([2, 2])), Jumps(_system("inverse", lazy.LinearUpdate()), 3)
    )
    assert repr(table) == "LazyTable(<secret>)"
    with pytest.raises(TypeError, match="do not pickle"):
        table.__reduce__()
