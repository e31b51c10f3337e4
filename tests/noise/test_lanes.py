"""Layouts for accelerators: the same numbers as on the CPU."""

import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf import matrices, noise, strategies, workloads
from tf_bandmf.noise import lanes, recurrences
from tf_bandmf.noise.devices import device_kind
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.noise.normals import weighted_normals

STEPS = 9


def keys_of(terms, generator="philox"):
    return tf.constant(NoiseKey.for_testing(0).step_keys(terms, generator))


@pytest.mark.slow_cases("4-10001")
@pytest.mark.parametrize(("terms", "size"), [(1, 5_000), (4, 10_001)])
def test_lanes_have_the_numbers_of_pairs(terms, size):
    keys, weights = keys_of(terms), tf.linspace(1.0, -0.9, terms)
    # Blocks across the border of the counters' lower halves.
    first = tf.constant(2**21 - 3, tf.uint64)
    compiled = tf.function(lanes.lane_normals, jit_compile=True, autograph=False)
    found = compiled(keys, weights, first, size)
    # A multiplication and an addition may be one instruction in one of the two.
    tolerance = 0.0 if terms == 1 else 1e-6
    expected = weighted_normals(keys, weights, size, first)
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def test_lanes_of_a_stream_cipher():
    keys, weights = keys_of(2, "chacha20"), tf.constant([1.0, -0.5])
    first = tf.constant(1, tf.uint64)
    # Without XLA, which takes minutes to compile it for a CPU.
    found = lanes.lane_normals(keys, weights, first, 1500)
    np.testing.assert_allclose(
        found, weighted_normals(keys, weights, 1500, first), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("kind", ["CPU", "GPU"])
def test_the_layout_follows_the_device(kind, monkeypatch):
    found = []

    @tf.function
    def seen():
        with tf.device(f"/device:{kind}:0"):
            found.append(device_kind())
        return tf.zeros([])

    seen.get_concrete_function()
    assert found == [kind]
    # Without a scope: the best that there is.
    monkeypatch.setattr(
        tf.config, "list_logical_devices", lambda k=None: [k] if k == kind else []
    )
    found.clear()
    tf.function(lambda: found.append(device_kind())).get_concrete_function()
    assert found == [kind]


def strategies_of_many_terms():
    workload = workloads.prefix_sum(STEPS)
    rows = matrices.BufferedToeplitz([0.9, 0.5], [0.7, 0.2], STEPS)
    return {
        "bisr": strategies.bisr(workload, 7),
        "dense": strategies.Strategy("dense", matrices.Dense(rows.to_dense())),
        "buffered": strategies.Strategy("blt", rows),
    }


def noise_rows(strategy, size, keep_normals=False):
    # Made anew: what is traced depends on the device.
    generator = noise.NoiseGenerator(strategy, size, keep_normals=keep_normals)
    state, rows = generator.initial_state(NoiseKey.for_testing(0)), []
    for step in range(STEPS):
        row, state = generator.next(state, tf.constant(step))
        rows.append(row)
    return np.stack(rows)


@pytest.mark.slow_cases("dense", "bisr")
@pytest.mark.parametrize("name", strategies_of_many_terms())
def test_rows_on_an_accelerator_are_those_of_a_cpu(name, monkeypatch):
    strategy = strategies_of_many_terms()[name]
    expected = noise_rows(strategy, 100)
    monkeypatch.setattr(recurrences, "device_kind", lambda: "GPU")
    # Of 7 terms the second group has 3, of 9 the third has one.
    monkeypatch.setattr(recurrences, "_TERMS_OF_LANES", 4)
    found = noise_rows(strategy, 100)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("kind", "found"), [("GPU", [16]), ("CPU", [4, 1])])
def test_terms_of_an_accelerator_are_drawn_at_once(kind, found, monkeypatch):
    monkeypatch.setattr(recurrences, "device_kind", lambda: kind)
    strategy = strategies.bisr(workloads.prefix_sum(100), 16)
    recurrence = recurrences.recurrence_of(strategy.matrix)
    drawn = []

    def normals(steps, weights):
        drawn.append(int(weights.shape[0]))
        return tf.zeros([8]) + tf.reduce_sum(weights)

    @tf.function(autograph=False)
    def row(step):
        return recurrence.row(normals, tf.zeros([0, 8]), step)[0]

    row.get_concrete_function(tf.TensorSpec([], tf.int64))
    assert drawn == found


@pytest.mark.parametrize("kind", ["GPU", "CPU"])
def test_buffers_of_an_accelerator_are_read_in_one_pass(kind, monkeypatch):
    monkeypatch.setattr(recurrences, "device_kind", lambda: kind)
    strategy = strategies_of_many_terms()["buffered"]
    recurrence = recurrences.recurrence_of(strategy.matrix)

    @tf.function(autograph=False, jit_compile=True)
    def row(buffer, step):
        output, updates = recurrence.row(lambda s, w: tf.zeros([8]) + w, buffer, step)
        return output, [update.values for update in updates]

    text = row.experimental_get_compiler_ir(tf.zeros([2, 8]), tf.constant(3, tf.int64))(
        stage="hlo"
    )
    # The control is the CPU, whose product is a kernel of its own.
    assert (" dot(" in text) == (kind == "CPU")
    # Results of one shape become one kernel: no sum of both rows of the buffer at once.
    assert ("f32[2,8]{1,0} add(" in text) == (kind == "CPU")
