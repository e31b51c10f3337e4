"""Clips updates, replaces excluded updates with zeros, and adds noise to the sum."""

from __future__ import annotations

import collections
from typing import Any

import tensorflow as tf

from tf_bandmf import MinSep
from tf_bandmf.accounting.gaussian import grid_of
from tf_bandmf_federated.clipping import ROOM
from tf_bandmf_federated.eligibility import NEVER, contradicts_itself, may_take_part


def is_early(
    tags: collections.OrderedDict, round_number: tf.Tensor, participation: MinSep
) -> tf.Tensor:
    """Returns True if the plan does not permit a device to take part in this round.

    Args:
      tags: `last_round` and `participations`, int32 scalars.
      round_number: int64 scalar, from the server.
      participation: the plan's participation.

    Returns:
      bool scalar. It is also True if the last round is this round or a later one, and
      for tags that are impossible, such as a last round of -5.
    """
    last, count = tf.cast(tags["last_round"], tf.int64), tags["participations"]
    b, k = participation.min_separation, participation.max_participations
    may = may_take_part(last, count, round_number, b, k)
    return contradicts_itself(last, count) | ~may


def check_round(tags: collections.OrderedDict, round_number: tf.Tensor) -> tf.Operation:
    """Returns an assertion that a client's data are tagged for this round.

    A program that reuses tags may pass an outdated participation record. The separation
    would then not be enforced.

    Raises:
      InvalidArgumentError: at run time, if the data are tagged for another round.
    """
    same = tf.equal(tf.cast(tags["round"], tf.int64), round_number)
    message = (
        "The data must be tagged for the round of the state. Tag them again for every "
        "round, with process.round_number(state) and a record that includes the last "
        "participation. Round of the tags, and round of the state:"
    )
    absent = tags["round"] <= NEVER
    return tf.debugging.Assert(absent | same, [message, tags["round"], round_number])


def bounded_record(
    update: Any,
    l2_norm_clip: float,
    finite: tf.Tensor | bool = True,
    admitted: tf.Tensor | bool = True,
) -> tuple[Any, collections.OrderedDict]:
    """Returns the clipped update, and int32 indicators (0 or 1) for the metrics.

    The clipped update is `update * min(1, l2_norm_clip / norm)`, or exact zeros if the
    client is not admitted, or if a value or the norm is not finite.

    Args:
      update: nested structure of float32 tensors.
      l2_norm_clip: zeta, the clip norm.
      finite: bool scalar; False if the update was not finite and TFF replaced it.
      admitted: bool scalar; False if the plan does not permit the client to take part.
    """
    # Compute the norm in float64, so that rounding does not make it too small.
    norm = tf.linalg.global_norm(
        [tf.cast(leaf, tf.float64) for leaf in tf.nest.flatten(update)]
    )
    # If any value is NaN or infinite, the norm is not finite either.
    finite = tf.math.is_finite(norm) & finite
    contributes = admitted & finite
    is_clipped = norm > l2_norm_clip
    # The margin 1 - ROOM exceeds the rounding errors of the factor and of the products.
    factor = tf.where(is_clipped, l2_norm_clip * ROOM / norm, 1.0)
    factor = tf.cast(tf.where(contributes, factor, 0.0), tf.float32)
    # With a factor of 0, the product is 0 even if the value is NaN.
    record = tf.nest.map_structure(
        lambda leaf: tf.math.multiply_no_nan(leaf, factor), update
    )
    flags = collections.OrderedDict(
        contributing_clients=contributes,
        non_finite_clients=admitted & ~finite,
        clipped_clients=contributes & is_clipped,
    )
    return record, collections.OrderedDict(
        (name, tf.cast(flag, tf.int32)) for name, flag in flags.items()
    )


def flat(total: Any) -> tf.Tensor:
    """Flattens a nested structure of float32 tensors to one vector, in `tf.nest` order."""
    return tf.concat([tf.reshape(leaf, [-1]) for leaf in tf.nest.flatten(total)], 0)


def add_noise(total: Any, noise: tf.Tensor, stddev: float, denominator: float) -> Any:
    """Returns the noisy mean, `(total + stddev * noise) / denominator`, rounded.

    The mean is rounded to multiples of `grid_of(stddev / denominator)`, a power of two
    that is at most 2^-10 times the standard deviation of the mean's noise.

    Args:
      total: nested structure of float32 tensors with static shapes.
      noise: float32, one vector for all tensors of `total`, in the order of
        `tf.nest.flatten`.
      stddev: factor by which `noise` is multiplied before it is added.
      denominator: a public constant.
    """
    leaves = tf.nest.flatten(total)
    sizes = [leaf.shape.num_elements() for leaf in leaves]
    parts = tf.split(noise, sizes)
    means = [
        (leaf + stddev * tf.reshape(part, leaf.shape)) / denominator
        for leaf, part in zip(leaves, parts)
    ]
    # `grid` is a power of two, so dividing a float32 by it is exact.
    grid = grid_of(stddev / denominator)
    noisy = [tf.round(mean / grid) * grid for mean in means]
    return tf.nest.pack_sequence_as(total, noisy)
