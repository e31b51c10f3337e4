"""Layouts for accelerators: the same numbers as on the CPU."""

import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf.noise import lanes
from tf_bandmf.noise.devices import device_kind
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.noise.normals import weighted_normals


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
    # Words come in tiles of a pass (35), never of all 175.
    assert "u32[1,35,8,128]" in text and "u32[1,175,8,128]" not in text
