"""The step runs the pass that was checked, and what is checked can still fail."""

import gc
import weakref

import clipping_reference as reference
import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_bandmf.keras.clipping import (
    Clipping,
    ClippingMismatchError,
    clipped_gradient_sums,
    self_check,
)
from tf_bandmf.keras.clipping.forward import kept_pass
from tf_bandmf.keras.clipping.sums import settings

layers = keras.layers


def random_model(rate=0.5):
    return reference.classifier(
        layers.Dense(4, activation="relu"),
        layers.Dropout(rate),
        layers.GaussianNoise(0.3),
        inputs=(6, 4),
    )


@pytest.fixture
def traces(monkeypatch):
    """Counts how often a pass is traced."""
    from tf_bandmf.keras.clipping.sums import clipped_sums

    found = []
    original = clipped_sums._pass_in_graph

    def counting(model, data, valid, clip):
        found.append(clip)
        return original(model, data, valid, clip)

    monkeypatch.setattr(clipped_sums, "_pass_in_graph", counting)
    return found


@pytest.mark.parametrize("microbatch_size", [None, 2])
@pytest.mark.parametrize("groups", [None, "layers"])
@pytest.mark.slow_cases("None-2", "layers-None", "layers-2")
def test_the_step_runs_the_pass_that_was_checked(traces, microbatch_size, groups):
    model = reference.classifier(layers.Dense(4), inputs=(6, 4))
    x, y = reference.sequences(), reference.labels()
    options = {"microbatch_size": microbatch_size, "clipping": Clipping(groups=groups)}
    expected = clipped_gradient_sums(model, x, y, l2_norm_clip=0.1, **options)
    del traces[:]
    self_check(model, x, y, **options)

    @tf.function(autograph=False)
    def step(x):
        return clipped_gradient_sums(model, x, y, l2_norm_clip=0.1, **options)

    found = step(tf.constant(x))
    assert len(traces) == 1
    np.testing.assert_allclose(found.norms, expected.norms, rtol=1e-6)
    for a, b in zip(found.sums, expected.sums, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)


def test_random_layers_are_random_in_the_step_that_follows(traces):
    model = random_model()
    x, y = reference.sequences(), reference.labels()
    self_check(model, x, y)

    @tf.function(autograph=False)
    def step():
        return clipped_gradient_sums(model, x, y, l2_norm_clip=1.0).norms

    first, second = step().numpy(), step().numpy()
    assert len(traces) == 1
    assert np.sum(first == second) <= 1  # by chance


@pytest.mark.slow_cases("trainable", "activation", "rate", "shape", "loss")
@pytest.mark.parametrize(
    "change", ["rate", "loss", "shape", "scale", "trainable", "activation"]
)
def test_a_step_with_other_settings_traces_its_own_pass(traces, change):
    model = random_model()
    x, y = reference.sequences(), reference.labels()
    self_check(model, x, y)
    options = {}
    if change == "rate":
        model.layers[1].rate = 0.25
    elif change == "loss":
        model.compile(loss=model.loss)
    elif change == "shape":
        y = y[:, None]
    elif change == "scale":
        options["loss_scale_factor"] = 4.0
    elif change == "activation":
        model.layers[0].activation = keras.ops.tanh
    else:
        model.layers[0].trainable = False
    clipped_gradient_sums(model, x, y, l2_norm_clip=1.0, **options)
    assert len(traces) == 2


@pytest.mark.parametrize("rate", [0.1, 0.9])
def test_a_wrong_rule_is_found_behind_dropout(wrong_dense_rule, rate):
    model = random_model(rate)
    with pytest.raises(ClippingMismatchError):
        self_check(model, reference.sequences(), reference.labels())
    assert not kept_pass.is_kept(model)


@pytest.mark.slow_cases("clipping1")
@pytest.mark.parametrize("clipping", [Clipping("automatic"), Clipping(groups="layers")])
def test_wrong_weights_of_other_ways_to_clip_are_found(monkeypatch, clipping):
    model = reference.classifier(layers.Dense(4), inputs=(6, 4))
    x, y = reference.sequences(), reference.labels()
    self_check(model, x, y, clipping=clipping)
    name = "automatic_weights" if clipping.automatic else "clip_weights"
    original = getattr(settings, name)

    def too_small(*args):
        return 0.5 * original(*args)

    monkeypatch.setattr(settings, name, too_small)
    with pytest.raises(ClippingMismatchError, match="sum"):
        self_check(model, x, y, clipping=clipping)


class DrawsByItself(layers.Layer):
    """Draws with a function of TensorFlow that Keras does not know of."""

    def call(self, x):
        return x * tf.random.uniform(tf.shape(x), 0.5, 1.5)


def test_draws_of_others_than_keras_are_still_found(monkeypatch):
    from tf_bandmf.keras.clipping.independence import registration

    monkeypatch.setattr(registration, "_vouched", {DrawsByItself})
    model = reference.classifier(layers.Dense(4), DrawsByItself(), inputs=(6, 4))
    with pytest.raises(ClippingMismatchError):
        self_check(model, reference.sequences(), reference.labels())


class DrawsCategories(layers.Layer):
    """Draws what has no constant in its place: it is checked by a pass of its own."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.generator = keras.random.SeedGenerator(1)

    def call(self, x):
        flat = keras.ops.reshape(x, (keras.ops.shape(x)[0], -1))
        drawn = keras.random.categorical(flat, 1, seed=self.generator)
        return x * (1.0 + keras.ops.cast(drawn, x.dtype)[:, :, None])


def test_other_draws_are_checked_by_a_pass_of_their_own(monkeypatch):
    from tf_bandmf.keras.clipping.independence import registration

    monkeypatch.setattr(registration, "_vouched", {DrawsCategories})
    model = reference.classifier(layers.Dense(4), DrawsCategories(), inputs=(6, 4))
    self_check(model, reference.sequences(), reference.labels())
    assert not kept_pass.is_kept(model)


def test_a_checked_model_is_not_kept_alive():
    model = random_model()
    self_check(model, reference.sequences(), reference.labels())
    assert kept_pass.is_kept(model)
    gone = weakref.ref(model)
    del model
    keras.utils.clear_session()
    gc.collect()
    assert gone() is None
