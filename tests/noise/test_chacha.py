"""Noise from the stream cipher ChaCha20."""

import hashlib

import numpy as np
import pytest
import tensorflow as tf
from small_plans import small_plan

import tf_bandmf
from tf_bandmf import noise, strategies, workloads
from tf_bandmf.noise.chacha import chacha20, chacha20_blocks
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.noise.normals import source_of

KEY = NoiseKey.for_testing(0)
# RFC 8439, appendix A.1: key, block counter, first word of the nonce, keystream.
ZERO_KEY = bytes(32)
VECTORS = [
    (
        ZERO_KEY,
        0,
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586",
    ),
    (
        b"\x00\xff" + bytes(30),
        2,
        "72d54dfbf12ec44b362692df94137f328fea8da73990265ec1bbbea1ae9af0ca"
        "13b25aa26cb4a648cb9b9d1be65b2c0924a66c54d545ec1b7374f4872e99f096",
    ),
]


def words_of(key):
    # The nonce is zero.
    return tf.constant(np.append(np.frombuffer(key, "<u8"), np.uint64(0)))


@pytest.mark.parametrize(("key", "number", "keystream"), VECTORS)
def test_published_keystreams(key, number, keystream):
    expected = np.frombuffer(bytes.fromhex(keystream), "<u4")
    words = tf.stack(chacha20_blocks(words_of(key), tf.constant(number, tf.uint64)))
    np.testing.assert_array_equal(words, expected)
    # The counter has 64 bits, so a counter that is larger by 2^32 gives other words.
    far = chacha20_blocks(words_of(key), tf.constant(number + 2**32, tf.uint64))
    assert not np.any(words == tf.stack(far))


@pytest.mark.slow
def test_words_are_the_keystream_in_order_across_32_bits_of_counter():
    key = KEY.step_keys(1, "chacha20")[0]
    # The range starts within a block, and the lower word of the block counter overflows
    # within the range.
    first = 4 * 2**32 - 7
    counters = np.arange(first, first + 20, dtype=np.uint64)
    function = tf.function(chacha20, jit_compile=True)
    words = np.stack(function(tf.constant(key), tf.constant(counters)), 1)
    blocks = np.arange(first // 4, (first + 19) // 4 + 1, dtype=np.uint64)
    keystream = np.ravel(
        [chacha20_blocks(tf.constant(key), tf.constant(n)) for n in blocks]
    )
    start = 4 * (first % 4)
    np.testing.assert_array_equal(words.ravel(), keystream[start : start + 80])
    many = source_of(tf.constant(key)).in_a_row(tf.constant(key), counters[0], 20)
    np.testing.assert_array_equal(many.numpy().view(np.uint32), words)


@pytest.mark.slow
def test_rows_of_several_normals_agree_with_and_without_xla():
    # XLA would not finish compiling if two terms were added in one expression.
    def last_row(jit_compile):
        generator = noise.NoiseGenerator(
            strategies.bisr(workloads.prefix_sum(4), 3),
            5000,
            jit_compile=jit_compile,
            generator="chacha20",
        )
        row, _ = generator.next(generator.initial_state(KEY), tf.constant(3))
        return row

    np.testing.assert_allclose(last_row(True), last_row(False), atol=2e-6)


KNOWN = (-0.003835, 0.022722, -0.573735, -0.617352, -0.089892)


def test_known_normals():
    key = tf.constant(KEY.step_keys(1, "chacha20")[0])
    normals = noise.standard_normals(key, 5, jit_compile=False)
    np.testing.assert_allclose(normals, KNOWN, atol=1e-6)


def test_keys_of_one_generator_are_refused_by_the_other():
    of_philox = noise.NoiseGenerator(strategies.identity(3), 10)
    of_chacha = noise.NoiseGenerator(strategies.identity(3), 10, generator="chacha20")
    state = of_philox.initial_state(KEY)
    with pytest.raises(ValueError, match="they belong to another type of generator"):
        of_chacha.next(state, tf.constant(0))
    with pytest.raises(ValueError, match="generator must be one of philox, chacha20"):
        noise.NoiseGenerator(strategies.identity(3), 10, generator="aes")


@pytest.mark.invariant(8)
def test_step_keys_of_the_generators_have_nothing_in_common():
    philox, chacha = KEY.step_keys(2), KEY.step_keys(2, "chacha20")
    assert not set(philox.ravel()) & set(chacha[:, :4].ravel())
    expected = hashlib.blake2b(
        (1).to_bytes(8, "little"),
        key=KEY.secret_bytes(),
        digest_size=32,
        person=b"tf-bandmf chacha",
    )
    assert chacha[1, :4].tobytes() == expected.digest()
    assert not chacha[:, 4].any()  # This is the nonce, to which digests are added.


def make_plan(**changes):
    return small_plan("lambda_cgd:0.5", 22, 6, 2, noise_multiplier=1.0, **changes)


def test_the_generator_is_part_of_the_plan(tmp_path):
    plan = make_plan(generator="chacha20")
    default = make_plan()
    plan.save(tmp_path / "plan.json")
    assert tf_bandmf.Plan.load(tmp_path / "plan.json").generator == "chacha20"
    assert "ChaCha20" in str(plan.statement())
    assert "Philox" not in str(plan.statement())
    assert "ChaCha20" in str(tf_bandmf.compose([plan, default]).statement())
    assert plan.memory(10).key_bytes == 2 * default.memory(10).key_bytes
    with pytest.raises(ValueError, match="generator must be one of philox, chacha20"):
        make_plan(generator="aes-ctr")
