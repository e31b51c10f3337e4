"""Layouts for accelerators: the same numbers as on the CPU."""

import re

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


# One kernel; passes that leave no rest (5 of 35 tiles); passes and a rest (35 of 163).
@pytest.mark.parametrize(
    ("terms", "size", "kind"),
    [
        (1, 5_000, "GPU"),
        (4, 10_001, "GPU"),
        (1, 175 * 1024 - 77, "TPU"),
        (4, 163 * 1024 - 5, "TPU"),
    ],
)
def test_lanes_have_the_numbers_of_pairs(terms, size, kind):
    keys, weights = keys_of(terms), tf.linspace(1.0, -0.9, terms)
    # Blocks across the border of the counters' lower halves.
    first = tf.constant(2**21 - 3, tf.uint64)
    compiled = tf.function(lanes.lane_normals, jit_compile=True, autograph=False)
    found = compiled(keys, weights, first, size, kind)
    # A multiplication and an addition may be one instruction in one of the two.
    tolerance = 0.0 if terms == 1 else 1e-6
    expected = weighted_normals(keys, weights, size, first)
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def test_passes_have_no_rest_where_that_can_be():
    assert lanes._tiles_of_pass(175) == 35
    assert lanes._tiles_of_pass(97_657) == 49
    assert lanes._tiles_of_pass(163) == 64


@pytest.mark.parametrize("kind", ["GPU", "TPU"])
def test_lanes_of_a_stream_cipher(kind):
    keys, weights = keys_of(2, "chacha20"), tf.constant([1.0, -0.5])
    first = tf.constant(1, tf.uint64)
    # Without XLA, which takes minutes to compile it for a CPU.
    found = lanes.lane_normals(keys, weights, first, 1500, kind)
    np.testing.assert_allclose(
        found, weighted_normals(keys, weights, 1500, first), rtol=0, atol=1e-6
    )


@pytest.mark.parametrize("kind", ["CPU", "GPU", "TPU"])
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


def test_a_program_for_a_tpu_has_a_loop_and_no_pairs():
    def program(keys, weights):
        with tf.device("/device:TPU:0"):
            return weighted_normals(keys, weights, 175 * 1024)

    traced = tf.function(program, jit_compile=True, autograph=False)
    text = traced.experimental_get_compiler_ir(keys_of(1), tf.ones([1]))(
        stage="hlo", device_name="/device:CPU:0"
    )
    assert "while(" in text and "c64" not in text
    # Words come in tiles of a pass (35, in 5 pieces), never of all 175.
    assert "u32[5,7,8,128]" in text and "u32[1,175,8,128]" not in text


@pytest.mark.parametrize("terms", [1, 2])
def test_a_single_key_is_no_single_number_for_a_tpu(terms):
    """Words that follow from a key would be in memory, one by one."""
    traced = tf.function(lanes.lane_normals, jit_compile=True, autograph=False)
    arguments = keys_of(terms), tf.ones([terms]), tf.constant(0, tf.uint64)

    def most_alone(kind):
        """How many words there are that stand alone in their tensors."""
        text = traced.experimental_get_compiler_ir(*arguments, 175 * 1024, kind)(
            stage="hlo", device_name="/device:CPU:0"
        )
        return len(re.findall(r"= u32\[(?:1,)*1\]\S* add\(", text))

    assert most_alone("TPU") == 0
    # The control: one term has them on a GPU, where they are in registers.
    assert (most_alone("GPU") > 0) == (terms == 1)


def strategies_of_many_terms():
    workload = workloads.prefix_sum(STEPS)
    rows = matrices.BufferedToeplitz([0.9, 0.5], [0.7, 0.2], STEPS)
    return {
        "bisr": strategies.bisr(workload, 7),
        "dense": strategies.Strategy("dense", matrices.Dense(rows.to_dense())),
        "buffered": strategies.Strategy("blt", rows),
    }


@pytest.mark.parametrize("name", strategies_of_many_terms())
def test_rows_on_an_accelerator_are_those_of_a_cpu(name, monkeypatch):
    strategy = strategies_of_many_terms()[name]

    def run():
        # Made anew: what is traced depends on the device.
        generator = noise.NoiseGenerator(strategy, 100)
        state, rows = generator.initial_state(NoiseKey.for_testing(0)), []
        for step in range(STEPS):
            row, state = generator.next(state, tf.constant(step))
            rows.append(row)
        return np.stack(rows)

    expected = run()
    monkeypatch.setattr(recurrences, "device_kind", lambda: "GPU")
    # Of 7 terms the second group has 3, of 9 the third has one.
    monkeypatch.setattr(recurrences, "_TERMS_OF_LANES", 4)
    np.testing.assert_allclose(run(), expected, rtol=0, atol=1e-5)


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
        output, update = recurrence.row(lambda s, w: tf.zeros([8]) + w, buffer, step)
        return output, update.values

    text = row.experimental_get_compiler_ir(tf.zeros([2, 8]), tf.constant(3, tf.int64))(
        stage="hlo"
    )
    # The control is the CPU, whose product is a kernel of its own.
    assert (" dot(" in text) == (kind == "CPU")
