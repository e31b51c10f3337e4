"""A summary of gradients on public or made-up data: their size and alignment."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from tf_bandmf.accounting.checks import check_positive, whole_number


@dataclasses.dataclass(frozen=True, eq=False)
class GradientSample:
    """Per-example gradients of a model on data that need no protection.

    WARNING: whatever is computed from private examples releases something about them,
    and no guarantee of a plan covers it. Use public data of the same kind, or made-up
    data.

    Attributes:
      norms: l2 norms of the examples' gradients, shape [m], float64, >= 0.
      alignment: in [0, 1], the norm of the mean of normalized gradients for many
        examples: the root of the mean cosine between two examples' gradients. It is the
        part of the clip norm that the mean of gradients keeps where all are clipped.
      num_parameters: d, the number of parameters of the model.
      fan_in: inputs of a unit, summed over the layers, or None; see `advise`.
    """

    norms: np.ndarray
    alignment: float
    num_parameters: int
    fan_in: float | None = None

    def __post_init__(self) -> None:
        norms = _floats("norms", self.norms, 1)
        if norms.size < 2 or not np.all(np.isfinite(norms) & (norms >= 0.0)):
            raise ValueError(
                "norms must be at least two finite numbers >= 0, of examples that need "
                "no protection."
            )
        if float(np.median(norms)) == 0.0:
            raise ValueError(
                "Half of the gradients are zero: the model does not learn from these "
                "examples. Use other ones, or other initial weights."
            )
        object.__setattr__(self, "norms", norms)
        if not (math.isfinite(self.alignment) and 0.0 <= self.alignment <= 1.0):
            raise ValueError(f"alignment must be in [0, 1], found {self.alignment!r}.")
        whole_number("num_parameters", self.num_parameters)
        if self.fan_in is not None:
            check_positive("fan_in", self.fan_in)

    def __repr__(self) -> str:
        fan_in = "None" if self.fan_in is None else f"{self.fan_in:.4g}"
        return (
            f"GradientSample({self.norms.size} examples, median norm "
            f"{np.median(self.norms):.3g}, alignment {self.alignment:.3g}, "
            f"{self.num_parameters} parameters, fan-in {fan_in})"
        )

    @classmethod
    def of_sum(
        cls,
        norms: Any,
        normalized_sum: float,
        num_parameters: int,
        fan_in: float | None = None,
    ) -> GradientSample:
        """From the norm of the sum of normalized gradients.

        With s that norm and m the number of examples whose gradient is not zero, the mean
        cosine of two different examples is (s^2 - m) / (m (m - 1)); where it is negative
        by chance, alignment is 0.

        Args:
          norms: of the gradients, shape [m].
          normalized_sum: norm of the sum of gradients that are divided by their norms.
          num_parameters: d.
          fan_in: or None.

        Raises:
          ValueError: if there are fewer than two gradients that are not zero, or a number
            is out of range.
        """
        norms = _floats("norms", norms, 1)
        count = int(np.count_nonzero(norms))
        if count < 2:
            raise ValueError(
                f"At least two gradients must not be zero, found {count}: use more "
                f"examples."
            )
        cosine = (float(normalized_sum) ** 2 - count) / (count * (count - 1))
        alignment = math.sqrt(min(max(cosine, 0.0), 1.0))
        return cls(norms, alignment, num_parameters, fan_in)

    @classmethod
    def of_gradients(
        cls, gradients: Any, fan_in: float | None = None
    ) -> GradientSample:
        """The sample of whole gradients, an array [m, d], one row for each example."""
        rows = _floats("gradients", gradients, 2)
        norms = np.linalg.norm(rows, axis=1)
        safe = np.where(norms > 0.0, norms, 1.0)
        total = float(np.linalg.norm((rows / safe[:, None]).sum(axis=0)))
        return cls.of_sum(norms, total, rows.shape[1], fan_in)


def _floats(name: str, values: Any, dimensions: int) -> np.ndarray:
    try:
        found = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(f"{name} must be an array of numbers.") from None
    if found.ndim != dimensions or not np.all(np.isfinite(found)):
        raise ValueError(
            f"{name} must be an array of finite numbers with {dimensions} dimension(s), "
            f"found shape {found.shape}."
        )
    found.flags.writeable = False
    return found
