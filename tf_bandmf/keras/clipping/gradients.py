"""Clipped gradient sums of a model: the entry point."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping import batching
from tf_bandmf.keras.clipping.checks import check_supported
from tf_bandmf.keras.clipping.data_errors import bad_values_become_nan
from tf_bandmf.keras.clipping.errors import UnsupportedModelError
from tf_bandmf.keras.clipping.factors import Factor, Measured, add_factors
from tf_bandmf.keras.clipping.forward import Forward
from tf_bandmf.keras.clipping.microbatches import in_groups
from tf_bandmf.keras.clipping.norms import clip_weights
from tf_bandmf.keras.clipping.precision import check_matmul_precision
from tf_bandmf.keras.clipping.step import proved_forward
from tf_bandmf.keras.clipping.variables import trainable_variables

# The norm of a clipped sum of B examples is below this times B times the clip norm,
# whatever the data: more is a programming error. Each contribution is within the clip
# norm by its bound, its terms add up to at most 256 times the clip norm, and a sum of n
# terms in float32 is wrong by at most n 2^-24 times that: by 7 B clip norms for n = 458,000
# one after the other, and by 1e-3 of them where kernels add in blocks (see `norms`).
SUM_MARGIN = 8.0


class ClippedGradients(NamedTuple):
    """Result of `clipped_gradient_sums` for a batch of B examples.

    Attributes:
        sums: Aligned with `model.trainable_variables`: the sum over examples of
            min(1, l2_norm_clip / bound) times the example's gradient; float32, in the
            variable's shape.
        norms: [B] float32, norms of the unclipped gradients over all variables, as
            measured. Clipping uses upper bounds of them, see `norms`.
        losses: [B] float32, each example's loss alone, sample weights included.
        outputs: The model's predictions, [B, ...], without gradients.
    """

    sums: list[tf.Tensor]
    norms: tf.Tensor
    losses: tf.Tensor
    outputs: Any


@tf.autograph.experimental.do_not_convert
def clipped_gradient_sums(
    model: keras.Model,
    x: Any,
    y: Any,
    sample_weight: Any = None,
    *,
    l2_norm_clip: float,
    microbatch_size: int | None = None,
    loss_scale_factor: float | None = None,
) -> ClippedGradients:
    """Sums the per-example gradients of a batch, each clipped to an l2 norm.

    One forward and one backward pass: nothing is computed twice. An example whose
    loss or norm is not finite, or that has a class or index that does not exist,
    contributes exactly zero. Noise is not added here, and weight regularizers are not
    part of it: see `regularization_gradients`.

    Whatever the data, an example's contribution is at most `l2_norm_clip` up to a
    relative error of 1e-3: rounding is bounded and added to the norm. For this it may
    be clipped to less: by below 1e-3 where terms do not cancel.

    Args:
        model: A built and compiled model.
        x: Inputs as the model takes them, tensors [B, ...].
        y: Targets as the compiled loss takes them, [B, ...].
        sample_weight: Optional weights [B] or [B, ...] as in `model.fit`.
        l2_norm_clip: Norm that every example's contribution is clipped to.
        microbatch_size: If given, examples are processed in groups of this size one
            after the other, which bounds memory; the result is the same.
        loss_scale_factor: A power of two by which losses are multiplied before the
            backward pass, and gradients divided before they are clipped, which is
            exact: small gradients of layers that compute in float16 are not lost. An
            example whose scaled gradient overflows contributes zero.

    Returns:
        Sums, norms, losses and predictions.

    Raises:
        UnsupportedModelError: If per-example gradients of the model are not defined
            or cannot be proved right.
        ValueError: If an argument is out of range.
        RuntimeError: If the process rounds float32 products: see `precision`.
    """
    check_matmul_precision()
    if not (math.isfinite(l2_norm_clip) and l2_norm_clip > 0):
        raise ValueError(
            f"`l2_norm_clip` must be positive and finite, found {l2_norm_clip}."
        )
    if microbatch_size is not None and microbatch_size < 1:
        raise ValueError(
            f"`microbatch_size` must be at least 1, found {microbatch_size}."
        )
    check_supported(model)
    scale = _checked_scale(model, loss_scale_factor)
    data = batching.to_tensors((x, y, sample_weight))
    static, size = batching.batch_size(data)
    if microbatch_size is not None and not (static and static <= microbatch_size):

        def group(part: Any, valid: tf.Tensor) -> tuple[list[tf.Tensor], Any]:
            clipped = _one_pass(model, part, valid, l2_norm_clip, scale)
            return clipped.sums, tuple(clipped[1:])

        sums, results = in_groups(group, data, size, microbatch_size)
        return ClippedGradients(sums, *results)
    if static:
        return _one_pass(model, data, tf.fill([static], True), l2_norm_clip, scale)
    # Not every layer takes a batch of zero examples; one that does not count does.
    rows = tf.maximum(size, 1)
    data = batching.pad_batch(data, rows - size)
    clipped = _one_pass(model, data, tf.range(rows) < size, l2_norm_clip, scale)

    def drop(tensor: tf.Tensor) -> tf.Tensor:
        return tensor[:size]

    results = (batching.map_tensors(drop, part) for part in clipped[1:])
    return ClippedGradients(clipped.sums, *results)


def is_loss_scale(value: Any) -> bool:
    """Whether multiplying by a number and dividing by it again is exact."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value) and value >= 1 and math.frexp(value)[0] == 0.5


def _checked_scale(model: keras.Model, loss_scale_factor: float | None) -> float:
    if loss_scale_factor is not None:
        if not is_loss_scale(loss_scale_factor):
            raise ValueError(
                f"`loss_scale_factor` must be a power of two >= 1, found "
                f"{loss_scale_factor!r}."
            )
        return float(loss_scale_factor)
    for layer in model._flatten_layers():
        if layer.compute_dtype == "float16":
            raise UnsupportedModelError(
                f"Layer {layer.name!r} ({type(layer).__name__}) computes in float16, "
                "where small gradients vanish: give `PrivateOptimizer` a static scale, "
                "such as `loss_scale_factor=1024`, or use the dtype policy "
                "`mixed_bfloat16`, which needs none."
            )
    return 1.0


def _one_pass(
    model: keras.Model,
    data: Any,
    valid: tf.Tensor,
    l2_norm_clip: float,
    scale: float,
) -> ClippedGradients:
    """Processes one group of examples.

    Args:
        model: The model.
        data: (x, y, sample_weight), tensors [B, ...] with B >= 1.
        valid: [B], False for examples that were padded and do not count.
        l2_norm_clip: The clipping norm.
        scale: Of the losses in the backward pass, a power of two.
    """

    def traced(data: Any, valid: tf.Tensor) -> ClippedGradients:
        return _pass_in_graph(model, data, valid, l2_norm_clip, scale)

    if tf.distribute.get_strategy().num_replicas_in_sync > 1:
        # Random generators of replicas do not work in inner functions.
        return traced(data, valid)
    # What is analysed is a graph of its own: what layers keep of it is of no use to
    # regularizers, constraints and metrics.
    return tf.function(traced, autograph=False)(data, valid)


def _pass_in_graph(
    model: keras.Model,
    data: Any,
    valid: tf.Tensor,
    l2_norm_clip: float,
    scale: float,
) -> ClippedGradients:
    variables = trainable_variables(model)
    with bad_values_become_nan(), proved_forward(model, variables, data) as forward:
        measured = _measure(variables, forward, scale, l2_norm_clip)
    found = [m.norms for m in measured if m is not None]
    norms = tf.sqrt(tf.add_n([n.squared for n in found])) / scale
    losses = tf.stop_gradient(tf.cast(forward.losses, tf.float32))
    bounds = tf.add_n([n.bounds for n in found]) / scale**2
    counts = tf.math.is_finite(bounds) & tf.math.is_finite(losses) & valid
    weights = tf.where(counts, clip_weights(bounds, l2_norm_clip), 0.0) / scale
    sums = _weighted_sums(variables, measured, weights, counts)
    outputs = batching.map_tensors(tf.stop_gradient, forward.y_pred)
    return ClippedGradients(sums, tf.cast(norms, tf.float32), losses, outputs)


def _measure(
    variables: list[Any], forward: Forward, scale: float, l2_norm_clip: float
) -> list[Measured | None]:
    """Returns measured per-example gradients for each variable, None if zero.

    They are those of the losses times `scale`.
    """
    calls = forward.recorder.calls
    gradients = forward.tape.gradient(
        forward.losses,
        [call.taps for _, call in calls],
        output_gradients=tf.fill(
            tf.shape(forward.losses), tf.cast(scale, forward.losses.dtype)
        ),
    )
    factors: dict[int, list[Factor]] = {}
    for (unit, call), upstream in zip(calls, gradients, strict=True):
        for key, factor in unit.rule.factors(call, _dense(upstream)).items():
            factors.setdefault(key, []).append(factor)
    measured: list[Measured | None] = []
    negligible = (l2_norm_clip * scale) ** 2
    for variable in variables:
        parts = factors.get(id(variable))
        measured.append(add_factors(parts).measure(negligible) if parts else None)
    if not any(measured):
        raise UnsupportedModelError(
            "The loss does not depend on any trainable weight of the model."
        )
    return measured


def _dense(gradients: list[Any]) -> list[tf.Tensor | None]:
    """Makes sparse gradients dense; None stays None.

    The gradient of something that gathers from its input (a loss with sparse labels,
    in a batch of unknown size) is sparse.
    """
    return [None if g is None else tf.convert_to_tensor(g) for g in gradients]


def _weighted_sums(
    variables: list[Any],
    measured: list[Measured | None],
    weights: tf.Tensor,
    counts: tf.Tensor,
) -> list[tf.Tensor]:
    """Sums per-example gradients with weights, without examples that do not count."""
    tensors = [list(m.tensors) if m is not None else [] for m in measured]

    # Zero times infinity is not zero: what does not count is replaced by zeros. That
    # is rare, so the copy is made only if needed.
    def cleaned() -> list[list[tf.Tensor]]:
        return [m.cleaned(counts) if m is not None else [] for m in measured]

    tensors = tf.cond(tf.reduce_all(counts), lambda: tensors, cleaned)
    sums = []
    for variable, found, group in zip(variables, measured, tensors, strict=True):
        shape = tuple(variable.shape)
        if found is None:
            sums.append(tf.zeros(shape, tf.float32))
        else:
            sums.append(tf.ensure_shape(found.weighted_sum(weights, group), shape))
    return sums
