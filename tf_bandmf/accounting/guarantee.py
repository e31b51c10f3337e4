"""Classes for the results of accountants, and `fill`, which formats their values."""

from __future__ import annotations

import dataclasses
import decimal
import string
from typing import Any

from tf_bandmf.accounting import checks

KINDS = ("exact", "bound", "estimate")
# The suffix of an accountant's name in a guarantee without amplification by sampling.
UNAMPLIFIED = "without amplification (exact Gaussian mechanism)"
ZERO_OUT = (
    "Zero-out: the contribution of one unit is replaced by zero (add-or-remove with a "
    "public number of steps and batch size)."
)
REPLACE_ONE = (
    "Replace-one: one unit is replaced by any other, or by one without contribution "
    "(zero-out)."
)


@dataclasses.dataclass(frozen=True)
class Guarantee:
    """An (epsilon, delta)-DP guarantee, and how certain its values are.

    Attributes:
      epsilon, delta: the parameters of the guarantee.
      kind: "exact" if epsilon and delta are those of the mechanism itself, up to
        numerical errors that only increase them; "bound" for a proven upper bound that
        may be loose; "estimate" for a simulated value that may be too small.
      accountant: name of the accountant that computed the guarantee.
      adjacency: definition of neighboring data sets.
      confidence: None, or the probability (over the accountant's simulation, not over
        the mechanism) with which a simulated bound holds.
      zcdp_rho: rho of zero-concentrated DP for a guarantee without amplification by
        sampling; else None.
    """

    epsilon: float
    delta: float
    kind: str
    accountant: str
    adjacency: str = ZERO_OUT
    confidence: float | None = None
    zcdp_rho: float | None = None

    def __post_init__(self) -> None:
        checks.check_word("kind", self.kind, KINDS)
        checks.check_positive("epsilon", self.epsilon)
        checks.check_delta(self.delta)
        if self.zcdp_rho is not None:
            checks.check_nonnegative("zcdp_rho", self.zcdp_rho)
        checks.check_confidence(self.confidence)
        if self.confidence is not None and self.kind != "bound":
            raise ValueError(
                f"confidence must be None unless kind='bound', but kind={self.kind!r}."
            )

    @property
    def is_unamplified(self) -> bool:
        """True if the guarantee does not claim amplification by sampling."""
        return UNAMPLIFIED in self.accountant

    @property
    def certainty(self) -> str:
        """The kind, or "simulated" for a bound that holds only with a `confidence`."""
        is_simulated = self.confidence is not None and not self.is_unamplified
        return "simulated" if is_simulated else self.kind


@dataclasses.dataclass(frozen=True)
class Calibration:
    """The noise standard deviation for a strategy, and the guarantee of a run with it.

    Attributes:
      noise_stddev: sigma on the **raw** `C` (not scaled to sensitivity 1), for
        l2_norm_clip = 1: `C x` is released with noise of this standard deviation in
        every entry.
      guarantee: guarantee of a run with this noise.
    """

    noise_stddev: float
    guarantee: Guarantee


_ROUNDED = {"up": decimal.ROUND_CEILING, "down": decimal.ROUND_FLOOR}


class _Formatter(string.Formatter):
    """Formats like `str.format`, but rounds "{value:.6g up}" up and "{:.6g down}" down.

    Digits after the tenth are ignored, because they are rounding errors.
    """

    def format_field(self, value: Any, format_spec: str) -> Any:
        form, _, way = format_spec.partition(" ")
        if way:
            with decimal.localcontext(decimal.Context(rounding=_ROUNDED[way])):
                value = float(format(decimal.Decimal(f"{value:.10g}"), form))
        return super().format_field(value, form)


# Fills values into the placeholders of a text, as `str.format` does. Privacy parameters
# must not be rounded down: fill("epsilon = {:.3g up}", 10.04) is "epsilon = 10.1".
# Lower bounds must not be rounded up: fill("{:.3g down}", 10.06) is "10".
fill = _Formatter().format
