"""Times the ways to form the gradients of a convolution's kernel, example by example.

    python benchmarks/convolutions.py --batches 16,128 --seconds 120

For each shape milliseconds of the gradient of the whole batch, and of those of the single
examples by each way of `tf_bandmf.keras.clipping.rules.convolution`: patches and one
matrix product for each example, TensorFlow's own operation for each example, and one such
operation with a group of channels for each. `chosen` is the way that training takes, and
`worse` how much longer than the fastest it took: the last line sums up the chosen ones,
and what each way alone would have taken.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import math
import time
from typing import Any

import keras
import tensorflow as tf
from keras_steps import in_turns

from tf_bandmf.keras.clipping.rules import convolution

WAYS = {
    "patches": convolution._from_patches,
    "one by one": convolution._one_by_one,
    "groups": convolution._in_groups,
}
SIDES = (4, 8, 16, 28, 32, 56)
CHANNELS = ((3, 16), (3, 64), (16, 16), (32, 32), (64, 64), (64, 128), (256, 256))
KERNELS = ((3, 1), (3, 2), (1, 1))  # size, strides
# Of all examples together: more takes too long here.
MOST_PRODUCTS = 4e9


def milliseconds(
    batch: int, side: int, channels: tuple[int, int], kernel: tuple[int, int]
) -> tuple[dict[str, float], str]:
    """Medians of seven runs in turns, and the way that is chosen."""
    (depth, filters), (size, strides) = channels, kernel
    layer = keras.layers.Conv2D(filters, size, strides=strides, padding="same")
    layer.build((None, side, side, depth))
    x = tf.random.normal([batch, side, side, depth])
    gradient = tf.random.normal(layer(x).shape)

    def whole(x: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.Conv2DBackpropFilter(
            input=x,
            filter_sizes=layer.kernel.shape,
            out_backprop=gradient,
            strides=[1, strides, strides, 1],
            padding="SAME",
        )

    def by(way: Any) -> Any:
        return lambda x, gradient: way(layer, x, gradient, [size, size], 1)

    ways = {"batch": whole, **{name: by(way) for name, way in WAYS.items()}}
    steps = {
        name: functools.partial(tf.function(way, autograph=False), x, gradient)
        for name, way in ways.items()
    }
    times = in_turns(steps, repeats=1, rounds=7)
    terms = math.prod(gradient.shape[1:-1])
    chosen = convolution._way_to_form(layer, terms, [size, size], 1)
    name = next(name for name, way in WAYS.items() if way is chosen)
    return {name: 1e3 * wall for name, (wall, _, _) in times.items()}, name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batches", default="16,128")
    parser.add_argument("--seconds", type=float, default=math.inf, help="then it stops")
    options = parser.parse_args()
    batches = [int(batch) for batch in options.batches.split(",")]
    print(f"{'batch':>5} {'side':>4} {'channels':>9} {'kernel':>6}", end="")
    print("".join(f"{name:>11}" for name in ("batch", *WAYS)), "   chosen, worse")
    totals = dict.fromkeys(("chosen", "batch", *WAYS), 0.0)
    end = time.monotonic() + options.seconds
    for batch, side, channels, kernel in itertools.product(
        batches, SIDES, CHANNELS, KERNELS
    ):
        size, strides = kernel
        products = (side / strides * size) ** 2 * math.prod(channels)
        if batch * products > MOST_PRODUCTS or time.monotonic() > end:
            continue
        found, chosen = milliseconds(batch, side, channels, kernel)
        worse = found[chosen] / min(found[name] for name in WAYS)
        for name, value in found.items():
            totals[name] += value
        totals["chosen"] += found[chosen]
        print(f"{batch:5} {side:4} {channels!s:>9} {size:4}/{strides}", end="")
        print("".join(f"{value:11.2f}" for value in found.values()), end="")
        print(f"   {chosen}, {worse:.2f}", flush=True)
    print({name: round(value, 1) for name, value in totals.items()})


if __name__ == "__main__":
    main()
