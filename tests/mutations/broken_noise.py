"""Broken: which noise is added."""

import mechanism_checks as checks
import numpy as np
import tensorflow as tf
from mutation import broken

from tf_bandmf.keras.run.secrets import SecretState
from tf_bandmf.noise import box_muller, generator, normals, recurrences
from tf_bandmf.noise.keys import NoiseKey

# Which noise.


@broken(
    "Noise used again after a restart",
    checks.white,
    "bsr:4",
    restart_at=5,
    says="whiteness",
    invariants=(8, 11),
)
def restart_reuses_noise(patch):
    begin = SecretState.__init__

    def restart(state, generator, key, plan, step=0, **rest):
        begin(state, generator, key, plan, step, **rest)
        state._step_keys = np.roll(state._step_keys, step, axis=0)

    patch.setattr(SecretState, "__init__", restart)


@broken(
    "One key for two variables",
    checks.white_generator,
    "identity",
    says="whiteness",
    invariants=(8,),
    is_fast=True,
)
def one_key_for_variables(patch):
    weighted = generator.weighted_normals

    def halves(keys, weights, size, *rest, **named):
        half = weighted(keys, weights, -(-size // 2), *rest, **named)
        return tf.concat([half, half], axis=0)[:size]

    patch.setattr(generator, "weighted_normals", halves)


@broken(
    "One key for all steps",
    checks.white_generator,
    "identity",
    says="whiteness",
    invariants=(8,),
    is_fast=True,
)
def one_key_for_steps(patch):
    keys = NoiseKey.step_keys

    def repeated(key, count, *generator):
        return np.repeat(keys(key, 1, *generator), count, 0)

    patch.setattr(NoiseKey, "step_keys", repeated)


@broken(
    "Lambda times the noise of two steps ago",
    checks.white_generator,
    "lambda_cgd",
    says="whiteness",
    invariants=(9,),
    is_fast=True,
)
def lambda_off_by_one(patch):
    row = recurrences.Regeneration.row

    def late(recurrence, normals_of, buffer, step):
        def earlier(steps, weights):
            moved = tf.where(steps < step, tf.maximum(steps - 1, 0), steps)
            return normals_of(moved, weights)

        return row(recurrence, earlier, buffer, step)

    patch.setattr(recurrences.Regeneration, "row", late)


@broken(
    "Bands in the wrong order",
    checks.white_generator,
    "bsr:4",
    says="whiteness",
    invariants=(9,),
    is_fast=True,
)
def bands_in_wrong_order(patch):
    at = recurrences._Rows.at

    def reversed_bands(rows, step):
        row = at(rows, step)
        return tf.concat([row[:1], row[1:][::-1]], axis=0)

    patch.setattr(recurrences._Rows, "at", reversed_bands)


@broken(
    "A ring buffer of another run",
    checks.white,
    "blt:2",
    says="whiteness",
    invariants=(8,),
)
def buffer_not_reset(patch):
    begin = SecretState.__init__

    def dirty(state, *arguments, **rest):
        begin(state, *arguments, **rest)
        state._buffer.assign(tf.ones_like(state._buffer))

    patch.setattr(SecretState, "__init__", dirty)


@broken(
    "A ring buffer that is never written",
    checks.white_generator,
    "bsr:4",
    says="whiteness",
    invariants=(9,),
)
def buffer_not_written(patch):
    row = recurrences.RingBuffer.row

    def stale(recurrence, normals_of, buffer, step):
        output, (update,) = row(recurrence, normals_of, buffer, step)
        return output, (tf.IndexedSlices(0.0 * update.values, update.indices),)

    patch.setattr(recurrences.RingBuffer, "row", stale)


@broken(
    "Column norms forgotten in the noise",
    checks.white_generator,
    "bsr:4:normalized",
    says="whiteness",
    invariants=(3, 9),
)
def column_norms_forgotten(patch):
    def unscaled(recurrence, normals_of, buffer, step):
        return recurrence._inner.row(normals_of, buffer, step)

    patch.setattr(recurrences.ScaledOutput, "row", unscaled)


@broken(
    "A replica that takes another's part of the noise",
    checks.white_generator,
    "identity",
    num_shards=2,
    says="whiteness",
    invariants=(8,),
    is_fast=True,
)
def anothers_part(patch):
    row = generator.NoiseGenerator.row

    def first_part(self, keys, buffer, step, shard=0):
        return row(self, keys, buffer, step, 0)

    patch.setattr(generator.NoiseGenerator, "row", first_part)


@broken(
    "Two normals that share their radius",
    checks.white_generator,
    "identity",
    says="whiteness",
    invariants=(8,),
)
def shared_radius(patch):
    def pairs(words, shared):
        first, second, third, angle = words
        length = tf.sqrt(box_muller.squared_radius(first, second, third, shared))
        cosine, _ = box_muller.cosine_and_sine(angle)
        return length * cosine, -length * cosine

    patch.setattr(normals, "box_muller", pairs)


@broken(
    "Noise that is uniform",
    checks.white_generator,
    "identity",
    says="whiteness",
    invariants=(8,),
)
def uniform_noise(patch):
    def pairs(words, shared):
        first, second, _, _ = words
        scale = np.sqrt(3.0) * 2.0**-31
        return tuple(tf.cast(w, tf.float32) * scale for w in (first, second))

    patch.setattr(normals, "box_muller", pairs)
