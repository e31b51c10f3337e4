"""Layouts for accelerators: the same numbers as on the CPU."""

import re

import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf import matrices, noise, strategies, workloads
from tf_bandmf.noise import devices, lanes, passes, recurrences
from tf_bandmf.noise.devices import device_kind
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.noise.normals import weighted_normals

STEPS = 9


def keys_of(terms, generator="philox"):
    return tf.constant(NoiseKey.for_testing(0).step_keys(terms, generator))


# One kernel; passes that leave no rest (5 of 35 tiles); passes and a rest (35 of 163).
@pytest.mark.slow_cases("1-179123-TPU", "4-10001-GPU", "4-166907-TPU")
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
    assert passes.tiles_of_pass(175) == 35
    assert passes.tiles_of_pass(97_657) == 49
    assert passes.tiles_of_pass(163) == 64


@pytest.mark.slow_cases("GPU")
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


@pytest.mark.slow_cases("2")
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


def kept_strategies():
    workload = workloads.prefix_sum(STEPS)
    return {
        "kept": (strategies.bisr(workload, 4), True),
        "banded": (strategies.bsr(workload, 4), False),
        "buffered": (strategies_of_many_terms()["buffered"], False),
    }


@pytest.mark.slow_cases("banded", "kept")
@pytest.mark.parametrize("name", kept_strategies())
def test_rows_of_kept_vectors_on_a_tpu_are_those_of_a_cpu(name, monkeypatch):
    strategy, keep = kept_strategies()[name]
    # Three passes of 2 tiles, the last of which reaches past the end.
    size = 6 * passes.TILE - 100
    expected = noise_rows(strategy, size, keep)
    monkeypatch.setattr(recurrences, "device_kind", lambda: "TPU")
    monkeypatch.setattr(passes, "_USUAL", 2)
    monkeypatch.setattr(passes, "_DIVISORS", [2])
    np.testing.assert_allclose(
        noise_rows(strategy, size, keep), expected, rtol=0, atol=1e-5
    )


# One pass; passes of 2 tiles that fit, that reach past the end, with a rest, with a rest
# that reaches past the end; one number beyond.
@pytest.mark.parametrize("size", [1500, 6144, 6044, 7168, 7000, 4097])
def test_passes_make_what_is_made_at_once(size, monkeypatch):
    monkeypatch.setattr(passes, "_USUAL", 2)
    monkeypatch.setattr(passes, "_DIVISORS", [2])
    random = np.random.default_rng(0)
    kept = random.normal(size=(3, size)).astype("f4")
    tiles = -(-size // passes.TILE) * passes.TILE
    drawn = tf.constant(random.normal(size=tiles).astype("f4"))

    def normals(start, count):
        return tf.slice(drawn, [start * passes.TILE], [count * passes.TILE])

    def then(own, part):
        return [own + part[2], 2.0 * part - own]

    @tf.function(jit_compile=True, autograph=False)
    def found(kept):
        return passes.in_passes(normals, kept, then)

    results = found(tf.constant(kept))
    for result, expected in zip(results, then(drawn[:size], kept)):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.slow_cases("TPU-0")
@pytest.mark.parametrize(("kind", "whole"), [("TPU", 0), ("CPU", 1)])
def test_normals_of_a_row_on_a_tpu_are_made_in_parts(kind, whole, monkeypatch):
    """The control is the CPU, which multiplies and adds whole vectors of them."""
    monkeypatch.setattr(recurrences, "device_kind", lambda: kind)
    size = 175 * passes.TILE
    generator = noise.NoiseGenerator(kept_strategies()["buffered"][0], size)
    keys = tf.constant(generator.step_keys(NoiseKey.for_testing(0)))

    @tf.function(autograph=False, jit_compile=True)
    def row(buffer, step):
        output, (update,) = generator.row(keys, buffer, step)
        return output, update.values

    arguments = tf.zeros([2, size]), tf.constant(3, tf.int64)
    text = row.experimental_get_compiler_ir(*arguments)(stage="hlo")
    made = re.findall(rf"= f32\[(?:2,)?{size}\]\S* (?:multiply|add|dot)\(", text)
    assert (len(made) > 0) == whole


@pytest.mark.parametrize(("kind", "long"), [("TPU", False), ("CPU", True)])
def test_a_tpu_divides_no_numbers_of_64_bits(kind, long, monkeypatch):
    """It takes hundreds of kernels for one of them; the control is the CPU."""
    monkeypatch.setattr(devices, "device_kind", lambda: kind)

    @tf.function(autograph=False, jit_compile=True)
    def places(steps):
        return devices.remainder(steps, 7)

    steps = tf.range(-3, 40, dtype=tf.int64)
    text = places.experimental_get_compiler_ir(steps)(stage="hlo")
    assert ("s64[43]{0} remainder(" in text) == long
    np.testing.assert_array_equal(places(steps), steps.numpy() % 7)
