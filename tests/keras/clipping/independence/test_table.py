"""Tests that no operation in the table of safe operations mixes examples."""

import numpy as np
import pytest
import tensorflow as tf
from keras import ops, random

from tf_bandmf.keras.clipping.independence.operations import OPERATIONS
from tf_bandmf.keras.clipping.independence.places import CannotOpen, Mixes
from tf_bandmf.keras.clipping.independence.walk import Walk

pytestmark = pytest.mark.invariant(16)

BATCH, SIZE = 5, 101
SEED = random.SeedGenerator(1)
WEIGHTS = np.random.default_rng(3).normal(size=(4, 2)).astype("f4")
SQUARE = np.random.default_rng(4).normal(size=(4, 4)).astype("f4")
KERNEL = np.random.default_rng(5).normal(size=(2, 4, 2)).astype("f4")


def whole(x):
    return ops.cast(ops.round(ops.abs(ops.clip(x, -50, 50))) + 1, "int32")


def square(x):
    return ops.matmul(x, ops.swapaxes(x, 1, 2)) + 3 * ops.eye(3)


def image(x):
    return ops.stack([x] * 3, axis=-1)


def called(*arguments, inputs=lambda x: [x], **named):
    """Returns a function that turns an operation class into a function of x.

    If the operation returns several results, the function returns the last one.
    """

    def of(kind):
        def function(x):
            result = kind(*arguments, **named)(*inputs(x))
            return result[-1] if isinstance(result, (list, tuple)) else result

        return function

    return of


# Argument patterns that are tried with each operation. Some patterns raise an error, or
# make the operation mix examples.
WAYS = [
    called(axis=1),
    called(axis=-1),
    called(),
    called(inputs=lambda x: [x, x[:, :1] * 2]),
    called(inputs=lambda x: [whole(x), whole(x) * 0 + 3]),
    called(inputs=lambda x: [whole(x)]),
    called(inputs=lambda x: [square(x)]),
    called(inputs=lambda x: [image(x)]),
    called(inputs=lambda x: [x, 3.0]),
    called(inputs=lambda x: [(x, 0 * x)]),
    called(1),
    called(2, 1),
    called(2, axis=-1),
    called(axes=[1]),
    called(axis1=1, axis2=2, inputs=lambda x: [square(x)]),
    called(axis=1, inputs=lambda x: [[x, 2 * x]]),
    called(axis=1, inputs=lambda x: [x, ops.argsort(x, 1)]),
    called(axis=1, inputs=lambda x: [x, 0.3]),
]


CASES = {
    "quantile": lambda x: ops.quantile(x, ops.array([0.2, 0.5]), axis=1),
    "layer_normalization": lambda x: ops.layer_normalization(x, axis=-1),
    "where": lambda x: ops.where(x > 0, x, 1.0),
    "cast": lambda x: ops.cast(x, "float16"),
    "saturate_cast": lambda x: ops.saturate_cast(x, "int8"),
    "binary_crossentropy": lambda x: ops.binary_crossentropy(
        ops.sigmoid(x), ops.sigmoid(-x)
    ),
    "svd": lambda x: ops.svd(x, compute_uv=False),
    "stft": lambda x: ops.stft(ops.tile(x, (1, 1, 4)), 4, 2, 4)[0],
    "reshape": lambda x: ops.reshape(x, (-1, 12)),
    "reshape by shape": lambda x: ops.reshape(x, (ops.shape(x)[0], 2, 6)),
    "merge and split": lambda x: ops.reshape(ops.reshape(x, (-1, 4)) * 2, (-1, 3, 4)),
    "merge": lambda x: ops.reshape(x, (-1, 4)),
    "ravel": lambda x: ops.ravel(x),
    "transpose": lambda x: ops.transpose(x, (2, 0, 1)),
    "transpose to time": lambda x: ops.transpose(
        ops.transpose(x, (1, 0, 2)), (1, 0, 2)
    ),
    "transpose whole": lambda x: ops.transpose(x),
    "moveaxis": lambda x: ops.moveaxis(x, 0, -1),
    "expand_dims": lambda x: ops.expand_dims(x, (0, 2)),
    "squeeze": lambda x: ops.squeeze(ops.expand_dims(x, 0), 0),
    "broadcast_to": lambda x: ops.broadcast_to(x, (2, ops.shape(x)[0], 3, 4)),
    "stack before": lambda x: ops.stack([x, 2 * x], axis=0),
    "pad": lambda x: ops.pad(x, ((0, 0), (1, 0), (0, 2))),
    "get item": lambda x: x[:, ::-1, 1],
    "get item, new axes": lambda x: x[:, None, ..., None, :2],
    "take": lambda x: ops.take(x, [1, 2, 1], axis=-1),
    "take matrix": lambda x: ops.take(x, [[1, 2], [0, 0]], axis=1),
    "take from weights": lambda x: ops.take(WEIGHTS, whole(x) % 4, axis=0),
    "take columns": lambda x: ops.take(WEIGHTS, whole(x) % 2, axis=1),
    "one_hot before": lambda x: ops.one_hot(whole(x), 5, axis=0),
    "digitize": lambda x: ops.digitize(x, np.array([-0.5, 0.5], "f4")),
    "einsum": lambda x: ops.einsum("btd,de->ebt", x, WEIGHTS),
    "einsum of two": lambda x: ops.einsum("b...d,b...e->b...de", x, x),
    "einsum without arrow": lambda x: ops.einsum("bij,jk", x, SQUARE),
    "matmul": lambda x: ops.matmul(x, WEIGHTS),
    "matmul of rows": lambda x: ops.matmul(x, ops.swapaxes(x, 1, 2)),
    "matmul of vectors": lambda x: ops.matmul(x, WEIGHTS[:, 0]),
    "matmul from the left": lambda x: ops.matmul(SQUARE[:3, :3], x),
    "tensordot": lambda x: ops.tensordot(x, WEIGHTS, axes=1),
    "dot": lambda x: ops.dot(x, WEIGHTS),
    "attention": lambda x: ops.dot_product_attention(*[x[:, :, None]] * 3),
    "attention, mask": lambda x: ops.dot_product_attention(
        *[x[:, :, None]] * 3, mask=(square(x) > 0)[:, None]
    ),
    "attention, causal": lambda x: ops.dot_product_attention(
        *[x[:, :, None]] * 3, is_causal=True
    ),
    "conv": lambda x: ops.conv(x, KERNEL, padding="same"),
    "depthwise_conv": lambda x: ops.depthwise_conv(x, KERNEL[:, :, :1]),
    "separable_conv": lambda x: ops.separable_conv(x, KERNEL[:, :, :1], SQUARE[None]),
    "conv_transpose": lambda x: ops.conv_transpose(x, KERNEL.swapaxes(1, 2), 2),
    "max_pool": lambda x: ops.max_pool(x, 2, 1),
    "average_pool": lambda x: ops.average_pool(x, 2, 1, padding="same"),
    "batch_normalization": lambda x: ops.batch_normalization(
        x[:, 0], np.ones(4, "f4"), np.ones(4, "f4"), -1
    ),
    "depth_to_space": lambda x: ops.depth_to_space(
        ops.concatenate([x[..., None]] * 4, -1), 2
    ),
    "space_to_depth": lambda x: ops.space_to_depth(image(x)[:, :2], 2),
    "unfold": lambda x: ops.unfold(x[:, None], 2),
    "resize": lambda x: ops.image.resize(image(x), (5, 2)),
    "extract_patches": lambda x: ops.image.extract_patches(image(x), (2, 2)),
    "pad_images": lambda x: ops.image.pad_images(image(x), 1, 1, 1, 1),
    "crop_images": lambda x: ops.image.crop_images(image(x), 1, 1, 1, 1),
    "affine_transform": lambda x: ops.image.affine_transform(
        image(x), np.array([1, 0.1, 0, 0, 1, 0, 0, 0], "f4")
    ),
    "draws": lambda x: x + random.normal(ops.shape(x), seed=SEED),
    "draws of examples": lambda x: (
        x * (random.uniform((ops.shape(x)[0], 1, 1), seed=SEED))
    ),
    "dropout": lambda x: random.dropout(x, 0.5, seed=SEED),
    "zeros of examples": lambda x: ops.concatenate(
        [x, ops.zeros((ops.shape(x)[0], 3, 1))], -1
    ),
}


def drawn_alike(function, x):
    SEED.state.assign([1, 2])
    return np.asarray(function(tf.constant(x)))


def walked(function):
    """Returns the `Walk` of a function, and its result's example axis and shape."""
    walk = Walk(SIZE, ())
    x = walk.tensor((None, 3, 4), "float32")
    with walk._hooks():
        result = function(x)
    return walk, walk.place(result), walk.shape(result)


def numbers():
    """Yields pairs of batches that differ only in their third example."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(BATCH, 3, 4)).astype("f4")
    for replaced in (rng.normal(size=(3, 4)), 0.0, 100.0 * x[2], np.nan):
        other = x.copy()
        other[2] = replaced
        yield x, other


def assert_no_other_moves(function):
    _, place, shape = walked(function)
    assert place is not None
    for x, other in numbers():
        try:
            results = [drawn_alike(function, t) for t in (x, other)]
        except (tf.errors.InvalidArgumentError, ValueError):
            assert np.isnan(other).any()
            continue
        sizes = [
            n // SIZE * BATCH if i == place.axis else n for i, n in enumerate(shape)
        ]
        assert list(results[0].shape) == sizes
        one, two = (
            np.moveaxis(t, place.axis, 0).reshape(BATCH, place.inner, -1)
            for t in results
        )
        others = np.arange(BATCH) != 2
        np.testing.assert_array_equal(one[others], two[others])


@pytest.mark.parametrize("name", CASES)
def test_an_operation_moves_no_other_example(name):
    assert_no_other_moves(CASES[name])


# Operations that `CASES` calls with specific arguments. Every other operation is called
# with the first two argument patterns of `WAYS` that work; at least one must work.
SPECIAL = {kind for name in CASES for kind, *_ in walked(CASES[name])[0].log}
OTHERS = [kind for kind in OPERATIONS if kind.__name__ not in SPECIAL]


@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: kind.__name__)
def test_an_entry_of_the_table_moves_no_other_example(kind):
    tried = 0
    for way in WAYS:
        function = way(kind)
        try:
            walked(function)
            function(tf.constant(next(numbers())[0]))
        except Exception:
            continue
        assert_no_other_moves(function)
        tried += 1
        if tried == 2:
            return
    assert tried


MIXING = {
    "mean": lambda x: x - ops.mean(x, axis=0),
    "mean of all": lambda x: x - ops.mean(x),
    "softmax": lambda x: ops.softmax(x[:, 0, 0]),
    "flip": lambda x: ops.flip(x),
    "roll": lambda x: ops.roll(x, 1),
    "reshape": lambda x: ops.reshape(x, (3, -1, 4)),
    "merged the other way": lambda x: ops.reshape(
        ops.reshape(ops.transpose(x, (1, 0, 2)), (-1, 4)), (-1, 3, 4)
    ),
    "transposed": lambda x: x[:, 0] @ ops.transpose(x[:, 0]),
    "einsum": lambda x: ops.einsum("bij,cij->bc", x, x),
    "einsum over examples": lambda x: ops.einsum("bij,bij->ij", x, x),
    "tensordot": lambda x: ops.tensordot(x, x, axes=[[0], [0]]),
    "pairs": lambda x: x[:, None] - x[None],
    "first": lambda x: x - x[0],
    "reversed": lambda x: x[::-1],
    "take": lambda x: ops.take(x, [0], axis=0),
    "taken by others": lambda x: ops.take(x, whole(x)[:, 0, 0], axis=1),
    "numbered": lambda x: (
        x * ops.arange(ops.shape(x)[0], dtype="float32")[:, None, None]
    ),
    "drawn alike": lambda x: x * random.normal(ops.shape(x), seed=1),
    "dropped alike": lambda x: random.dropout(x, 0.5, seed=1),
    "eye": lambda x: ops.eye(ops.shape(x)[0]) @ x[:, 0],
    "map that sees others": lambda x: ops.map(lambda row: row[0, 0] * x, x),
    "scan over examples": lambda x: ops.scan(lambda c, t: (c + t, c), x[0] * 0, x)[0],
    "repeated and tiled": lambda x: ops.tile(x, (2, 1, 1)) * ops.repeat(x, 2, axis=0),
    "pool": lambda x: ops.max_pool(ops.transpose(x, (1, 0, 2)), 2, 1),
    "top_k": lambda x: ops.top_k(x[:, 0, 0], 2)[0],
    "image": lambda x: ops.image.resize(x, (4, 4)),
    "padded": lambda x: ops.pad(ops.transpose(x, (1, 0, 2)), 1),
    # Operations that are not known to be safe, whether or not they mix examples.
    "segments": lambda x: ops.segment_sum(x, whole(x)[:, 0, 0], 3),
    "classes of a vector": lambda x: ops.multi_hot(whole(x)[:, 0, 0], 5),
    "cross-entropy": lambda x: ops.categorical_crossentropy(x, ops.softmax(x), axis=0),
    "weights of an average": lambda x: ops.average(x, axis=1, weights=x),
    "branch": lambda x: ops.cond(ops.array(True), lambda: x, lambda: 2 * x),
}


@pytest.mark.parametrize("name", MIXING)
def test_operations_that_mix_examples_or_are_not_known_are_not_opened(name):
    with pytest.raises((Mixes, CannotOpen)):
        walked(MIXING[name])
