"""Models of token sequences against gradients of the examples one by one."""

import clipping_reference as reference
import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf.keras.clipping import layers_executed_alone

layers = keras.layers


@pytest.mark.slow
def test_unknown_length():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((None,), dtype="int32")
    x = layers.Embedding(5, 8)(inputs)
    x = layers.LayerNormalization()(x + layers.MultiHeadAttention(2, 4)(x, x))
    x = layers.Dense(8, activation="relu")(x)
    x = layers.EinsumDense("abc,cd->abd", output_shape=(None, 300))(x)
    outputs = layers.Dense(3)(layers.GlobalAveragePooling1D()(x))
    model = keras.Model(inputs, outputs)
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    signature = [tf.TensorSpec([None, None], tf.int32), tf.TensorSpec([None], tf.int64)]

    @tf.function(autograph=False, input_signature=signature)
    def step(x, y):
        return reference.clipped_gradient_sums(model, x, y, l2_norm_clip=1.0)

    for length in (3, 300):
        x, y = reference.tokens(length=length), reference.labels()
        _, gradients = reference.example_gradients(model, x, y)
        result = step(x, y)
        norms = reference.norms_of(gradients)
        np.testing.assert_allclose(result.norms, norms, rtol=1e-4)
        reference.assert_sums_close(result.sums, reference.clipped_sums(gradients, 1.0))


@pytest.mark.slow_cases("1", "7")
@pytest.mark.parametrize("length", [1, 7, 300])
def test_embedding_with_repeated_ids(length):
    model = reference.classifier(
        layers.Embedding(5, 3), inputs=(length,), dtype="int32"
    )
    x = reference.tokens(length=length)
    reference.assert_exact(model, x, reference.labels())


def test_masked_loss_divides_by_the_examples_own_steps():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((7,), dtype="int32"),
            layers.Embedding(5, 3, mask_zero=True),
            layers.Dense(4, activation="tanh"),
            layers.Dense(5, activation="softmax"),
        ]
    )
    model.compile(loss="sparse_categorical_crossentropy")
    x = reference.tokens()
    assert len({int(n) for n in (x > 0).sum(1)}) > 1
    reference.assert_exact(model, x, np.roll(x, -1, axis=1))


@pytest.mark.slow_cases("group_query")
@pytest.mark.parametrize("kind", ["multi_head", "group_query"])
def test_attention(kind):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((7,), dtype="int32")
    x = layers.Embedding(5, 8, mask_zero=kind == "multi_head")(inputs)
    if kind == "multi_head":
        attention = layers.MultiHeadAttention(2, 4)
    else:
        attention = layers.GroupQueryAttention(4, 4, 2)
    x = layers.LayerNormalization()(x + attention(x, x, use_causal_mask=True))
    x = layers.GlobalAveragePooling1D()(x)
    model = keras.Model(inputs, layers.Dense(3)(x))
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    reference.randomize(model)
    reference.assert_exact(model, reference.tokens(), reference.labels())


class Positions(layers.Layer):
    """Looks up positions once for all examples."""

    def __init__(self, leading_one, then=lambda positions: positions):
        super().__init__()
        self.then = then
        self.tokens = layers.Embedding(5, 4)
        self.positions = layers.Embedding(7, 4)
        self.leading_one = leading_one

    def build(self, shape):
        self.tokens.build(shape)
        self.positions.build(shape)

    def call(self, x):
        ids = keras.ops.arange(7)
        if self.leading_one:
            ids = ids[None]
        return self.tokens(x) + self.then(self.positions(ids))


@pytest.mark.slow_cases("5-False", "7-False", "7-True")
@pytest.mark.parametrize("leading_one", [False, True])
@pytest.mark.parametrize("batch", [5, 7])
def test_position_embedding(leading_one, batch):
    # A batch of 7 has as many examples as there are positions.
    model = reference.classifier(Positions(leading_one), inputs=(7,), dtype="int32")
    reference.assert_exact(
        model, reference.tokens(batch=batch), reference.labels(batch=batch)
    )


# Entry by entry, positions may be repeated for each example; along them, they may not.
THEN = {
    "scaled": (lambda positions: 0.5 * positions, False),
    "normalized": (lambda positions: keras.ops.softmax(positions, axis=0), True),
    "times rows": (lambda positions: (positions * np.ones((5, 7, 4), "f4"))[0], True),
}


@pytest.mark.parametrize("name", THEN)
def test_what_is_made_of_positions(name):
    then, is_alone = THEN[name]
    layer = Positions(False, then)
    model = reference.classifier(layer, inputs=(7,), dtype="int32")
    x, y = reference.tokens(batch=5), reference.labels(batch=5)
    reference.assert_exact(model, x, y)
    assert (layer in layers_executed_alone(model)) == is_alone


def test_reversible_embedding_is_tied_exactly():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((7,), dtype="int32")
    embedding = layers.ReversibleEmbedding(5, 3)
    x = layers.Dense(3, activation="tanh")(embedding(inputs))
    model = keras.Model(inputs, embedding(x, reverse=True))
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = reference.tokens()
    reference.assert_exact(model, x, np.roll(x, -1, axis=1))
