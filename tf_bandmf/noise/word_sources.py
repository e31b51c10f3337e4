"""The counter-based generators of random words that noise can be made of.

The key of a step says by its length which one is meant: noise of one generator cannot be
continued with another.
"""

from __future__ import annotations

import dataclasses
from typing import Callable

import tensorflow as tf

from tf_bandmf.noise.chacha import chacha20, chacha20_blocks
from tf_bandmf.noise.philox import philox

_PHILOX = 1  # tf.random.Algorithm.PHILOX, never "auto_select"
Words = tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class WordSource:
    """Four random words for each key of a step and each counter.

    Attributes:
      key_words: uint64 numbers of a step's key.
      four: uint32 words of a key, shape [key_words], and counters, uint64, any shape; for
        XLA.
      many: words of a key and so many counters from one on; int32, shape [num_counters,
        4]. The same words, faster where XLA is missing.
      of_many_operations: too many of TensorFlow for a few words: XLA shall make them, too.
    """

    key_words: int
    four: Callable[[tf.Tensor, tf.Tensor], Words]
    many: Callable[[tf.Tensor, tf.Tensor, int], tf.Tensor]
    of_many_operations: bool


def source_of(step_keys: tf.Tensor) -> WordSource:
    """By the length of the keys, of static shape [..., key_words]."""
    return _BY_KEY_WORDS[int(step_keys.shape[-1])]


def _many_philox(
    step_key: tf.Tensor, counter: tf.Tensor, num_counters: int
) -> tf.Tensor:
    return tf.raw_ops.StatelessRandomUniformFullIntV2(
        shape=[num_counters, 4],
        key=step_key[:1],
        counter=tf.stack([counter, step_key[1]]),
        alg=_PHILOX,
        dtype=tf.int32,
    )


def _many_chacha20(
    step_key: tf.Tensor, counter: tf.Tensor, num_counters: int
) -> tf.Tensor:
    first = tf.bitwise.right_shift(counter, tf.constant(2, tf.uint64))
    # One more, for the counter may be within a block.
    numbers = first + tf.cast(tf.range(-(-num_counters // 4) + 1), tf.uint64)
    words = tf.stack(chacha20_blocks(step_key, numbers), axis=-1)
    skipped = tf.cast(tf.bitwise.bitwise_and(counter, 3), tf.int32)
    wanted = tf.slice(tf.reshape(words, [-1, 4]), [skipped, 0], [num_counters, 4])
    return tf.bitcast(wanted, tf.int32)


_PHILOX_SOURCE = WordSource(2, philox, _many_philox, False)
_CHACHA_SOURCE = WordSource(5, chacha20, _many_chacha20, True)
_BY_KEY_WORDS = {
    source.key_words: source for source in (_PHILOX_SOURCE, _CHACHA_SOURCE)
}
