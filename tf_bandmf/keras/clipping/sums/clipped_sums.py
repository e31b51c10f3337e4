"""Computes the clipped gradient sums of a model: the entry point of clipping."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.factors.base import Factor, add_factors, cleaned
from tf_bandmf.keras.clipping.factors.norms import accelerator, pinned
from tf_bandmf.keras.clipping.factors.packing import Part, measured_parts
from tf_bandmf.keras.clipping.factors.precision import (
    check_functions_are_traced,
    check_matmul_precision,
)
from tf_bandmf.keras.clipping.forward.supported import check_supported
from tf_bandmf.keras.clipping.proof.judge import structure_of
from tf_bandmf.keras.clipping.proof.proved_forward import Forward, proved_forward
from tf_bandmf.keras.clipping.sums.settings import FLAT, Clip, Clipping, how_to_clip
from tf_bandmf.keras.clipping.tensors import batches
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.clipping.tensors.microbatches import in_groups
from tf_bandmf.keras.clipping.tensors.multi_row import UnitRows
from tf_bandmf.keras.clipping.tensors.table_readers import (
    TableReader,
    read_by,
    reader_of,
)

# The norm of a clipped sum of B examples is below this times B times the clip norm,
# whatever the data: more is a programming error. Each contribution is within the clip
# norm by its bound, its terms add up to at most 256 times the clip norm, and a sum of n
# terms in float32 is wrong by at most n 2^-24 times that: by 7 B clip norms for n = 458,000
# one after the other, and by 1e-3 of them where kernels add in blocks (see `norms`).
SUM_MARGIN = 8.0
# What became of an example: "used" stands for all others, and for rows that pad a batch.
OUTCOMES = ("used", "clipped", "zero", "bad")


class ClippedGradients(NamedTuple):
    """Result of `clipped_gradient_sums` for a batch of B examples.

    Attributes:
      sums: aligned with `model.trainable_variables`: the sum over examples of
        min(1, l2_norm_clip / bound) times the example's gradient; float32, in the
        variable's shape.
      norms: [B] float32, norms of the unclipped gradients over all variables, as
        measured. Clipping uses upper bounds of them, see `norms`.
      losses: [B] float32, each example's loss alone, sample weights included.
      outputs: the model's predictions, [B, ...], without gradients; [B, K, ...] of
        units of K rows.
      scales: factor of each coordinate of sums and norms, in the shapes of the
        variables; empty if there are none.
      outcomes: [B] int32, places in `OUTCOMES`: the gradient was used as it is, shortened,
        zero, or not finite (a loss or a label, too). As private as norms.
    """

    sums: list[Any]
    norms: tf.Tensor
    losses: tf.Tensor
    outputs: Any
    scales: tuple[tf.Tensor, ...] = ()
    outcomes: Any = ()


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
    rows: tf.Tensor | None = None,
    shares: tf.Tensor | None = None,
    clipping: Clipping = FLAT,
    scales: Sequence[tf.Tensor] | None = None,
    readers: Mapping[int, TableReader] | None = None,
) -> ClippedGradients:
    """Sums the per-example gradients of a batch, each clipped to an l2 norm.

    One forward and one backward pass: nothing is computed twice. An example whose
    loss or norm is not finite, or that has a class or index that does not exist,
    contributes exactly zero. Noise is not added here, and weight regularizers are not
    part of it: see `regularization_gradients`.

    Whatever the data, an example's contribution is at most `l2_norm_clip` up to a
    relative error of 1e-3: rounding is bounded and added to the norm. Therefore it may
    be clipped to less than that: by below 1e-3 where terms do not cancel.

    Args:
      model: a built and compiled model.
      x: inputs as the model takes them, tensors [B, ...].
      y: targets as the compiled loss takes them, [B, ...].
      sample_weight: optional weights [B] or [B, ...] as in `model.fit`.
      l2_norm_clip: norm that every example's contribution is clipped to.
      microbatch_size: if given, examples are processed in groups of this size one
        after the other, which bounds memory; the result is the same.
      loss_scale_factor: a power of two by which losses are multiplied before the
        backward pass, and gradients divided before they are clipped, which is
        exact: small gradients of layers that compute in float16 are not lost. An
        example whose scaled gradient overflows contributes zero.
      rows: None; or which rows each unit has, [B, K] bool. Then x, y and sample_weight
        have the shape [B, K, ...], and "example" means a unit, whose loss is the mean
        of its rows' losses: see `tensors.multi_row`.
      shares: None; or what part of the clip norm each example is clipped to, [B] float32
        in [0, 1]; others are taken for the nearest of these.
      clipping: flat or automatic, as a whole or in groups of weights. Gamma of automatic
        clipping is the same for all groups. Scales are given by `scales`.
      scales: None; or what each coordinate of an example's gradient is multiplied by
        before it is clipped: positive float32, aligned with the trainable variables and
        in their shapes. They must not depend on the batch.
      readers: None; or functions that read tables which are not read from the layer's
        variable, by the variable's `id`. The sums of these tables are
        `tf.IndexedSlices`, in which rows may repeat and negative ids mean no row.

    Returns:
      Sums, norms, losses and predictions; sums and norms of the scaled gradients.

    Raises:
      UnsupportedModelError: if per-example gradients of the model are not defined
        or cannot be proved right.
      ValueError: if an argument is out of range, or a weight is in no group.
      RuntimeError: if the process rounds float32 products: see `precision`.
    """
    check_matmul_precision()
    check_functions_are_traced()
    if not (math.isfinite(l2_norm_clip) and l2_norm_clip > 0):
        raise ValueError(
            f"`l2_norm_clip` must be positive and finite, found {l2_norm_clip}."
        )
    if microbatch_size is not None and microbatch_size < 1:
        raise ValueError(
            f"`microbatch_size` must be at least 1, found {microbatch_size}."
        )
    check_supported(model)
    clip = how_to_clip(model, l2_norm_clip, clipping, loss_scale_factor, scales)
    data = _with_shares(batches.to_tensors((x, y, sample_weight, rows)), shares)
    if rows is not None and microbatch_size is not None:
        microbatch_size = max(1, microbatch_size // UnitRows(data[3]).rows)
    with read_by(readers):
        clipped = _clipped(model, data, microbatch_size, clip)
    return clipped._replace(scales=clip.scales)


def _with_shares(data: Any, shares: tf.Tensor | None) -> Any:
    """The data with a share of the clip norm for each example, within [0, 1]."""
    static, size = batches.batch_size(data)
    if shares is None:
        return (*data, tf.ones([static if static else size]))
    shares = tf.cast(tf.convert_to_tensor(shares), tf.float32)
    # NaN is in no order: it becomes 0.
    return (*data, tf.where(shares > 0.0, tf.minimum(shares, 1.0), 0.0))


def _clipped(
    model: keras.Model, data: Any, microbatch_size: int | None, clip: Clip
) -> ClippedGradients:
    """`clipped_gradient_sums` of all tensors of a batch, without `scales`."""
    static, size = batches.batch_size(data)
    if microbatch_size is not None and not (static and static <= microbatch_size):

        def group(part: Any, valid: tf.Tensor) -> tuple[list[tf.Tensor], Any]:
            clipped = _one_pass(model, part, valid, clip)
            return clipped.sums, tuple(clipped[1:])

        sums, results = in_groups(group, data, size, microbatch_size)
        return ClippedGradients(sums, *results)
    if static:
        return _one_pass(model, data, tf.fill([static], True), clip)
    # Not every layer takes a batch of zero examples; one that does not count does.
    count = tf.maximum(size, 1)
    data = batches.pad_batch(data, count - size)
    clipped = _one_pass(model, data, tf.range(count) < size, clip)

    # With one constant for all, as a graph takes its time for each operation.
    begin, end, step = tf.constant([0]), tf.reshape(size, [1]), tf.constant([1])

    def drop(tensor: tf.Tensor) -> tf.Tensor:
        return tf.strided_slice(tensor, begin, end, step)

    results = (batches.map_tensors(drop, part) for part in clipped[1:])
    return ClippedGradients(clipped.sums, *results)


def find_layers_alone(model: keras.Model, x: Any) -> None:
    """Finds the layers that the pass will execute for each example by itself.

    They are `layers_executed_alone` from then on. The step finds them again without work.
    Arguments and errors are those of `clipped_gradient_sums`.
    """
    check_supported(model)
    structure_of(model, batches.to_tensors(x), model.trainable_variables)


def _one_pass(
    model: keras.Model, data: Any, valid: tf.Tensor, clip: Clip
) -> ClippedGradients:
    """Processes one group of examples.

    Args:
      model: the model.
      data: (x, y, sample_weight, rows, shares), tensors [B, ...] with B >= 1.
      valid: [B], False for examples that were padded and do not count.
      clip: how gradients are clipped.
    """
    if tf.distribute.get_strategy().num_replicas_in_sync > 1:
        # Random generators of replicas do not work in inner functions.
        return _pass_in_graph(model, data, valid, clip)

    # The analysed graph is separate: what layers keep from it is of no use to regularizers,
    # constraints and metrics. It does not know the size of the batch.
    def traced(
        leaves: list[tf.Tensor],
        clips: tf.Tensor,
        valid: tf.Tensor,
        scales: list[tf.Tensor],
    ) -> ClippedGradients:
        parts = batches.with_leaves(data, leaves)
        given = clip.parts._replace(clips=tuple(tf.unstack(clips)))
        own = clip._replace(parts=given, scales=tuple(scales))
        return _pass_in_graph(model, parts, valid, own)

    signature = [
        list(batches.specs_of(data)),
        tf.TensorSpec([len(clip.parts.clips)], tf.float64),
        tf.TensorSpec([None], tf.bool),
        [tf.TensorSpec(scale.shape, tf.float32) for scale in clip.scales],
    ]
    compiled = tf.function(traced, autograph=False, input_signature=signature)
    clips = tf.constant(clip.parts.clips, tf.float64)
    clipped: ClippedGradients = compiled(
        batches.tensor_leaves(data), clips, valid, list(clip.scales)
    )
    return clipped


def _pass_in_graph(
    model: keras.Model, data: Any, valid: tf.Tensor, clip: Clip
) -> ClippedGradients:
    variables = model.trainable_variables
    *data, rows, shares = data
    data = tuple(data)
    units = None if rows is None else UnitRows(rows)
    if units is not None:
        data = units.flat(data)
    with proved_forward(model, variables, data) as forward:
        measured = _measure(variables, forward, clip, units)
    norms = tf.add_n([part.measured.norms.squared for part in measured])
    norms = tf.sqrt(norms) / clip.scale
    losses = tf.stop_gradient(tf.cast(forward.losses, tf.float32))
    outputs = batches.map_tensors(tf.stop_gradient, forward.y_pred)
    if units is not None:
        losses, outputs = units.losses(losses), units.unflat(outputs)
    bounds = _bounds(measured, clip)
    counts = tf.math.is_finite(losses) & valid & (shares > 0.0)
    for of_group in bounds.values():
        counts &= tf.math.is_finite(of_group)
    weights = {
        group: tf.where(counts, clip.weights(of_group, group, shares), 0.0) / clip.scale
        for group, of_group in bounds.items()
    }
    sums = _weighted_sums(variables, measured, weights, counts)
    outcomes = _outcomes(norms, losses, bounds, valid, shares, clip)
    norms = tf.cast(norms, tf.float32)
    return ClippedGradients(sums, norms, losses, outputs, (), outcomes)


def _outcomes(
    norms: tf.Tensor,
    losses: tf.Tensor,
    bounds: Mapping[int, tf.Tensor],
    valid: tf.Tensor,
    shares: tf.Tensor,
    clip: Clip,
) -> tf.Tensor:
    """What became of each example, [B] int32; see `ClippedGradients`."""
    is_finite = tf.math.is_finite(losses)
    is_long = tf.zeros_like(valid)
    for group, of_group in bounds.items():
        is_finite &= tf.math.is_finite(of_group)
        allowed = clip.parts.clips[group] * tf.cast(shares, tf.float64)
        is_long |= of_group > tf.square(allowed)
    is_zero = tf.equal(norms, 0.0) | ~(shares > 0.0)
    found = tf.where(is_zero, 2, tf.where(is_long, 1, 0))
    return tf.where(valid, tf.where(is_finite, found, 3), 0)


def _bounds(measured: list[Part], clip: Clip) -> dict[int, tf.Tensor]:
    """Bounds of squared norms, [B] float64, of each group that has gradients."""
    members: dict[int, list[tf.Tensor]] = {}
    for part in measured:
        members.setdefault(part.group, []).append(part.measured.norms.bounds)
    return {
        group: tf.add_n(bounds) / clip.scale**2 for group, bounds in members.items()
    }


def _measure(
    variables: list[Any], forward: Forward, clip: Clip, units: UnitRows | None
) -> list[Part]:
    """Returns measured per-example gradients of all variables that have any.

    They are those of the losses times the scale; of units, if there are units.
    """
    calls = forward.calls
    upstream = tf.fill(
        tf.shape(forward.losses), tf.cast(clip.scale, forward.losses.dtype)
    )
    if units is not None:
        upstream *= tf.cast(units.weights(), upstream.dtype)
    # Not by a tape, which would have to record the whole pass.
    taps = [tap for _, call in calls for tap in call.taps]
    found = iter(tf.gradients(forward.losses, taps, grad_ys=upstream))
    gradients = [[next(found) for _ in call.taps] for _, call in calls]
    factors: dict[int, list[Factor]] = {}
    for (unit, call), received in zip(calls, gradients, strict=True):
        received = _dense(received)
        if accelerator():
            received = [g if g is None else pinned(g)[0] for g in received]
        if units is not None:
            call.rows = units.rows
        for key, factor in unit.rule.factors(call, received).items():
            if units is not None:
                factor = factor.of_units(units.rows)
            factors.setdefault(key, []).append(factor)
    totals: dict[int, Factor] = {}
    for position, variable in enumerate(variables):
        parts = factors.get(id(variable))
        if parts is not None:
            total = add_factors(parts)
            if clip.scales:
                total = total.scaled(clip.scales[position])
            totals[position] = total
    if not totals:
        raise UnsupportedModelError(
            "The loss does not depend on any trainable weight of the model."
        )
    names = [v.path for position, v in enumerate(variables) if position not in totals]
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        warnings.warn(
            f"The loss does not depend on the weights {', '.join(names[:3])}{more}: they "
            f"get noise, and learn nothing. Give the output that they are for a loss, or "
            f"set trainable=False for their layers before the model is compiled.",
            stacklevel=2,
        )
    return measured_parts(totals, variables, clip.parts.members)


def _dense(gradients: list[Any]) -> list[tf.Tensor | None]:
    """Makes sparse gradients dense; None stays None.

    The gradient of something that gathers from its input (a loss with sparse labels,
    in a batch of unknown size) is sparse.
    """
    return [None if g is None else tf.convert_to_tensor(g) for g in gradients]


def _weighted_sums(
    variables: list[Any],
    measured: list[Part],
    weights: Mapping[int, tf.Tensor],
    counts: tf.Tensor,
) -> list[tf.Tensor]:
    """Sums per-example gradients with weights of groups, of examples that count."""
    if accelerator():
        sums = _sums_in_turns(measured, weights, counts)
    else:
        sums = _sums_at_once(measured, weights, counts)
    for position, total in sums.items():
        variable = variables[position]
        is_table = reader_of(variable) is not None
        if is_table and not isinstance(total, tf.IndexedSlices):
            raise UnsupportedModelError(
                f"The rows of table {variable.path!r} get their noise when they are read, "
                f"and are read in another layer's call, or in one that is executed for "
                f"each example by itself: which ones is not seen. Call the Embedding "
                f"layer itself, which takes ids of any shape, build TimeDistributed for a "
                f"known number of steps, or give make_private tables='dense'."
            )
    return [
        sums[position] if position in sums else _nothing(variable)
        for position, variable in enumerate(variables)
    ]


def _sums_at_once(
    measured: list[Part], weights: Mapping[int, tf.Tensor], counts: tf.Tensor
) -> dict[int, tf.Tensor]:
    tensors = [list(part.measured.tensors) for part in measured]

    # Zero times infinity is not zero: what does not count is replaced by zeros. That
    # is rare, so the copy is made only if needed.
    def without_others() -> list[list[tf.Tensor]]:
        flat = iter(cleaned(counts, tf.nest.flatten(tensors)))
        return [[next(flat) for _ in own] for own in tensors]

    tensors = tf.cond(tf.reduce_all(counts), lambda: tensors, without_others)
    sums: dict[int, tf.Tensor] = {}
    for part, own in zip(measured, tensors, strict=True):
        sums.update(part.sums(weights[part.group], own))
    return sums


def _sums_in_turns(
    measured: list[Part], weights: Mapping[int, tf.Tensor], counts: tf.Tensor
) -> dict[int, tf.Tensor]:
    """Sums one after the other: a GPU would zero and weight several layers at once.

    The last layer comes first: its gradients have waited the longest.
    """
    sums: dict[int, tf.Tensor] = {}
    before: list[tf.Tensor] = []
    for part in reversed(measured):
        weight, own_counts, *_ = pinned(weights[part.group], counts, *before)
        own = part.sums(weight, cleaned(own_counts, part.measured.tensors))
        before = tf.nest.flatten(own, expand_composites=True)
        sums.update(own)
    return sums


def _nothing(variable: Any) -> tf.Tensor | tf.IndexedSlices:
    """The sum of gradients that no example has."""
    shape = tuple(variable.shape)
    if reader_of(variable) is None:
        return tf.zeros(shape, tf.float32)
    return tf.IndexedSlices(tf.zeros([0, *shape[1:]]), tf.zeros([0], tf.int64))
