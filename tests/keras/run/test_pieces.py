"""A sum in pieces has the digest, the noise and the mean of one that is put together."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf import noise, strategies
from tf_bandmf.keras.run import pieces, replicas, secrets
from tf_bandmf.noise.keys import NoiseKey

BATCH, EXAMPLES, ROWS, COLUMNS = 16, 48, 8_300, 16
# The tests' table is large.
LARGE = 1 << 17


def parts(*sizes):
    return [tf.zeros([size]) for size in sizes]


def sizes(groups):
    return [[int(part.shape[0]) for part in group] for group in groups]


def test_large_parts_are_by_themselves():
    large = pieces._LARGE
    found = pieces.groups_of(parts(4, 2, large, large + 2, 3, 1))
    assert sizes(found) == [[4, 2], [large], [large + 2], [3, 1]]
    # At an odd place, of an odd size, or a small share of all.
    found = pieces.groups_of(parts(1, large, 1, large + 1, 3))
    assert sizes(found) == [[1, large, 1, large + 1, 3]]
    found = pieces.groups_of(parts(large, 32 * large, large))
    assert sizes(found) == [[large], [32 * large], [large]]
    assert sizes(pieces.groups_of(parts(8, 8))) == [[8, 8]]


def test_sums_of_small_models_are_put_together():
    # Each piece has programs of its own, which XLA compiles before the first step.
    of_mlp = parts(784 * 512, 512, 512 * 512, 512, 512 * 10, 10)
    assert len(pieces.groups_of(of_mlp)) == 1


def trained(mechanism, counts, monkeypatch, is_copied):
    monkeypatch.setattr(pieces, "_LARGE", LARGE)
    if is_copied:
        monkeypatch.setattr(pieces, "groups_of", lambda parts: [list(parts)])
    keras.utils.set_random_seed(1)
    plan = tf_bandmf.plan(
        mechanism,
        noise_multiplier=1.0,
        delta=1e-5,
        num_examples=EXAMPLES,
        batch_size=BATCH,
        epochs=1,
        test_seed=7,
        sampling="fixed-order",
    )
    if counts:
        plan = plan.reserve(counts=0.01)
    inputs = keras.Input((3,), dtype="int32")
    hidden = keras.layers.Embedding(ROWS, COLUMNS)(inputs)
    outputs = keras.layers.Dense(1)(keras.layers.Flatten()(hidden))
    model = tf_bandmf.keras.make_private(keras.Model(inputs, outputs))
    model.compile(
        tf_bandmf.keras.PrivateOptimizer(keras.optimizers.SGD(0.5), plan),
        keras.losses.MeanSquaredError(),
    )
    rng = np.random.default_rng(0)
    ids = rng.integers(0, ROWS, (EXAMPLES, 3)).astype("int32")
    model.fit(plan.batches(ids, rng.normal(size=(EXAMPLES, 1))), verbose=0)
    return model.get_weights(), model.optimizer.run.secrets.secret_tensors()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mechanism", "counts"),
    [("lambda_cgd:0.5", False), ("identity", True), ("bsr:2", False)],
)
@pytest.mark.on_cpu
def test_a_step_is_the_same_bit_for_bit(mechanism, counts, monkeypatch):
    calls = []
    of_pieces = replicas.NoisyMean.of_pieces

    def noted(self, *arguments):
        calls.append(1)
        return of_pieces(self, *arguments)

    monkeypatch.setattr(replicas.NoisyMean, "of_pieces", noted)
    found = trained(mechanism, counts, monkeypatch, is_copied=False)
    assert calls
    calls.clear()
    expected = trained(mechanism, counts, monkeypatch, is_copied=True)
    assert not calls
    for own, other in zip(found[0], expected[0], strict=True):
        assert np.array_equal(own, other)
    # A test key is not bound to the sums, but their digests are kept.
    np.testing.assert_array_equal(found[1]["digests"], expected[1]["digests"])
    np.testing.assert_array_equal(found[1]["buffer"], expected[1]["buffer"])


def generator_of(size):
    return noise.NoiseGenerator(strategies.identity(3), size)


def test_a_mean_without_noise_for_all_of_it_is_refused():
    mean = replicas.NoisyMean(generator_of(100))
    halves = [tf.zeros([50]), tf.zeros([50])]
    assert len(mean.of_pieces(halves, tf.ones([112]), 1.0, 2.0)) == 2
    with pytest.raises(ValueError, match="Noise must be for all"):
        mean.of_pieces(halves, tf.ones([99]), 1.0, 2.0)
    with pytest.raises(ValueError, match="The sum must have 100 numbers, found 50"):
        mean.of_pieces(halves[:1], tf.ones([112]), 1.0, 2.0)


@pytest.mark.invariant(7)
def test_a_step_that_another_thread_took_has_no_noise(monkeypatch):
    generator = generator_of(100)
    state = secrets.SecretState(generator, NoiseKey.for_testing(0), "plan")
    zero, halves = tf.constant(0, tf.int64), [tf.zeros([50]), tf.zeros([50])]
    first = state.next_noise(zero, halves)
    whole = secrets.SecretState(generator, NoiseKey.for_testing(0), "plan")
    np.testing.assert_array_equal(first[:100], whole.next_noise(zero, tf.zeros([100])))
    # Without its assertion, too.
    monkeypatch.setattr(tf.debugging, "Assert", lambda *_: tf.no_op())
    assert np.all(np.isnan(state.next_noise(zero, halves)))


def test_digests_that_are_compiled_draw_the_same_noise():
    generator = generator_of(100)
    zero, inputs = tf.constant(0, tf.int64), tf.constant([1, 2, 3])
    total = tf.constant(np.random.default_rng(0).normal(size=100).astype("f4"))
    key = NoiseKey.for_testing(0)
    first, second = (
        secrets.SecretState(generator, key, "plan", compiles=compiles)
        for compiles in (False, True)
    )
    expected = first.next_noise(zero, total, inputs)
    np.testing.assert_array_equal(second.next_noise(zero, total, inputs), expected)
    third = secrets.SecretState(generator, key, "plan", compiles=True)
    other = third.next_noise(zero, total, tf.constant([1, 2, 4]))
    assert np.all(expected != other)
