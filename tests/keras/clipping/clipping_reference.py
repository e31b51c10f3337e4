"""Slow but obviously correct per-example clipping, and helpers for clipping tests."""

import keras
import numpy as np
import tensorflow as tf
from same_weights import refused
from small_models import make_private_model

from tf_bandmf.keras.clipping.forward.structure import structure_of
from tf_bandmf.keras.clipping.sums.clipped_sums import clipped_gradient_sums
from tf_bandmf.keras.clipping.sums.settings import FLAT
from tf_bandmf.keras.clipping.tensors.batches import to_tensors
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError

CLIP = 0.7
# A contribution may exceed the clip norm by this relative rounding error.
TOLERANCE = 1e-3
FROM_LOGITS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Scale(keras.layers.Layer):
    """A custom layer that returns `x * scale + scale**2` for one weight vector."""

    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), initializer="ones")

    def call(self, x):
        return x * self.scale + self.scale**2


class Around(Scale):
    """A layer that computes `function(inner, x)` and scales the result."""

    def __init__(self, inner, function=lambda inner, x: inner(x)):
        super().__init__()
        self.inner, self.function = inner, function

    def build(self, shape):
        super().build(shape)
        # This symbolic call builds the inner layer.
        self.function(self.inner, keras.KerasTensor(shape, self.compute_dtype))

    def call(self, x):
        return super().call(self.function(self.inner, x))


def chosen(structure, index):
    """Selects examples by index from nested arrays [B, ...], and keeps None entries."""
    return keras.tree.map_structure(
        lambda a: None if a is None else tf.convert_to_tensor(np.asarray(a)[index]),
        structure,
    )


def example_gradients(model, x, y, sample_weight=None):
    """Computes per-example losses and gradients with one tape per example."""
    losses, gradients = [], []
    variables = [v._value for v in model.trainable_variables]
    for index in range(len(keras.tree.flatten(x)[0])):
        alone, target, weight = chosen((x, y, sample_weight), slice(index, index + 1))
        with tf.GradientTape() as tape:
            y_pred = model(alone, training=True)
            loss = model.compute_loss(alone, target, y_pred, weight)
        grads = tape.gradient(loss, variables, unconnected_gradients="zero")
        gradients.append([np.asarray(tf.convert_to_tensor(g), "f8") for g in grads])
        losses.append(float(loss))
    return np.array(losses), gradients


def unit_gradients(model, rows, *data):
    """Computes each privacy unit's loss and gradients as means over the unit's rows."""
    flat = keras.tree.map_structure(
        lambda a: None if a is None else np.reshape(a, (-1, *np.shape(a)[2:])), data
    )
    losses, gradients = example_gradients(model, *flat)
    counts = np.maximum(rows.sum(1), 1)

    def means(of_rows):
        by_unit = np.reshape(of_rows, (*rows.shape, *np.shape(of_rows)[1:]))
        return np.array([g[row].sum(0) / n for g, row, n in zip(by_unit, rows, counts)])

    parts = [means(part) for part in zip(*gradients, strict=True)]
    return means(losses), [list(part) for part in zip(*parts, strict=True)]


def norms_of(gradients):
    return np.array([norm(gs) for gs in gradients])


def norm(arrays):
    return np.sqrt(sum(float(np.sum(np.square(a, dtype="f8"))) for a in arrays))


def clipped_sums(gradients, clip, clipping=FLAT, variables=()):
    """Computes clipped sums one example and one group of variables at a time."""
    totals = [np.zeros_like(g) for g in gradients[0]]
    members, clips = [0] * len(totals), [clip]
    if clipping.groups:
        members, clips = clipping.grouping(variables, clip)
    for of_example in gradients:
        for group, most in enumerate(clips):
            places = [i for i, member in enumerate(members) if member == group]
            length = norm(of_example[i] for i in places)
            scale = min(1.0, most / length) if length > 0 else 1.0
            if clipping.kind == "automatic":
                scale = most / (length + 0.01)
            for i in places:
                totals[i] = totals[i] + scale * of_example[i]
    return totals


def layers_alone(model, x):
    """Returns the layers that the training step runs on one example at a time."""
    return structure_of(model, to_tensors(x), model.trainable_variables).alone


def step_of(model, data, **options):
    """Returns a function for clipped sums that has one graph for all batch sizes."""
    signature = keras.tree.map_structure(
        lambda a: tf.TensorSpec([None, *np.shape(a)[1:]], tf.as_dtype(a.dtype)), data
    )
    inputs = getattr(model, "inputs", None)
    if "rows" not in data and inputs and not isinstance(data["x"], (dict, list)):
        # Input axes of unknown size in the model are of unknown size in the graph, too.
        signature["x"] = tf.TensorSpec(inputs[0].shape, signature["x"].dtype)

    @tf.function(autograph=False, input_signature=[signature])
    def step(batch):
        return clipped_gradient_sums(model, **batch, **options)

    return lambda batch: step(chosen(batch, slice(None)))


def named(**data):
    return {name: part for name, part in data.items() if part is not None}


def traced(model, x, y, sample_weight=None, clip=CLIP, rows=None, **options):
    """Computes the clipped sums of a batch in a graph with an unknown batch size."""
    data = named(x=x, y=y, sample_weight=sample_weight, rows=rows)
    return step_of(model, data, l2_norm_clip=clip, **options)(data)


def assert_sums_close(actual, expected, rtol=1e-4):
    scale = norm(expected)
    for got, want in zip(actual, expected, strict=True):
        assert got.dtype == tf.float32
        assert tuple(got.shape) == want.shape
        np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * scale + 1e-7)


def extremes(x, index):
    """Yields inputs in which one example becomes NaN, huge, tiny or nearly constant."""
    for change in (
        lambda part: np.nan * part,
        *(lambda part, scale=scale: scale * part for scale in (1e-20, 1e6, 1e18)),
        # If all positions of an example are almost equal, terms of its gradient cancel.
        *(lambda part, n=n: 1e4 * (part[:1] + n * part) for n in (0.0, 1e-6)),
    ):

        def changed(leaf, change=change):
            leaf = leaf.copy()
            leaf[index] = change(leaf[index])
            return leaf

        yield keras.tree.map_structure(changed, x)


def assert_exact(model, x, y, sample_weight=None, rtol=1e-4, rows=None, **options):
    """Asserts that the clipped sums of a batch match brute force on single examples.

    Also asserts, in the same graph, that the example with the largest gradient
    contributes at most the clip norm, even if its values are extreme, and contributes zero
    if they are not finite.
    """
    data = named(x=x, y=y, sample_weight=sample_weight, rows=rows)
    given = (model, x, y, sample_weight)
    if rows is None:
        losses, gradients = example_gradients(*given)
    else:
        losses, gradients = unit_gradients(model, rows, x, y, sample_weight)
    if options.get("scales"):
        scales = [np.asarray(s) for s in options["scales"]]
        gradients = [[g * s for g, s in zip(gs, scales)] for gs in gradients]
    norms, clipping = norms_of(gradients), options.get("clipping", FLAT)
    # The clip norm is the median norm, so that half of the examples are clipped.
    clip = float(np.median(norms)) or 1.0
    step = step_of(model, data, l2_norm_clip=clip, **options)
    result = step(data)
    np.testing.assert_allclose(result.norms, norms, rtol=rtol, atol=1e-6)
    np.testing.assert_allclose(result.losses, losses, rtol=rtol, atol=1e-6)
    expected = clipped_sums(gradients, clip, clipping, model.trainable_variables)
    assert_sums_close(result.sums, expected, rtol)

    longest = int(np.argmax(norms))
    contribution = norm(step(chosen(data, slice(longest, longest + 1))).sums)
    assert contribution <= clip * (1 + 1e-5)
    if clipping == FLAT:
        assert contribution >= min(clip, norms[longest]) * (1 - TOLERANCE)

    leaves = keras.tree.flatten(x)
    if not all(np.issubdtype(leaf.dtype, np.floating) for leaf in leaves):
        return result
    without = step(chosen(data, np.arange(len(norms)) != longest)).sums
    for extreme in extremes(x, longest):
        beside = step({**data, "x": extreme})
        moved = norm([np.subtract(*p, dtype="f8") for p in zip(beside.sums, without)])
        assert moved <= clip * (1 + TOLERANCE)
        if any(np.isnan(leaf).any() for leaf in keras.tree.flatten(extreme)):
            assert not np.isfinite(beside.norms[longest]) and moved <= 1e-4 * clip
    return result


def assert_fit_refuses(model, plan, data, message, inner="sgd", **compiled):
    """Asserts that `fit` refuses a private model and leaves its weights unchanged."""
    make_private_model(plan, inner, model=model, **compiled)
    with refused(model, UnsupportedModelError, message):
        model.fit(plan.batches(*data), epochs=1, verbose=0)


def images(seed=0, batch=5, size=8, channels=3):
    return normal(batch, size, size, channels, seed=seed)


def sequences(seed=0, batch=5, length=6, width=4):
    return normal(batch, length, width, seed=seed)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("f4")


def tokens(seed=0, batch=5, length=7, vocabulary=5):
    rng = np.random.default_rng(seed)
    return rng.integers(0, vocabulary, size=(batch, length)).astype("i4")


def labels(seed=1, batch=5, classes=3):
    return np.random.default_rng(seed).integers(0, classes, size=batch)


def classifier(*layers, inputs, dtype=None):
    """Returns a compiled stack of layers with a softmax head for 3 classes."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [keras.Input(inputs, dtype=dtype), *layers, keras.layers.Flatten()]
    )
    model.add(keras.layers.Dense(3, activation="softmax"))
    model.compile(loss="sparse_categorical_crossentropy")
    randomize(model)
    return model


def functional(shape, body, *, dtype=None, head=True, loss=FROM_LOGITS):
    """Returns a compiled functional model around `body`, by default with 3 classes."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input(shape, dtype=dtype)
    outputs = body(inputs)
    if head:
        flat = outputs if len(outputs.shape) == 2 else keras.layers.Flatten()(outputs)
        outputs = keras.layers.Dense(3)(flat)
    model = keras.Model(inputs, outputs)
    model.compile(loss=loss)
    randomize(model)
    return model


def randomize(model, seed=5):
    """Adds noise to the weights, since initial values of 0 or 1 may hide errors."""
    rng = np.random.default_rng(seed)
    for variable in model.trainable_variables:
        noise = 0.1 * rng.normal(size=tuple(variable.shape))
        variable.assign(np.asarray(variable) + noise)
