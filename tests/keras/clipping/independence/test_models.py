"""Models of many kinds: what is at once, alone, refused; and what would fool a table."""

import independence_cases as cases
import keras
import models_of_kinds as S
import numpy as np
import pytest
import tensorflow as tf
from keras import layers as L
from keras import ops
from keras.src.backend import any_symbolic_tensors

from tf_bandmf.keras.clipping import (
    UnsupportedModelError,
    check_supported,
    clipped_gradient_sums,
)
from tf_bandmf.keras.clipping.proof.judge import structure_of

# What runs alone: in raw TensorFlow; and layers in which examples meet, which training
# refuses by name unless it is told otherwise. (And one that training always refuses, which
# chooses a branch by a weight.)
ALONE = {
    "raw tf ops": ["Fn"],
    "subclassed, auxiliary head if training": ["Sub"],
    "SpectralNormalization": ["SpectralNormalization"],
}


def inputs_of(model):
    specs = getattr(getattr(model, "_functional", model), "_inputs_struct", None)
    specs = keras.Input((8,)) if specs is None else specs
    specs = keras.tree.map_structure(
        lambda t: tf.TensorSpec((None, *[n or 6 for n in t.shape[1:]]), t.dtype), specs
    )
    return specs[0] if isinstance(specs, list) and len(specs) == 1 else specs


def judged(make):
    """Names of the classes of layers that run alone; or the refusal."""
    model = make()
    if not model.built:
        model(tf.zeros((4, 8)))
    try:
        alone = structure_of(model, inputs_of(model)).alone
        return [type(one).__name__ for one in alone]
    except UnsupportedModelError as error:
        return str(error)


@pytest.mark.parametrize("name", S.MODELS)
@pytest.mark.invariant(16)
def test_models_of_many_kinds(name):
    truth, make = S.MODELS[name]
    actual = judged(make)
    if truth == S.A:
        assert actual == ALONE.get(name, [])
    else:
        assert actual, "accepted, though examples meet"


@pytest.mark.slow
@pytest.mark.parametrize("name", S.HUB)
@pytest.mark.invariant(16)
def test_backbones_of_keras_hub(name):
    models = pytest.importorskip("keras_hub").models
    actual = judged(lambda: getattr(models, name)(**S.HUB[name]))
    norms = name in ("ResNetBackbone", "DenseNetBackbone")
    assert (set(actual) == {"BatchNormalization"}) if norms else actual == []


class Centre(keras.Operation):
    """One's own operation; named like one of Keras': the table asks for names."""

    def call(self, x):
        return x - ops.mean(x, axis=0)

    def compute_output_spec(self, x):
        return keras.KerasTensor(x.shape, x.dtype)


Clip = type("Clip", (Centre,), {})


class ByContext(L.Layer):
    """`training` comes from Keras' call context, which `layer.call` does not open."""

    def call(self, x, training=False):
        return x - ops.mean(x, axis=0) if training else x


class Symbolic(L.Layer):
    """The idiom of Keras' own ops: another way for symbolic tensors."""

    def call(self, x):
        if any_symbolic_tensors((x,)):
            return ops.identity(x)
        return x - ops.mean(x, axis=0)


class Queue(L.Layer):
    """A memory of the last batch, as MoCo's or an average of activations."""

    def build(self, shape):
        self.seen = self.add_weight(
            shape=(shape[-1],), trainable=False, initializer="zeros"
        )

    def call(self, x):
        out = x - self.seen
        if not isinstance(x, keras.KerasTensor):
            self.seen.assign(0.9 * self.seen + 0.1 * ops.mean(x, axis=0))
        return out


class Penalized(L.Layer):
    def call(self, x):
        self.add_loss(ops.mean(ops.square(ops.mean(x, axis=0))))
        return x


class Chunked(L.Layer):
    def call(self, x):
        return x if x.shape[0] and x.shape[0] > 512 else x - ops.mean(x, axis=0)


FOOLING = {
    "an Operation of one's own with a name of Keras'": (
        lambda: S.F((8,), lambda x: Clip()(x), L.Dense(3))
    ),
    "training from the call context": (
        lambda: S.Sub(lambda m, x, t: m.d(m.c(x)), c=ByContext(), d=L.Dense(3))
    ),
    "symbolic tensors go another way": (lambda: S.F((8,), Symbolic(), L.Dense(3))),
    "branch on the batch size": (lambda: S.F((8,), Chunked(), L.Dense(3))),
    "EinsumDense over the batch": (
        lambda: keras.Model(
            *(lambda i: (i, L.EinsumDense("ab,ca->cb", output_shape=(8,))(i)))(
                keras.Input(batch_shape=(4, 8))
            )
        )
    ),
    "Activation(softmax over axis 0)": (
        lambda: S.F((8,), L.Activation(lambda x: ops.softmax(x, axis=0)), L.Dense(3))
    ),
    "LSTM with an activation of one's own": (
        lambda: S.F(
            (6, 8), L.LSTM(3, activation=lambda x: ops.tanh(x - ops.mean(x, axis=0)))
        )
    ),
    "memory of the last batch": (lambda: S.F((8,), Queue(), L.Dense(3))),
    "add_loss over the batch": (lambda: S.F((8,), Penalized(), L.Dense(3))),
    "activity_regularizer of a known layer": (
        lambda: S.F(
            (8,),
            L.Dense(
                3,
                activity_regularizer=lambda x: ops.sum(ops.square(ops.mean(x, axis=0))),
            ),
        )
    ),
}


@pytest.mark.parametrize("name", FOOLING)
@pytest.mark.invariant(16)
def test_what_honest_authors_do_is_not_accepted(name):
    model = FOOLING[name]()
    x = np.ones((4, *[n or 6 for n in inputs_of(model).shape[1:]]), "f4")
    y = model(x).numpy()
    model.compile(loss="mse")
    try:
        check_supported(model)
        assert cases.executed_alone(model, x, y)
    except UnsupportedModelError:
        pass


def test_a_model_is_judged_anew_where_training_has_changed_its_weights():
    # The bias of a convolution is a constant of a walk.
    layers = [
        keras.Input((6, 6, 1)),
        L.Conv2D(3, 3),
        cases.Custom(lambda x: 2.0 * x),
        L.Flatten(),
        L.Dense(2),
    ]
    model = keras.Sequential(layers)
    for variable, size in ((0.0, 4), (1.0, 6)):
        model.layers[0].bias.assign([variable, 2.0, 3.0])
        x, y = tf.ones((size, 6, 6, 1)), tf.zeros((size,), tf.int32)
        model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        for dtype in (tf.float32, tf.float64):
            sums = clipped_gradient_sums(model, tf.cast(x, dtype), y, l2_norm_clip=1.0)
            assert len(sums.norms) == size
