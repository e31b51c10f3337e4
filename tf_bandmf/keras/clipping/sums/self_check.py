"""A numerical check of clipping, for rules and layers that cannot be proved correct.

Training runs this check for models with registered rules, or with layers for which the
user vouched. It uses made-up examples, because a refusal must not depend on any record.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_bandmf.keras.clipping.forward.tapped_layers import find_units
from tf_bandmf.keras.clipping.independence.registration import vouched_classes
from tf_bandmf.keras.clipping.losses.compiled import compiled_loss
from tf_bandmf.keras.clipping.sums.clipped_sums import clipped_gradient_sums
from tf_bandmf.keras.clipping.tensors import batches
from tf_bandmf.keras.clipping.tensors.errors import ClippingMismatchError
from tf_bandmf.keras.clipping.tensors.made_up import made_up
from tf_bandmf.keras.compat import fixed_draws
from tf_bandmf.keras.compat.keras_objects import all_layers, tensorflow_value
from tf_bandmf.keras.compat.recurrent import run_model
from tf_bandmf.keras.compat.replicas import unscaled_losses

# Relative tolerances by dtype: bfloat16 has 8 bits of precision, float16 has 11.
_TOLERANCES = {"bfloat16": 3e-2, "float16": 1e-2}
# Each entry is one random draw of all weights. True: values of both signs, so that a
# `relu`, for example, becomes active. False: positive values, as variances need.
_DRAWS = (True, True, False)
_EXAMPLES = 4
# A clip norm that is larger than the norm of any gradient.
_NO_CLIP = 1e30


def needs_self_check(model: keras.Model) -> bool:
    """Returns whether the user vouched for, or gave a rule for, any of the layers."""
    if vouched_classes(model):
        return True
    units = find_units(model, model.trainable_variables)
    modules = [type(unit.rule).__module__ for unit in units]
    return not all(module.startswith("tf_bandmf.") for module in modules)


def self_check(
    model: keras.Model,
    x: Any,
    y: Any,
    sample_weight: Any = None,
    *,
    loss_scale_factor: float | None = None,
) -> None:
    """Compares the clipped gradients of a batch with gradients of single examples.

    The gradients of single examples are computed by `tf.GradientTape`. All weights and
    state variables are drawn at random several times, because an input that does not
    affect the gradients at the current weights may affect them at other weights. Random
    layers are deterministic during the check, and the model is left unchanged.

    Args:
      model: a built and compiled model.
      x: inputs, [B, ...]. Only their shapes and dtypes matter: the check makes up its
        examples.
      y: targets, likewise.
      sample_weight: None, or likewise.
      loss_scale_factor: as for `clipped_gradient_sums`.

    Raises:
      ClippingMismatchError: if the gradients differ; the message names likely causes.
      UnsupportedModelError: if the model is refused outright.
    """
    data = made_up((x, y, sample_weight), _EXAMPLES)
    rtol = max(
        _TOLERANCES.get(layer.compute_dtype, 1e-3) for layer in all_layers(model)
    )
    alone = _gradients_alone(model, loss_scale_factor or 1.0)

    @functools.partial(tf.function, autograph=False)
    def together(batch: Any) -> Any:
        return clipped_gradient_sums(
            model, *batch, l2_norm_clip=_NO_CLIP, loss_scale_factor=loss_scale_factor
        )

    rng, is_compared = np.random.default_rng(0), False
    before = [(state, np.array(state.numpy())) for state in model.variables]
    try:
        with fixed_draws.without_randomness():
            for has_both_signs in _DRAWS:
                for state, old in before:
                    if state.dtype.startswith(("float", "bfloat")):
                        values = _drawn(rng, old, has_both_signs)
                        state.assign(tf.cast(values, state.dtype))
                each = np.stack([alone(one) for one in batches.single_examples(data)])
                _compare(model, together(data), each, rtol)
                is_compared |= bool(np.any(np.isfinite(each) & (each != 0.0)))
    finally:
        for state, old in before:
            state.assign(old)
    if not is_compared:
        warnings.warn(
            f"The gradients of model {model.name!r} were not compared with those of "
            f"single examples, because no made-up example has a finite, nonzero "
            f"gradient. The analysis of its layers does not depend on this comparison.",
            stacklevel=2,
        )


def _compare(model: keras.Model, clipped: Any, each: Any, rtol: float) -> None:
    """Compares the norms and sums in `clipped` with the rows of `each`.

    Each row is the gradient of a single example; rows that are not finite are ignored.

    Raises:
      ClippingMismatchError: if norms or sums differ.
    """
    counts = np.all(np.isfinite(each), axis=1)
    norms, lengths = clipped.norms.numpy()[counts], np.linalg.norm(each[counts], axis=1)
    # The sum may be close to 0, so its error is relative to the norms of the gradients.
    size = np.linalg.norm(lengths)
    differences = _flat(clipped.sums).numpy() - each[counts].sum(axis=0)
    are_close = np.abs(norms - lengths) <= rtol * lengths + 1e-6
    if np.all(are_close) and np.linalg.norm(differences) <= rtol * size + 1e-6:
        return
    variables = model.trainable_variables
    ends = np.cumsum([math.prod(variable.shape) for variable in variables])
    errors = [np.linalg.norm(part) for part in np.split(differences, ends[:-1])]
    worst = variables[int(np.argmax(errors))]
    raise ClippingMismatchError(
        f"The same examples have different gradients in a batch and one at a time. The "
        f"error is largest for weight {worst.path!r}: {max(errors):.3g} (norm of all "
        f"gradients: {size:.3g}). Norms in batch: {norms}; alone: {lengths}. {_CAUSES}"
    )


_CAUSES = (
    "Likely causes: a registered rule that is wrong, a layer that mixes examples of a "
    "batch and was vouched for with `register_per_example_layer`, random numbers that "
    "do not come from `keras.random` (use a `keras.random.SeedGenerator`), or a layer "
    "with a custom gradient. To find the cause, remove custom layers one by one."
)


def _gradients_alone(model: keras.Model, scale: float) -> Callable[[Any], Any]:
    """Returns a function that computes the flattened gradient of a batch of one.

    The gradient is NaN if the loss is not finite: such an example adds nothing to the
    sum, so there is nothing to compare.
    """
    variables = [tensorflow_value(v) for v in model.trainable_variables]
    loss = compiled_loss(model)

    @functools.partial(tf.function, autograph=False)
    def alone(x: Any, y: Any, weight: Any) -> tf.Tensor:
        with tf.GradientTape() as tape, unscaled_losses():
            tape.watch(variables)
            value = tf.reduce_sum(loss(y, run_model(model, x), weight))
            scaled = scale * value
        gradients = tape.gradient(scaled, variables, unconnected_gradients="zero")
        factor = tf.where(tf.math.is_finite(value), 1.0 / scale, math.nan)
        return _flat(gradients) * tf.cast(factor, tf.float64)

    return lambda example: alone(*example).numpy()


def _flat(gradients: Sequence[Any]) -> tf.Tensor:
    """Concatenates the gradients of all variables into one float64 vector."""
    dense = map(tf.convert_to_tensor, gradients)
    return tf.concat([tf.cast(tf.reshape(g, [-1]), tf.float64) for g in dense], axis=0)


def _drawn(rng: np.random.Generator, old: Any, has_both_signs: bool) -> Any:
    """Draws nonzero random values in the shape of `old`.

    They are about as large as the root mean square of `old`, or about 0.1 if this is 0
    or not finite.
    """
    size = float(np.sqrt(np.mean(np.square(old.astype(np.float64)))))
    values = rng.uniform(0.2, 1.2, old.shape)
    if has_both_signs:
        values *= rng.choice([-1.0, 1.0], old.shape)
    return values * (size if math.isfinite(size) and size else 0.1)
