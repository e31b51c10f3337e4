"""Arithmetic of float64 tensors, and of pairs of float32 where a device has no float64.

A pair is the unevaluated sum `high + low` (Dekker, 1971, "A floating-point technique for
extending the available precision"); sums have errors of 2^-46 of their terms, products of
2^-33. Numbers are cut such that the larger part of a product is exact: so it makes no
difference whether a compiler contracts it and the sum that follows to one operation. XLA
does not reassociate sums.

Whoever writes `matmul`, `plus` and `times` of this module, and moves entries by `moved`,
computes in the one as in the other.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple, Union

import tensorflow as tf


class Pair(NamedTuple):
    """`high + low`, float32 tensors of one shape; `low` is at most half a last bit."""

    high: tf.Tensor
    low: tf.Tensor


Numbers = Union[tf.Tensor, Pair]


def as_pair(x: tf.Tensor) -> Pair:
    """Of float64, with a relative error of 2^-48."""
    high = tf.cast(x, tf.float32)
    return Pair(high, tf.cast(x - tf.cast(high, tf.float64), tf.float32))


def as_float64(x: Pair) -> tf.Tensor:
    """The sum of the two."""
    return tf.cast(x.high, tf.float64) + tf.cast(x.low, tf.float64)


def moved(function: Callable[..., Any], *numbers: Numbers) -> Any:
    """`function`, which moves entries, repeats or negates them, or puts in zeros."""
    if isinstance(numbers[0], Pair):
        return Pair(*(function(*parts) for parts in zip(*numbers)))
    return function(*numbers)


def appended(x: Numbers, exact: tf.Tensor) -> Numbers:
    """`x` and after it, along the first axis, numbers that float32 has."""
    if isinstance(x, Pair):
        high = tf.concat([x.high, tf.cast(exact, tf.float32)], axis=0)
        return Pair(high, tf.concat([x.low, tf.zeros(exact.shape)], axis=0))
    return tf.concat([x, tf.cast(exact, x.dtype)], axis=0)


def shape(x: Numbers) -> tf.TensorShape:
    """The static shape."""
    return x.high.shape if isinstance(x, Pair) else x.shape


def plus(a: Numbers, b: Numbers) -> Numbers:
    """Entry by entry; shapes broadcast."""
    if isinstance(a, Pair):
        total, rest = _two_sum(a.high, b.high)
        return _normalized(total, rest + (a.low + b.low))
    return a + b


def times(a: Numbers, b: Numbers) -> Numbers:
    """Entry by entry; shapes broadcast."""
    if not isinstance(a, Pair):
        return a * b
    return _normalized(*_product(_cut(a), _cut(b)))


def matmul(
    a: Numbers, b: Numbers, transpose_a: bool = False, transpose_b: bool = False
) -> Numbers:
    """Products of matrices [..., rows, inner] and [..., inner, columns]."""
    if not isinstance(a, Pair):
        return tf.matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b)
    # The sum is over the first axis: one slice of each a step.
    left = [_inner_first(x, not transpose_a)[..., :, None] for x in _cut(a)]
    right = [_inner_first(x, transpose_b)[..., None, :] for x in _cut(b)]

    def of_step(k: tf.Tensor | int) -> tuple[tf.Tensor, tf.Tensor]:
        return _product([x[k] for x in left], [x[k] for x in right])

    def add(
        k: tf.Tensor, high: tf.Tensor, low: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        more, rest = of_step(k)
        high, error = _two_sum(high, more)
        return k + 1, high, low + (error + rest)

    count = left[0].shape[0]
    _, high, low = tf.while_loop(
        lambda k, *_: k < count, add, (1, *of_step(0)), maximum_iterations=count - 1
    )
    return _normalized(high, low)


def sums(x: Numbers) -> Numbers:
    """Over the last axis."""
    if not isinstance(x, Pair):
        return tf.reduce_sum(x, axis=-1)
    while (count := x.high.shape[-1]) > 1:
        half = (count + 1) // 2
        x = plus(*_folded(x, half, 2 * half - count))
    return moved(lambda y: y[..., 0], x)


def _folded(x: Pair, half: int, missing: int) -> tuple[Pair, Pair]:
    """The first `half` entries of the last axis and the rest, with zeros if missing."""
    padding = [[0, 0]] * (len(x.high.shape) - 1) + [[0, missing]]
    return (
        Pair(*(y[..., :half] for y in x)),
        Pair(*(tf.pad(y[..., half:], padding) for y in x)),
    )


def triangular_inverse(lower: Numbers) -> Numbers:
    """Of lower triangular matrices [N, T, T]."""
    size = shape(lower)[-1]
    if not isinstance(lower, Pair):
        eye = tf.eye(size, batch_shape=[shape(lower)[0]], dtype=lower.dtype)
        return tf.linalg.triangular_solve(lower, eye, lower=True)
    eye = tf.eye(size, batch_shape=[shape(lower)[0]])
    start = tf.linalg.triangular_solve(lower.high, eye, lower=True)
    found = Pair(start, tf.zeros_like(start))
    # Newton's method: each step squares the error.
    for _ in range(2):
        product = moved(tf.negative, matmul(lower, found))
        residual = plus(Pair(eye, tf.zeros_like(eye)), product)
        found = plus(found, matmul(found, residual))
    return found


def _two_sum(a: tf.Tensor, b: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """The rounded sum and its rounding error, exactly (Knuth)."""
    total = a + b
    second = total - a
    return total, (a - (total - second)) + (b - second)


def _normalized(high: tf.Tensor, low: tf.Tensor) -> Pair:
    total = high + low
    return Pair(total, low - (total - high))


def _cut(x: Pair) -> list[tf.Tensor]:
    """Two numbers of twelve bits whose sum is `x.high`, and `x.low`."""
    mask = tf.constant(-(1 << 12), tf.int32)
    bits = tf.bitwise.bitwise_and(tf.bitcast(x.high, tf.int32), mask)
    first = tf.bitcast(bits, tf.float32)
    return [first, x.high - first, x.low]


def _product(a: list[tf.Tensor], b: list[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """An exact product, and the rest: below 2^-11 of it, with an error of 2^-33."""
    rest = (a[0] + a[1]) * b[2] + a[2] * (b[0] + b[1])
    return a[0] * b[0], (a[0] * b[1] + a[1] * b[0]) + (a[1] * b[1] + rest)


def _inner_first(x: tf.Tensor, is_last: bool) -> tf.Tensor:
    axes = list(range(len(x.shape)))
    inner = axes.pop(-1 if is_last else -2)
    return tf.transpose(x, [inner, *axes])
