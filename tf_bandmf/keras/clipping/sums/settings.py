"""The settings of clipping, and their checks.

If groups of weights are clipped to C_1, ..., C_G, the norm of a contribution is at most

    C = sqrt(C_1^2 + ... + C_G^2)

(He et al., 2022, arXiv:2212.01539, section 3; Bu et al., 2022, arXiv:2206.07136,
section 3.2). Here C is the clip norm of the plan, and each group has a share of C, so
sensitivity, noise and guarantee are the same as without groups. The groups and their
shares are public: they are chosen before training.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tf_bandmf.accounting.checks import check_word
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.compat.keras_objects import all_layers

LAYERS, SECOND_MOMENT = "layers", "second_moment"
# The minimum share of a group; the maximum is 1 / `_LEAST`. Within these limits,
# float32 can represent the ratio of any two shares.
_LEAST = 1e-6
# The gamma of automatic clipping. This value worked in all experiments of Bu et al.
GAMMA = 0.01


def _checked_groups(groups: Any) -> tuple[tuple[str, float], ...]:
    """Returns pairs of a regular expression and a share.

    Args:
      groups: a dictionary from regular expressions to shares, or a sequence of pairs.

    Raises:
      ValueError: if `groups` is neither of these, a pattern is not a regular
        expression, or a share is out of range.
    """
    try:
        pairs = tuple((str(p), float(share)) for p, share in dict(groups).items())
        are_patterns = all(re.compile(pattern) for pattern, _ in pairs)
    except (TypeError, ValueError, re.error):
        pairs, are_patterns = (), False
    in_range = [_LEAST <= share <= 1.0 / _LEAST for _, share in pairs]
    if not pairs or not are_patterns or not all(in_range):
        raise ValueError(
            f"groups must be 'layers', or a dictionary such as {{'embedding': 1, '.*': 2}}"
            f": patterns (regular expressions) for weight paths, and their shares of the "
            f"clip norm, from {_LEAST:g} to {1 / _LEAST:g}. Found {groups!r}."
        )
    return pairs


def _first_match(patterns: Iterable[str], path: str) -> str:
    for pattern in patterns:
        if re.search(pattern, path):
            return pattern
    raise ValueError(
        f"No pattern in groups matches the weight {path!r}. Add a pattern for it, or "
        f"add '.*' as the last pattern, which matches all remaining weights."
    )


@dataclasses.dataclass(frozen=True)
class Clipping:
    """How the gradient of each example is clipped to the clip norm C of the plan.

    Whatever the settings, the norm of a contribution is at most C, so the privacy
    guarantee does not depend on the settings. Choose them without looking at the data.

    Attributes:
      kind: "flat": a gradient longer than C is shortened to it. "automatic": each
        gradient g is multiplied by C / (|g| + 0.01), AUTO-S of Bu et al. (2022,
        arXiv:2206.07136): C and the learning rate then act as one parameter, and there
        is no clip norm to tune.
      groups: None: a gradient is clipped as a whole. "layers": each layer is clipped
        separately, to C / sqrt(number of layers). Or a dictionary (kept as pairs) from
        regular expressions to shares of C, such as `{"embedding": 1, ".*": 2}`. A
        weight is in the group of the first expression that matches part of its path.
        The squared clip norms of the groups add up to C^2 (group-wise clipping, He et
        al., 2022, arXiv:2212.01539).
      scaling: None; or "second_moment" with Adam, AdamW, Nadam or RMSprop: gradients are
        clipped and noised in the coordinates in which that optimizer takes its steps
        (scale-then-privatize, Ganesh et al., 2025, arXiv:2507.01129; see
        `tf_bandmf.keras.optimizer.scaling`). Scales are computed from the noisy
        gradients of earlier steps. For each example, a gradient as large as the weights
        is stored; the argument `microbatch_size` of `make_private` bounds this memory.
        Only one replica is supported.

    Raises:
      ValueError: if a setting is unknown.
    """

    kind: str = "flat"
    groups: str | Mapping[str, float] | Sequence[tuple[str, float]] | None = None
    scaling: str | None = None

    def __post_init__(self) -> None:
        check_word("clipping: kind", self.kind, ("flat", "automatic"))
        if self.scaling is not None:
            check_word("scaling", self.scaling, (SECOND_MOMENT,))
        if not (self.groups is None or str(self.groups) == LAYERS):
            object.__setattr__(self, "groups", _checked_groups(self.groups))

    def grouping(
        self, variables: Sequence[Any], l2_norm_clip: float
    ) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Assigns trainable variables to groups, and divides the clip norm C.

        Group g gets C share_g / sqrt(sum of squared shares), where the sum is over
        groups that have variables.

        Returns:
          The group number of each variable, and the clip norm of each group; the
          squares of these norms add up to at most C^2.

        Raises:
          ValueError: if a variable is in no group.
        """
        if self.groups is None:
            return (0,) * len(variables), (l2_norm_clip,)
        if self.groups == LAYERS:
            names = [variable.path.rpartition("/")[0] for variable in variables]
            shares = dict.fromkeys(names, 1.0)
        else:
            assert not isinstance(self.groups, str)
            groups = dict(self.groups)
            names = [_first_match(groups, variable.path) for variable in variables]
            shares = {name: groups[name] for name in dict.fromkeys(names)}
        numbers = {name: number for number, name in enumerate(shares)}
        # The factor 1 - 2^-48 keeps the sum of squares below C^2 in spite of rounding.
        scale = l2_norm_clip / math.hypot(*shares.values()) * (1.0 - 2.0**-48)
        clips = tuple(scale * share for share in shares.values())
        return tuple(numbers[name] for name in names), clips

    def remarks(self) -> list[str]:
        """Returns sentences on these settings for the privacy statement."""
        remarks = []
        if self.groups is not None:
            remarks.append(
                "Gradients are clipped in groups of weights, each to its own public norm; "
                "the squares of these norms add up to the square of the l2 norm clip."
            )
        if self.scaling is not None:
            remarks.append(
                "Gradients are clipped and noised after each coordinate was multiplied by "
                "a scale from the noisy gradients of earlier steps; the l2 norm clip "
                "applies to scaled gradients."
            )
        return remarks


FLAT = Clipping()
# Larger loss scales make every float32 gradient infinite.
_LARGEST_SCALE = 2**127


class Clip(NamedTuple):
    """The settings for clipping the gradients of one batch.

    Attributes:
      groups: the group number of each trainable variable.
      norms: clip norms of the groups; their squares add up to at most C^2.
      is_automatic: True for automatic clipping (AUTO-S, see `Clipping`).
      scale: the power of two that multiplies losses in the backward pass.
      scales: factors that multiply gradient coordinates before clipping, one tensor per
        variable; empty if there are none.
    """

    groups: tuple[int, ...]
    norms: tuple[float, ...]
    is_automatic: bool
    scale: float
    scales: tuple[tf.Tensor, ...] = ()

    def allowed(self, shares: tf.Tensor | None) -> tf.Tensor:
        """Returns the norm to which each group of each example's gradient is clipped.

        Args:
          shares: None; or the fraction of the clip norm for each example, [B].

        Returns:
          [G, B] float64; [G, 1] if `shares` is None.
        """
        norms = tf.constant([[norm] for norm in self.norms], tf.float64)
        return norms if shares is None else norms * tf.cast(shares, tf.float64)

    def unscaled(self, numbers: tf.Tensor, power: int = 1) -> tf.Tensor:
        """Divides numbers by the loss scale, or by a power of it."""
        return numbers if self.scale == 1.0 else numbers / self.scale**power

    def weights(
        self, bounds: tf.Tensor, allowed: tf.Tensor, shares: tf.Tensor | None
    ) -> tf.Tensor:
        """Returns the factors by which gradients are multiplied to clip them.

        If an example has a share of 0, or a bound is not finite, factors are undefined.

        Args:
          bounds: upper bounds of the squared norms of gradients, [G, B] float64.
          allowed: the clip norms, as the method `allowed` returns them.
          shares: None; or fractions of the clip norm, [B] float32, in [0, 1].

        Returns:
          [G, B] float32. With norm = sqrt(bound), a factor is min(1, allowed / norm).
          For automatic clipping (AUTO-S, Bu et al., 2022, arXiv:2206.07136), it is
          allowed / (norm + `GAMMA` * share). The quotients are reduced by a factor of
          1 - 2^-20, so that no rounding error makes a clipped gradient too long.
        """
        norms = tf.sqrt(bounds)
        if self.is_automatic:
            norms += GAMMA if shares is None else GAMMA * tf.cast(shares, tf.float64)
        ratios = allowed / norms * (1.0 - 2.0**-20)
        if not self.is_automatic:
            ratios = tf.where(norms > allowed, ratios, tf.ones_like(ratios))
        return tf.cast(ratios, tf.float32)


def how_to_clip(
    model: keras.Model,
    l2_norm_clip: float,
    clipping: Clipping,
    loss_scale_factor: float | None,
    scales: Sequence[tf.Tensor] | None,
) -> Clip:
    """Makes a `Clip` from arguments of `clipped_gradient_sums`.

    Raises:
      UnsupportedModelError: if a layer computes in float16 without a loss scale.
    """
    for layer in all_layers(model):
        if layer.compute_dtype == "float16" and loss_scale_factor is None:
            raise UnsupportedModelError(
                f"Layer {layer.name!r} ({type(layer).__name__}) computes in float16, "
                "where small gradients vanish. Call `PrivateOptimizer(..., "
                "loss_scale_factor=1024)`; or use the dtype policy `mixed_bfloat16`, "
                "which needs no loss scale."
            )
    groups, norms = clipping.grouping(model.trainable_variables, l2_norm_clip)
    return Clip(
        groups,
        norms,
        clipping.kind == "automatic",
        float(loss_scale_factor or 1.0),
        tuple(tf.convert_to_tensor(scale, tf.float32) for scale in scales or ()),
    )


def check_loss_scale(value: Any) -> None:
    """Raises ValueError unless `value` is None or a power of two >= 1."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    is_scale = is_number and 1 <= value <= _LARGEST_SCALE
    if value is not None and not (is_scale and math.frexp(value)[0] == 0.5):
        raise ValueError(
            f"loss_scale_factor must be a power of two >= 1, such as 1024, but found "
            f"{value!r}. Division by other numbers is not exact."
        )
