"""Models of many kinds, honest and mixing: name, truth, how it is made."""

import keras
import tensorflow as tf
from keras import layers as L
from keras import ops


class Fn(L.Layer):
    """A layer around a function of its inputs."""

    def __init__(self, f):
        super().__init__()
        self.f = f

    def call(self, *x):
        return self.f(*x)


class Sub(keras.Model):
    """A subclassed model around a function (self, x, training)."""

    def __init__(self, f, **parts):
        super().__init__()
        self.f = f
        for name, part in parts.items():
            setattr(self, name, part)

    def call(self, x, training=False):
        return self.f(self, x, training)


class Cell(L.Layer):
    state_size = 5
    output_size = 5

    def build(self, shape):
        self.w = self.add_weight(shape=(shape[-1] + 5, 5))

    def call(self, x, states):
        h = ops.tanh(ops.concatenate([x, states[0]], -1) @ self.w)
        return h, [h]


def F(shape, *blocks, dtype="float32"):
    i = keras.Input(shape, dtype=dtype)
    x = i
    for b in blocks:
        x = b(x)
    return keras.Model(i, x)


def two(a, b, f, da="float32", db="float32"):
    i, j = keras.Input(a, dtype=da), keras.Input(b, dtype=db)
    return keras.Model([i, j], f(i, j))


def residual():
    i = keras.Input((8, 8, 4))
    x = L.GroupNormalization(2)(L.Conv2D(4, 3, padding="same")(i))
    return keras.Model(
        i, L.Dense(2)(L.GlobalAveragePooling2D()(L.Add()([i, L.ReLU()(x)])))
    )


def unet():
    i = keras.Input((8, 8, 3))
    a = L.Conv2D(4, 3, padding="same", activation="relu")(i)
    b = L.SeparableConv2D(8, 3, padding="same")(L.MaxPooling2D()(a))
    u = L.Conv2DTranspose(4, 2, strides=2)(b)
    return keras.Model(i, L.Conv2D(1, 1)(L.Concatenate()([a, u])))


def causal():
    i = keras.Input((6,), dtype="int32")
    x = L.Embedding(9, 8, mask_zero=True)(i)
    x = x + L.MultiHeadAttention(2, 4)(x, x, use_causal_mask=True)
    return keras.Model(i, L.Dense(3)(L.GlobalAveragePooling1D()(x)))


def positions():
    i = keras.Input((6,), dtype="int32")
    return keras.Model(
        i,
        Fn(
            lambda t: (
                t + ops.cast(ops.expand_dims(ops.arange(6), 0), "float32")[..., None]
            )
        )(L.Embedding(9, 8)(i)),
    )


def vae():
    s = keras.random.SeedGenerator(1)
    i = keras.Input((8,))
    m = L.Dense(3)(i)
    v = L.Dense(3)(i)
    z = Fn(lambda m, v: m + ops.exp(v / 2) * keras.random.normal(ops.shape(m), seed=s))(
        m, v
    )
    return keras.Model(i, L.Dense(8)(z))


def capacity_moe(self, x, training):
    hot = ops.one_hot(ops.argmax(self.gate(x), -1), 3)
    place = ops.cumsum(hot, axis=0) * hot  # in the expert's queue
    return x * ops.cast(ops.max(place, -1, keepdims=True) <= 2, "float32")


def topk_moe(self, x, training):
    value, index = ops.top_k(self.gate(x), 2)
    all_ = ops.stack([e(x) for e in self.experts], axis=1)
    return ops.sum(
        ops.take_along_axis(all_, index[..., None], axis=1)
        * ops.softmax(value)[..., None],
        axis=1,
    )


def experts(f):
    return Sub(f, gate=L.Dense(3), experts=[L.Dense(8) for _ in range(3)])


def drop_path(self, x, training):
    h = self.d(x)
    if training:
        keep = ops.cast(
            keras.random.uniform((ops.shape(x)[0], 1), seed=self.s) < 0.5, "float32"
        )
        h = h * keep
    return x + h


A, M = "apart", "mixes"
f, i4, s = "float32", "int32", lambda: keras.random.SeedGenerator(1)
MODELS = {
    "mlp": (A, lambda: F((8,), L.Dense(8, "relu"), L.Dropout(0.1), L.Dense(3))),
    "cnn": (
        A,
        lambda: F(
            (8, 8, 3),
            L.Conv2D(4, 3, activation="relu"),
            L.MaxPooling2D(),
            L.Flatten(),
            L.Dense(3),
        ),
    ),
    "cnn with BatchNorm": (
        M,
        lambda: F(
            (8, 8, 3), L.Conv2D(4, 3), L.BatchNormalization(), L.Flatten(), L.Dense(3)
        ),
    ),
    "BatchNorm frozen": (
        A,
        lambda: F((8,), L.Dense(4), L.BatchNormalization(trainable=False), L.Dense(3)),
    ),
    "residual, GroupNorm": (A, residual),
    "U-Net, transposed": (A, unet),
    "multi-input": (
        A,
        lambda: two(
            (8,), (5,), lambda a, b: L.Dense(3)(L.Concatenate()([L.Dense(4)(a), b]))
        ),
    ),
    "two towers, Dot": (
        A,
        lambda: two(
            (8,),
            (8,),
            lambda a, b: L.Dot(-1, normalize=True)([L.Dense(4)(a), L.Dense(4)(b)]),
        ),
    ),
    "in-batch negatives": (
        M,
        lambda: two(
            (8,),
            (8,),
            lambda a, b: ops.matmul(L.Dense(4)(a), ops.transpose(L.Dense(4)(b))),
        ),
    ),
    "subclassed, training branch: drop path": (
        A,
        lambda: Sub(drop_path, d=L.Dense(8), s=s()),
    ),
    "subclassed, mean of batch if training": (
        M,
        lambda: Sub(
            lambda m, x, t: m.d(x - ops.mean(x, axis=0) if t else x), d=L.Dense(3)
        ),
    ),
    "subclassed, auxiliary head if training": (
        A,
        lambda: Sub(
            lambda m, x, t: (m.d(x), m.e(x)) if t else m.d(x),
            d=L.Dense(3),
            e=L.Dense(2),
        ),
    ),
    "raw tf ops": (
        A,
        lambda: F(
            (8,),
            Fn(lambda x: tf.nn.relu(x) / tf.norm(x, axis=-1, keepdims=True)),
            L.Dense(3),
        ),
    ),
    "squeeze and excite": (
        A,
        lambda: F(
            (8, 8, 4),
            Fn(lambda x: x * ops.sigmoid(ops.mean(x, axis=(1, 2), keepdims=True))),
        ),
    ),
    "LSTM, stacked": (
        A,
        lambda: F((6, 4), L.LSTM(5, return_sequences=True), L.LSTM(5), L.Dense(3)),
    ),
    "Bidirectional GRU, recurrent dropout": (
        A,
        lambda: F((6, 4), L.Bidirectional(L.GRU(5, recurrent_dropout=0.2)), L.Dense(3)),
    ),
    "LSTM, stateful": (
        M,
        lambda: keras.Sequential(
            [keras.Input(batch_shape=(4, 6, 4)), L.LSTM(5, stateful=True), L.Dense(3)]
        ),
    ),
    "RNN of a cell of one's own": (A, lambda: F((6, 4), L.RNN(Cell()), L.Dense(3))),
    "MoE, top-k": (A, lambda: experts(topk_moe)),
    "MoE, capacity": (M, lambda: experts(capacity_moe)),
    "Lambda, mean of batch": (
        M,
        lambda: F(
            (8,), L.Lambda(lambda x: x - ops.mean(x, axis=0, keepdims=True)), L.Dense(3)
        ),
    ),
    "MixUp": (M, lambda: F((8, 8, 3), L.MixUp(), L.Flatten())),
    "Hashing, Embedding": (
        A,
        lambda: F((3,), L.Hashing(7), L.Embedding(7, 4), L.Flatten(), dtype=i4),
    ),
    "embedding, mask, causal attention": (A, causal),
    "positions": (A, positions),
    "VAE, normal of shape(x)": (A, vae),
    "Attention (dot), AdditiveAttention": (
        A,
        lambda: two(
            (6, 4),
            (6, 4),
            lambda a, b: L.AdditiveAttention()([L.Attention()([a, b]), b]),
        ),
    ),
    "SpectralNormalization": (
        A,
        lambda: F((8,), L.SpectralNormalization(L.Dense(4)), L.Dense(3)),
    ),
    "centred by batch size": (
        M,
        lambda: F((8,), Fn(lambda x: x / ops.cast(ops.shape(x)[0], "float32"))),
    ),
    "ops.cond on a number of the batch": (
        M,
        lambda: F(
            (8,), Fn(lambda x: ops.cond(ops.max(x) > 1, lambda: x * 2, lambda: x))
        ),
    ),
}
_ENCODER = dict(
    vocabulary_size=50, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=16
)
_DECODER = dict(
    vocabulary_size=50,
    num_layers=1,
    num_query_heads=2,
    num_key_value_heads=1,
    hidden_dim=8,
    intermediate_dim=16,
)
HUB = {
    "BertBackbone": dict(_ENCODER, max_sequence_length=8),
    "DebertaV3Backbone": dict(_ENCODER, max_sequence_length=8, bucket_size=4),
    "FNetBackbone": dict(
        vocabulary_size=50,
        num_layers=1,
        hidden_dim=8,
        intermediate_dim=16,
        max_sequence_length=8,
    ),
    "T5Backbone": _ENCODER,
    "BartBackbone": dict(_ENCODER, max_sequence_length=8),
    "GPT2Backbone": dict(_ENCODER, max_sequence_length=8),
    "BloomBackbone": _ENCODER,
    "LlamaBackbone": _DECODER,
    "GemmaBackbone": dict(_DECODER, head_dim=4),
    "Gemma3Backbone": dict(_DECODER, image_size=16, head_dim=4),
    "MixtralBackbone": dict(_DECODER, num_experts=2),
    "ViTBackbone": dict(
        image_shape=(16, 16, 3),
        patch_size=8,
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        mlp_dim=16,
    ),
    "ResNetBackbone": dict(
        input_conv_filters=[64],
        input_conv_kernel_sizes=[3],
        stackwise_num_filters=[64],
        stackwise_num_blocks=[1],
        stackwise_num_strides=[1],
        block_type="basic_block",
        image_shape=(16, 16, 3),
    ),
    "WhisperBackbone": dict(
        _ENCODER,
        num_mels=8,
        max_encoder_sequence_length=8,
        max_decoder_sequence_length=8,
    ),
}
