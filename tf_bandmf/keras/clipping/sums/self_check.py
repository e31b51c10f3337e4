"""A numerical check of per-example clipping, for rules and layers that nothing shows.

Training runs it for models with registered rules or vouched layers, on made-up examples:
whether it refuses must not depend on a record.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_bandmf.keras.clipping.forward.passes import run_model
from tf_bandmf.keras.clipping.forward.tapped_layers import find_units
from tf_bandmf.keras.clipping.independence.registration import vouched_classes
from tf_bandmf.keras.clipping.losses.compiled import compiled_loss
from tf_bandmf.keras.clipping.rules import has_registered_rule
from tf_bandmf.keras.clipping.sums.checked_state import squared, unchanged_state
from tf_bandmf.keras.clipping.sums.clipped_sums import (
    ClippedGradients,
    clipped_gradient_sums,
)
from tf_bandmf.keras.clipping.sums.settings import FLAT, Clipping, Grouping
from tf_bandmf.keras.clipping.tensors import batches
from tf_bandmf.keras.clipping.tensors.errors import ClippingMismatchError
from tf_bandmf.keras.clipping.tensors.table_readers import TableReader
from tf_bandmf.keras.clipping.tensors.table_rows import TableRows, side_by_side
from tf_bandmf.keras.clipping.tensors.variables import (
    tensorflow_variable,
    trainable_variables,
)
from tf_bandmf.keras.compat import fixed_draws
from tf_bandmf.keras.compat.keras_objects import all_layers
from tf_bandmf.keras.compat.replicas import unscaled_losses

# Gradients computed in bfloat16 carry 8 bits, in float16 11 bits, whichever way they
# are computed.
_TOLERANCES = {"bfloat16": 3e-2, "float16": 1e-2}
_NUM_EXAMPLES = 2


def needs_self_check(model: keras.Model) -> bool:
    """Whether somebody vouches for one of a model's layers, or wrote its rule."""
    if vouched_classes(model):
        return True
    units = find_units(model, trainable_variables(model))
    return any(has_registered_rule(unit.layer, unit.variables) for unit in units)


def self_check(
    model: keras.Model,
    x: Any,
    y: Any,
    sample_weight: Any = None,
    *,
    rtol: float = 1e-3,
    microbatch_size: int | None = None,
    loss_scale_factor: float | None = None,
    clipping: Clipping = FLAT,
    readers: Mapping[int, TableReader] | None = None,
) -> None:
    """Compares clipped gradients of two examples with gradients taken one by one.

    The reference is a plain gradient tape on a batch of one, which knows nothing of
    taps and rules. Then the second example is replaced by zeros, outliers and NaN, and
    left out: what the first contributes must stay what it is. Random layers are made
    deterministic while the check runs, and weights that are all zero or all one are
    made to differ. Then all weights and state are drawn at random, several times, and
    the first example is compared next to others again: a gate that is closed now may
    open later. Call it eagerly, on the first batch; it changes nothing in the model.
    Layers that mix examples were found before; this check is for layers whose class
    somebody vouched for, and for registered rules.

    Args:
      model: a built and compiled model.
      x: inputs, [B, ...]; the first two examples are used. If there is one only, a
        second is made of it.
      y: targets, [B, ...].
      sample_weight: optional weights, [B, ...].
      rtol: largest relative error of norms and of the clipped sum.
      microbatch_size: if given, the clipping in groups is what is checked, on three
        examples in groups of two: a full one, and one that is padded.
      loss_scale_factor: as for `clipped_gradient_sums`.
      clipping: as the step will do it. If it scales coordinates, the check uses made-up
        scales.
      readers: as for `clipped_gradient_sums`; nothing of the size of these tables is made.

    Raises:
      ClippingMismatchError: if they differ, with the likely cause.
      UnsupportedModelError: if the model is refused outright.
      RuntimeError: if called while a graph is being built.
    """
    if not tf.executing_eagerly():
        raise RuntimeError("`self_check` compares numbers: call it eagerly.")
    data = batches.to_tensors((x, y, sample_weight))
    _, size = batches.batch_size(data)
    if int(size) == 0:
        return
    if int(size) == 1:
        data = batches.map_tensors(_with_another, data)
        size = 2
    count = min(int(size), _NUM_EXAMPLES + (microbatch_size is not None))
    data = batches.map_tensors(lambda tensor: tensor[:count], data)
    for layer in all_layers(model):
        rtol = max(rtol, _TOLERANCES.get(layer.compute_dtype, 0.0))
    group = None
    if microbatch_size is not None:
        group = max(1, min(microbatch_size, count - 1))
    scale = loss_scale_factor or 1.0
    options: dict[str, Any] = {
        "loss_scale_factor": loss_scale_factor,
        "clipping": clipping,
        "scales": _made_up_scales(model) if clipping.scaling else None,
        "readers": readers,
    }
    tables = readers or {}
    with unchanged_state(model, tables) as draw, fixed_draws.without_randomness():
        references = _references(model, data, scale, options["scales"], tables)
        largest = max(
            (norm for norm, _ in references if math.isfinite(norm)), default=0
        )
        # Half of the largest norm, so that at least one example is clipped.
        clip = largest / 2 or 1.0

        @functools.partial(tf.function, autograph=False, reduce_retracing=True)
        def step(batch: Any) -> Any:
            return clipped_gradient_sums(
                model, *batch, l2_norm_clip=clip, microbatch_size=group, **options
            )

        clipped = step(data)
        neighbors = _neighbors(data)
        others = {name: step(neighbors[name]) for name in _ONE_BY_ONE}
        for has_both_signs in _DRAWS:
            draw(has_both_signs)
            results = {name: step(neighbors[name]) for name in _TOGETHER}
            _compare_neighbors(model, results, rtol)
    if not any(math.isfinite(norm) for norm, _ in references):
        warnings.warn(
            f"The gradients of model {model.name!r} were not compared with those of "
            f"examples taken one by one: none of {count} examples has a finite one. "
            f"What its layers do to a batch was analysed all the same.",
            stacklevel=2,
        )
    norms = clipped.norms.numpy()
    if loss_scale_factor and not np.all(np.isfinite(norms)):
        warnings.warn(
            f"Of the first {len(norms)} examples {int(np.sum(~np.isfinite(norms)))} have "
            f"gradients that are not finite, and contribute nothing. If the data are "
            f"finite, lower loss_scale_factor={loss_scale_factor:g}.",
            stacklevel=2,
        )
    for index, (expected, _) in enumerate(references):
        if not math.isfinite(expected):
            continue
        if not _is_close(norms[index], expected, rtol):
            raise ClippingMismatchError(
                f"The gradient norm of example {index} is {expected:.6g} when it is "
                f"alone, but {norms[index]:.6g} in a batch of {len(references)}. "
                f"{_CAUSES}"
            )
    parts = clipping.grouping(trainable_variables(model), clip)
    compare = functools.partial(
        _compare_sums, model, parts=parts, gamma=clipping.automatic, rtol=rtol
    )
    compare(clipped.sums, references)
    expected, _ = references[0]
    known = math.isfinite(expected)
    for neighbor, result in others.items() if known else ():
        found = float(result.norms.numpy()[0])
        if not _is_close(found, expected, rtol):
            raise ClippingMismatchError(
                f"The gradient norm of an example is {expected:.6g} when it is alone, "
                f"but {found:.6g} beside {neighbor}. {_CAUSES}"
            )
        if not np.isfinite(result.norms.numpy()[1:]).any():
            compare(result.sums, references[:1])


# How often all weights are drawn, and whether with both signs: for gates behind `relu`, and
# the other ones; positive, for what is a variance.
_DRAWS = (True, True, False)
# What stands beside the first example: with the weights of now, and with drawn ones.
_NAN, _NOTHING = "a NaN example", "nothing"
_ONE_BY_ONE = (_NAN, "zeros", "an outlier", _NOTHING, "three copies of another")
_ALL = "an outlier, zeros and three copies of another"
_TOGETHER = (_NAN, _NOTHING, _ALL)


def _is_close(found: float, expected: float, rtol: float) -> bool:
    """Whether a norm is what it must be; NaN is not."""
    return bool(abs(found - expected) <= rtol * expected + 1e-6)


def _compare_neighbors(
    model: keras.Model, results: Mapping[str, ClippedGradients], rtol: float
) -> None:
    """Compares an example's contribution in a batch with others to that alone.

    Args:
      model: the model.
      results: results of the example next to each of `_TOGETHER`.
      rtol: largest relative error.

    Raises:
      ClippingMismatchError: if they differ.
    """
    alone = results[_NOTHING]
    expected = float(alone.norms.numpy()[0])
    if not math.isfinite(expected):
        return
    for name, result in results.items():
        if name == _NOTHING:
            continue
        norms = result.norms.numpy()
        found = float(norms[0])
        same = _is_close(found, expected, rtol)
        if same and not np.isfinite(norms[1:]).any():
            sums, others = side_by_side([result.sums, alone.sums])
            errors = [
                squared(np.subtract(np.asarray(a), np.asarray(b), dtype=np.float64))
                for a, b in zip(sums, others, strict=True)
            ]
            total = sum(squared(np.asarray(b, np.float64)) for b in others)
            same = math.sqrt(sum(errors)) <= rtol * math.sqrt(total) + 1e-6
        if not same:
            raise ClippingMismatchError(
                f"With other weights than those of now, the gradient norm of an example "
                f"of model {model.name!r} is {expected:.6g} when it is alone, but "
                f"{found:.6g} beside {name}. {_CAUSES}"
            )


def _neighbors(data: Any) -> dict[str, Any]:
    """Batches with the same first example, by the name of what is next to it."""

    # With NumPy: each of these would be some operations of TensorFlow.
    def beside(change: Callable[[Any], Any]) -> Any:
        def changed(tensor: tf.Tensor) -> tf.Tensor:
            rows = tensor.numpy()
            found = np.concatenate([rows[:1], change(rows[1:2])])
            return tf.constant(found, tensor.dtype)

        return batches.map_tensors(changed, data)

    def filled(row: Any, value: float) -> Any:
        return np.full_like(row, value) if _is_floating(row) else row

    def outlier(row: Any) -> Any:
        return row * row.dtype.type(1e3) if _is_floating(row) else row

    def copies(row: Any) -> Any:
        return np.repeat(row, 3, axis=0)

    # In groups of two, the example stands beside the outlier.
    changes = {
        _ALL: lambda row: np.concatenate([outlier(row), filled(row, 0.0), copies(row)]),
        _NAN: lambda row: filled(row, math.nan),
        "zeros": lambda row: filled(row, 0.0),
        "an outlier": outlier,
        _NOTHING: lambda row: row[:0],
        "three copies of another": copies,
    }
    return {name: beside(change) for name, change in changes.items()}


def _is_floating(array: Any) -> bool:
    return array.dtype != object and tf.as_dtype(array.dtype).is_floating


def _with_another(tensor: tf.Tensor) -> tf.Tensor:
    """Adds a second example that differs from the only one."""
    other = tensor
    if tensor.dtype.is_floating:
        other = 0.5 - tensor
    elif tensor.shape.rank > 1:
        other = tf.reverse(tensor, axis=[-1])
    return tf.concat([tensor, other], axis=0)


_CAUSES = (
    "Likely causes: a layer that mixes examples of a batch and was vouched for with "
    "`register_per_example_layer`, random numbers that "
    "do not come from `keras.random` (use a `keras.random.SeedGenerator`), or a layer "
    "with a custom gradient. Find it by removing custom layers one by one."
)


def _made_up_scales(model: keras.Model) -> list[tf.Tensor]:
    """Scales of coordinates that are all different, for a check."""
    rng = np.random.default_rng(1)
    return [
        tf.constant(0.5 + rng.random(tuple(variable.shape)), tf.float32)
        for variable in trainable_variables(model)
    ]


def _gradients_alone(
    model: keras.Model, data: Any, scale: float
) -> Callable[[list[tf.Tensor]], tuple[tf.Tensor, list[Any]]]:
    """The loss of a batch of one, and its gradients times a scale, by a plain tape.

    Args:
      model: the model.
      data: tensors [B, ...].
      scale: of the gradients.
    """
    variables = [tensorflow_variable(v) for v in trainable_variables(model)]
    loss = compiled_loss(model)

    @functools.partial(tf.function, autograph=False)
    def alone(leaves: list[tf.Tensor]) -> tuple[tf.Tensor, list[Any]]:
        x, y, weight = batches.with_leaves(data, leaves)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(variables)
            y_pred = run_model(model, x)
            with unscaled_losses():
                value = tf.reduce_sum(loss(y, y_pred, weight))
        gradients = tape.gradient(
            value,
            variables,
            output_gradients=tf.cast(scale, value.dtype),
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
        return value, gradients

    compiled: Callable[[list[tf.Tensor]], tuple[tf.Tensor, list[Any]]] = alone
    return compiled


def _references(
    model: keras.Model,
    data: Any,
    scale: float,
    scales: list[tf.Tensor] | None,
    tables: Mapping[int, TableReader],
) -> list[tuple[float, list[Any]]]:
    """Returns norm and gradients of each example, which is in a batch of one.

    Gradients are float64 arrays, those of tables that readers read `TableRows`.
    """
    own = trainable_variables(model)
    leaves = batches.tensor_leaves(data)
    gradients_alone = _gradients_alone(model, data, scale)
    references = []
    for index in range(leaves[0].shape[0]):
        value, gradients = gradients_alone([leaf[index : index + 1] for leaf in leaves])
        arrays = [
            TableRows.of(g, scale)
            if id(variable) in tables
            else tf.convert_to_tensor(g).numpy().astype(np.float64)
            for g, variable in zip(gradients, own, strict=True)
        ]
        if scale != 1.0:
            arrays = [a if isinstance(a, TableRows) else a / scale for a in arrays]
        if scales is not None:
            arrays = [a * s.numpy() for a, s in zip(arrays, scales, strict=True)]
        values = [a.values if isinstance(a, TableRows) else a for a in arrays]
        norm = math.sqrt(sum(map(squared, values)))
        references.append((norm if np.isfinite(value) else math.nan, arrays))
    return references


def _compare_sums(
    model: keras.Model,
    sums: list[Any],
    references: list[tuple[float, list[Any]]],
    *,
    parts: Grouping,
    gamma: float | None,
    rtol: float,
) -> None:
    variables = trainable_variables(model)
    sums, *gradients = side_by_side([sums, *(own for _, own in references)])
    references = [(norm, own) for (norm, _), own in zip(references, gradients)]
    expected: list[Any] = [np.zeros(tuple(total.shape)) for total in sums]
    # Not of the sum, in which examples may cancel but for rounding.
    size = 0.0
    for norm, gradients in references:
        if not math.isfinite(norm):
            continue
        squares = [squared(gradient) for gradient in gradients]
        for index, group in enumerate(parts.members):
            of_group = math.sqrt(
                sum(s for s, g in zip(squares, parts.members) if g == group)
            )
            clip = parts.clips[group]
            if gamma is not None:
                weight = clip / (of_group + gamma)
            else:
                weight = min(1.0, clip / of_group) if of_group else 1.0
            expected[index] += weight * gradients[index]
            size += weight**2 * squares[index]
    errors = [
        math.sqrt(squared(np.subtract(np.asarray(s), e, dtype=np.float64)))
        for s, e in zip(sums, expected, strict=True)
    ]
    total = math.sqrt(sum(map(squared, expected)))
    if not math.sqrt(sum(e**2 for e in errors)) <= rtol * math.sqrt(size) + 1e-6:
        worst = variables[int(np.argmax(errors))]
        raise ClippingMismatchError(
            f"The clipped gradient sum differs from that of examples taken one by "
            f"one, most for weight {worst.path!r} (error {max(errors):.3g}, norm of "
            f"the sum {total:.3g}). {_CAUSES}"
        )
