"""Scale-then-privatize: clips gradients and adds noise in scaled coordinates.

Adam divides each coordinate of a gradient by the root of its second moment v. Without
scaling, the noise is equally large in all coordinates, so it hides coordinates with
small gradients. Scale-then-privatize (Ganesh, McMahan and Thakurta, 2025,
arXiv:2507.01129) multiplies the gradient g of each example by s, about 1 / sqrt(v),
clips it, adds the noise, and divides the noisy mean by s. At step t:

    scaled_t = sum over examples of clip(s_t * g)
    noisy_t  = (scaled_t + noise_stddev (C^-1 Z)_t) / (expected_batch_size s_t)

`clip` limits the norm of each example's scaled gradient to the clip norm; C is the
strategy matrix, and Z consists of independent standard normals. s_t is computed from
the optimizer's v, which depends only on the noisy gradients before step t. So scaled_t
is an adaptive query: it depends on earlier releases, but its sensitivity is the same at
every step. With Gaussian noise, adaptive queries are as private as fixed ones (Denisov
et al., 2022, arXiv:2202.08312, theorem 2.1), and dividing by s_t is post-processing.

In scaled coordinates, the correlated noise of different steps cancels. After the
division by s_t, it cancels less exactly, because s_t changes slowly from step to step.
But Adam multiplies the noisy gradients by about s_t again, so the noise still cancels
in the updates of the weights.
"""

from __future__ import annotations

import keras
import tensorflow as tf

from tf_bandmf.keras.compat.keras_objects import second_moments

# The constant f of `scales_of`, which limits each scale to 1 + 1 / f.
_FLOOR = 0.1
_OPTIMIZERS = (
    keras.optimizers.Adam,
    keras.optimizers.AdamW,
    keras.optimizers.Nadam,
    keras.optimizers.RMSprop,
)


def check_scaling(inner: keras.optimizers.Optimizer) -> None:
    """Raises ValueError if an optimizer has no second moments."""
    if not isinstance(inner, _OPTIMIZERS):
        names = ", ".join(kind.__name__ for kind in _OPTIMIZERS)
        raise ValueError(
            f"scaling='second_moment' needs an inner optimizer with second moments, "
            f"found {type(inner).__name__}. Use one of {names}; or omit scaling."
        )


def scales_of(inner: keras.optimizers.Optimizer) -> list[tf.Tensor]:
    """Returns the scales of the next step, computed only from released noisy gradients.

        s = (1 + f) r / (sqrt(v) + f r),   r = root mean square of all sqrt(v), f = 0.1

    Here s are the scales, and v are the second moments of the inner optimizer. A
    constant factor of v has no effect on s, so Adam's bias correction is not needed. If
    a gradient is as large as sqrt(v), scaling hardly changes its norm, so the same clip
    norm fits with and without scales. While all of v is zero, as before the first step,
    the scales are 1. If a moment is negative, infinite or NaN, scales are NaN, and no
    example contributes.

    Args:
      inner: an optimizer that `check_scaling` accepts, built.

    Returns:
      Float32 tensors in the shapes of the variables, with values in (0, 1 + 1 / f] if
      all moments are finite and not negative.
    """
    variables = second_moments(inner)
    moments = [tf.cast(variable.value, tf.float32) for variable in variables]
    count = sum(moment.shape.num_elements() for moment in moments)
    sums = [tf.cast(tf.reduce_sum(moment), tf.float64) for moment in moments]
    root = tf.cast(tf.sqrt(tf.add_n(sums) / count), tf.float32)
    return [
        tf.where(
            tf.equal(root, 0.0),
            1.0,
            (1.0 + _FLOOR) * root / (tf.sqrt(moment) + _FLOOR * root),
        )
        for moment in moments
    ]
