"""The entry point of clipping: sums the clipped per-example gradients of a batch."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tf_bandmf.keras.clipping.factors.base import (
    Factor,
    Instantiated,
    Measured,
    add_factors,
    cleaned,
)
from tf_bandmf.keras.clipping.factors.norms import accelerator, all_norms, pinned
from tf_bandmf.keras.clipping.forward.forward_pass import Forward, recorded_forward
from tf_bandmf.keras.clipping.forward.structure import Structure
from tf_bandmf.keras.clipping.forward.supported import check_supported
from tf_bandmf.keras.clipping.sums.settings import FLAT, Clip, Clipping, how_to_clip
from tf_bandmf.keras.clipping.tensors import batches
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.clipping.tensors.microbatches import in_groups
from tf_bandmf.keras.clipping.tensors.multi_row import UnitRows
from tf_bandmf.keras.clipping.tensors.precision import prepare_process
from tf_bandmf.keras.clipping.tensors.table_readers import (
    TableReader,
    read_by,
    reader_of,
)

# Gradients of variables with at most this many elements are concatenated if they are
# stored directly. A network has dozens of scales and biases. Without concatenation,
# each of these variables would need about twenty operations, which TensorFlow traces
# and optimizes before the first step.
_SMALL = 512


class ClippedGradients(NamedTuple):
    """Result of `clipped_gradient_sums` for a batch of B examples.

    Attributes:
      sums: for each of `model.trainable_variables`, the sum of the clipped gradients;
        float32, in the variable's shape. With flat clipping, a gradient is multiplied
        by min(1, l2_norm_clip / bound), where `bound` is an upper bound of its norm.
      norms: [B] float32, measured norms of the unclipped gradients over all variables.
        Clipping uses upper bounds instead, see `factors.norms`.
      losses: [B] float32, the per-example losses, sample weights included.
      outputs: the model's predictions, [B, ...], without gradients; [B, K, ...] for
        units of K rows.
      outcomes: [B] int32, indices into `batches.OUTCOMES`: "used" (unchanged),
        "clipped", "zero" or "bad". A gradient is bad if its norm or the loss is not
        finite, for example because a label does not exist. Outcomes are private data.
    """

    sums: list[Any]
    norms: tf.Tensor
    losses: tf.Tensor
    outputs: Any
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
    structure: Structure | None = None,
    with_outcomes: bool = True,
) -> ClippedGradients:
    """Sums the per-example gradients of a batch, each clipped to an l2 norm.

    There is one forward pass and one backward pass. An example contributes exactly zero
    if its loss or norm is not finite, or if one of its labels or ids does not exist.
    The sums contain neither noise nor gradients of weight regularizers (see
    `regularization_gradients`).

    For all data, the norm of an example's contribution is at most `l2_norm_clip`, up to
    a relative error of 1e-3. To ensure this, a bound on rounding errors is added to the
    measured norm, so a clipped contribution may be slightly shorter than
    `l2_norm_clip`. For example, a contribution may be shorter by 0.1% if the gradient
    is a sum of 128 independent terms, and by 0.8% for 1024 terms.

    Args:
      model: a built and compiled model.
      x: inputs as the model takes them, tensors [B, ...], with B >= 1.
      y: targets as the compiled loss takes them, [B, ...].
      sample_weight: optional weights [B] or [B, ...] as in `model.fit`.
      l2_norm_clip: maximum norm of each example's contribution; positive.
      microbatch_size: if given, examples are processed in groups of this size one
        after the other, which bounds memory; the result is the same.
      loss_scale_factor: a power of two that multiplies losses before the backward
        pass, so that small gradients do not vanish in float16 layers. Gradients are
        divided by it before clipping, which is exact. An example whose scaled
        gradient overflows contributes zero.
      rows: None; or [B, K] bool, True for the rows that are present in each unit. Then
        x, y and sample_weight have the shape [B, K, ...], and "example" means a unit,
        whose loss is the mean over its rows: see `tensors.multi_row`.
      shares: None; or [B] float32 in [0, 1], the fraction of the clip norm to which
        each example is clipped. Values outside are clipped to [0, 1]; NaN becomes 0.
        With `rows`, [B, K]: a unit has the largest share of its rows.
      clipping: the method of clipping (flat or automatic), and the groups of weights.
        The attribute `scaling` is ignored; pass `scales` instead.
      scales: None; or factors that multiply the coordinates of each example's gradient
        before clipping: positive float32, one tensor per trainable variable in its
        shape. They must not depend on the batch.
      readers: None; or a mapping from the `id` of a table's variable to the function
        that looks up rows in place of this variable. The sums of these tables are
        `tf.IndexedSlices`, in which rows may repeat and negative ids mean no row.
      structure: the result of `forward.structure.structure_of` for the model and its
        inputs, if it is already known.
      with_outcomes: False to leave the outcomes out.

    Returns:
      Sums, norms, losses, predictions and outcomes. With `scales`, the sums and norms
      are computed from the scaled gradients.

    Raises:
      UnsupportedModelError: if per-example gradients of the model are not defined
        or cannot be proved correct.
      ValueError: if the sizes of the arguments differ, or a weight is in no group.
      RuntimeError: if process settings round the operands of float32 products, or run
        functions eagerly: see `tensors.precision`.
    """
    prepare_process()
    check_supported(model)
    clip = how_to_clip(model, l2_norm_clip, clipping, loss_scale_factor, scales)
    data = batches.to_tensors((x, y, sample_weight, rows))
    static, size = batches.batch_size(data)
    if shares is None and microbatch_size is not None:
        # The last microbatch is padded with zeros. As `shares` is padded, too, the
        # padding gets a share of 0.
        shares = tf.ones([size])
    elif shares is not None:
        shares = tf.cast(tf.convert_to_tensor(shares), tf.float32)
        # Comparisons with NaN are false, so NaN becomes 0.
        shares = tf.where(shares > 0.0, tf.minimum(shares, 1.0), 0.0)
        if rows is not None:
            shares = tf.reduce_max(tf.where(rows, shares, 0.0), axis=1)
    if rows is not None and microbatch_size is not None:
        microbatch_size = max(1, microbatch_size // UnitRows(data[3]).rows)
    data = *data, shares

    def one_pass(leaves: list[tf.Tensor]) -> ClippedGradients:
        whole = batches.with_leaves(data, leaves)
        return _one_pass(model, whole, clip, structure, with_outcomes)

    # The forward pass is analyzed in a graph with an unknown batch size.
    signature = [list(batches.specs_of(data))]
    separate = tf.function(one_pass, autograph=False, input_signature=signature)
    with read_by(readers):
        if microbatch_size is not None and not (static and static <= microbatch_size):
            return ClippedGradients(*in_groups(separate, data, size, microbatch_size))
        # If there are several replicas, `one_pass` is called directly, because random
        # generators do not work in nested functions.
        is_one = tf.distribute.get_strategy().num_replicas_in_sync == 1
        run = separate if static is not None and is_one else one_pass
        return run(batches.tensor_leaves(data))


def _one_pass(
    model: keras.Model,
    data: Any,
    clip: Clip,
    structure: Structure | None,
    with_outcomes: bool,
) -> ClippedGradients:
    """Sums the clipped gradients of one microbatch.

    Args:
      model: the model.
      data: (x, y, sample_weight, rows, shares), tensors [B, ...] with B >= 1. Examples
        that were added as padding have a share of 0. If `shares` is None, there is no
        padding.
      clip: the settings of clipping.
      structure: as for `clipped_gradient_sums`.
      with_outcomes: likewise.
    """
    variables = model.trainable_variables
    *data, rows, shares = data
    units = None if rows is None else UnitRows(rows)
    data = tuple(data) if units is None else units.flat(tuple(data))
    with recorded_forward(model, variables, data, structure) as forward:
        parts = _measured(variables, forward, clip, units)
    losses = tf.stop_gradient(tf.cast(forward.losses, tf.float32))
    outputs = batches.map_tensors(tf.stop_gradient, forward.y_pred)
    if units is not None:
        losses, outputs = units.losses(losses), units.unflat(outputs)
    squared, bounds = zip(*all_norms([part.measured.norms for part in parts]))
    norms = clip.unscaled(tf.sqrt(tf.add_n(squared)))
    # Add up the bounds of each clipping group; the bound of an empty group is 0.
    groups = [part.group for part in parts]
    bounds = tf.math.unsorted_segment_sum(tf.stack(bounds), groups, len(clip.norms))
    bounds = clip.unscaled(bounds, 2)
    is_finite = tf.math.is_finite(losses) & tf.reduce_all(tf.math.is_finite(bounds), 0)
    counts = is_finite if shares is None else is_finite & (shares > 0.0)
    allowed = clip.allowed(shares)
    weights = tf.where(counts, clip.weights(bounds, allowed, shares), 0.0)
    weights = tf.expand_dims(clip.unscaled(weights), 2)
    sums = _weighted_sums(variables, parts, tf.unstack(weights), counts)
    outcomes: Any = ()
    if with_outcomes:
        is_zero = tf.equal(norms, 0.0) | ~counts
        is_short = tf.reduce_all(bounds <= tf.square(allowed), 0)
        outcomes = tf.where(is_zero, 2, tf.where(is_short, 0, 1))
        outcomes = tf.where(is_finite, outcomes, 3)
    return ClippedGradients(sums, tf.cast(norms, "float32"), losses, outputs, outcomes)


class Part(NamedTuple):
    """One variable, or several small ones of a clipping group that are handled as one.

    Attributes:
      positions: indices of the variables among the trainable variables of the model.
      group: index of the clipping group.
      measured: the norms of the gradients, and the tensors from which sums are
        computed. The gradients of several variables are flattened and concatenated.
    """

    positions: tuple[int, ...]
    group: int
    measured: Measured


def _measured(
    variables: list[Any], forward: Forward, clip: Clip, units: UnitRows | None
) -> list[Part]:
    """Computes per-example gradient norms of all variables that affect the loss.

    The losses are multiplied by `clip.scale` first. With `units`, there is one gradient
    per privacy unit of several rows, instead of one per example.
    """
    upstream = tf.fill(
        tf.shape(forward.losses), tf.cast(clip.scale, forward.losses.dtype)
    )
    if units is not None:
        upstream *= tf.cast(units.weights(), upstream.dtype)
    taps = [tap for _, call in forward.calls for tap in call.taps]
    gradients = iter(forward.tape.gradient(forward.losses, taps, upstream))
    factors: dict[int, list[Factor]] = {}
    for unit, call in forward.calls:
        received = [_dense(next(gradients), tap.shape) for tap in call.taps]
        if all(gradient is None for gradient in received):
            continue
        for key, factor in unit.rule.factors(call, *received).items():
            if units is not None:
                factor = factor.of_units(units.rows)
            factors.setdefault(key, []).append(factor)
    totals: dict[int, Factor] = {}
    for position, variable in enumerate(variables):
        if id(variable) in factors:
            total = add_factors(factors[id(variable)])
            totals[position] = (
                total.scaled(clip.scales[position]) if clip.scales else total
            )
    if not totals:
        raise UnsupportedModelError(
            "No trainable weight of the model affects the loss. Check layer.trainable."
        )
    names = [v.path for position, v in enumerate(variables) if position not in totals]
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        warnings.warn(
            f"The loss does not depend on the weights {', '.join(names[:3])}{more}: they "
            f"get noise, and learn nothing. Give the output that uses them a loss, or "
            f"set trainable=False for their layers before the model is compiled.",
            stacklevel=2,
        )
    return _side_by_side(totals, clip.groups)


def _side_by_side(factors: Mapping[int, Factor], groups: Sequence[int]) -> list[Part]:
    """Measures the gradients of all variables, and returns them as parts.

    Except on accelerators, the small variables of a clipping group share one `Part` if
    their gradients are stored directly (`Instantiated`). Every other variable has its
    own `Part`.

    Args:
      factors: maps the position of a variable among the trainable variables to the
        gradients of the variable.
      groups: the clipping group of each trainable variable.
    """
    together: dict[int, list[int]] = {}
    for position, factor in factors.items():
        size = None
        if isinstance(factor, Instantiated) and not accelerator():
            size = factor.gradients.shape[1:].num_elements()
        is_small = size is not None and size <= _SMALL
        key = groups[position] if is_small else -1 - position
        together.setdefault(key, []).append(position)
    parts = []
    for positions in together.values():
        each = [factors[position] for position in positions]
        whole = each[0]
        if len(each) > 1:
            flat = [batches.flattened(factor.instantiate()) for factor in each]
            whole = Instantiated(tf.concat(flat, axis=1))
        parts.append(Part(tuple(positions), groups[positions[0]], whole.measure()))
    return parts


def _dense(gradient: Any, shape: tf.TensorShape) -> tf.Tensor | None:
    """Converts a gradient to a dense tensor with a static shape; None stays None.

    Gather operations, as in a loss with sparse labels, have sparse gradients.
    """
    if gradient is None:
        return None
    gradient = tf.convert_to_tensor(gradient)
    gradient.set_shape(shape)
    return pinned(gradient)[0] if accelerator() else gradient


def _weighted_sums(
    variables: list[Any],
    parts: Sequence[Part],
    weights: Sequence[tf.Tensor],
    counts: tf.Tensor,
) -> list[Any]:
    """Returns each variable's weighted sum of gradients over the examples that count.

    On accelerators, the sums are computed one after the other, so that a GPU does not
    hold copies of the gradients of several layers at the same time. The last layer
    comes first, since its gradients have been in memory the longest.

    Args:
      variables: the trainable variables.
      parts: the gradients.
      weights: for each group, the weights of the examples, [B, 1].
      counts: [B], False if an example's share is 0, or its gradient may not be finite.
    """
    given = tensors = [part.measured.tensors for part in parts]
    in_turns = accelerator()
    if not in_turns:
        # Gradients are copied only if an example does not count, which is rare.
        tensors = tf.cond(
            tf.reduce_all(counts), lambda: given, lambda: cleaned(counts, given)
        )
    total: Any = ()
    sums: dict[int, Any] = {}
    for part, of_part in zip(reversed(parts), reversed(tensors), strict=True):
        weight = weights[part.group]
        if in_turns:
            before = tf.nest.flatten(total, expand_composites=True)
            weight, now, *_ = pinned(weight, counts, *before)
            of_part = cleaned(now, of_part)
        total = part.measured.weighted_sum(weight, *of_part)
        pieces, of_part = [total], [variables[i] for i in part.positions]
        if len(of_part) > 1:
            pieces = tf.split(total, [math.prod(one.shape) for one in of_part])
        sums.update(zip(part.positions, pieces, strict=True))
    return [_sum_of(variable, sums.get(i)) for i, variable in enumerate(variables)]


def _sum_of(variable: Any, total: Any) -> Any:
    """Returns the gradient sum of a variable; zeros if it has no gradient."""
    shape = tuple(variable.shape)
    if reader_of(variable) is None:
        if total is None:
            return tf.zeros(shape)
        total = tf.convert_to_tensor(total)
        return total if total.shape == shape else tf.reshape(total, shape)
    if total is None:
        nothing = tf.zeros([0], tf.int64)
        return tf.IndexedSlices(tf.zeros([0, *shape[1:]]), nothing)
    if not isinstance(total, tf.IndexedSlices):
        raise UnsupportedModelError(
            f"Table {variable.path!r} cannot have lazy noise, because it is unknown which "
            f"rows a step reads: another layer uses the table, or a layer around the "
            f"Embedding runs on each example by itself. Call the Embedding directly (ids "
            f"may have any shape); or build TimeDistributed for a known number of steps; "
            f"or make the model private with make_private(model, tables='dense')."
        )
    return tf.IndexedSlices(total.values, total.indices)
