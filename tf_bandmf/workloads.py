"""Workloads, which describe how an optimizer adds up noisy gradients in the model.

The model after step `i` contains a weighted sum of the gradients of all steps so far. Row
`i` of the workload matrix `A` contains the coefficients of this sum. In this module,
`A` always has the form `T^-1 diag(learning_rates)` with a banded Toeplitz matrix `T`.
Therefore errors can be computed in time O(n) for n steps.
"""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any

import numpy as np
import numpy.typing as npt

from tf_bandmf import matrices

# The maximum learning rate. With this limit, fourth powers of sums of rates do not
# overflow.
_LARGEST_RATE = 1e50


def _numbers(name: str, values: Any) -> np.ndarray:
    try:
        return np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise ValueError(
            f"{name} must be a sequence of numbers, one for each step, found {values!r}."
        ) from None


@dataclasses.dataclass(frozen=True, eq=False)
class Workload:
    """A lower-triangular n x n workload matrix `A = T^-1 diag(learning_rates)`.

    Create a workload with `prefix_sum`, `momentum_sgd`, `identity` or `from_inverse`.

    Attributes:
      name: name of the workload in tables and statements.
      num_steps: n, the number of steps.
      inverse_coefficients: the diagonals of the banded Toeplitz `T`, shape [q + 1].
      learning_rates: relative learning rate of each step, shape [n], between 1e-50 and
        1e50, or None for a constant rate. Only the ratios of the rates affect the
        choice of a strategy.
      momentum: the momentum of `momentum_sgd`, which is 0 for `prefix_sum`; None for
        other workloads.
      decay: the decay of `momentum_sgd`, which is 1 for `prefix_sum`; None for other
        workloads.
    """

    name: str
    num_steps: int
    inverse_coefficients: np.ndarray
    learning_rates: npt.ArrayLike | None = None
    momentum: float | None = None
    decay: float | None = None

    def __post_init__(self) -> None:
        # The constructor of this matrix validates num_steps and the coefficients.
        toeplitz = matrices.ToeplitzBanded(self.inverse_coefficients, self.num_steps)
        object.__setattr__(self, "inverse_coefficients", toeplitz.coefficients)
        object.__setattr__(self, "num_steps", toeplitz.num_rows)
        if self.learning_rates is not None:
            rates = _numbers("learning_rates", self.learning_rates)
            rates.flags.writeable = False
            if rates.shape != (self.num_steps,):
                raise ValueError(
                    f"learning_rates must give one rate for each of the "
                    f"{self.num_steps} steps, found shape {rates.shape}."
                )
            if not np.all(np.isfinite(rates) & (rates > 0.0)):
                raise ValueError("learning_rates must be finite and > 0.")
            if rates.min() < 1.0 / _LARGEST_RATE or rates.max() > _LARGEST_RATE:
                raise ValueError(
                    f"learning_rates must be between {1.0 / _LARGEST_RATE:g} and "
                    f"{_LARGEST_RATE:g}, but found rates from {rates.min():g} to "
                    f"{rates.max():g}. Divide all rates by the first rate."
                )
            object.__setattr__(self, "learning_rates", rates)

    @property
    def is_toeplitz(self) -> bool:
        return self.learning_rates is None

    def inverse(self) -> matrices.LowerTriangular:
        """Returns the inverse of the workload matrix `A`."""
        toeplitz = matrices.ToeplitzBanded(self.inverse_coefficients, self.num_steps)
        if self.learning_rates is None:
            return toeplitz
        rates = np.asarray(self.learning_rates)
        return matrices.RowBanded(toeplitz.as_rows() / rates[:, None])

    def first_column(self) -> np.ndarray:
        """Returns the first column of the inverse of the matrix `T`, shape [n]."""
        toeplitz = matrices.ToeplitzBanded(self.inverse_coefficients, self.num_steps)
        return toeplitz.solve(np.eye(1, self.num_steps)[0])

    def to_dense(self) -> np.ndarray:
        """Returns the workload matrix `A` as an array, shape [n, n]."""
        return matrices.Inverse(self.inverse()).to_dense()

    def to_config(self) -> dict[str, Any]:
        return dict(vars(self))


def is_number(value: Any) -> bool:
    """Returns True for an int or float, including NumPy's types, but not for a bool."""
    number = isinstance(value, (int, float, np.integer, np.floating))
    return number and not isinstance(value, bool)


def check_workload(workload: Any) -> None:
    """Raises TypeError if the argument is not a `Workload`."""
    if not isinstance(workload, Workload):
        raise TypeError(
            f"workload must be a Workload, but found {workload!r}. Use, for example, "
            f"workloads.prefix_sum(1000)."
        )


def resolve(workload: Workload | str | None, num_steps: int) -> Workload:
    """Converts a `workload` argument to a `Workload`; None means prefix sums.

    Raises:
      TypeError: if the argument is not a `Workload`, a name (see `parse`) or None.
      ValueError: if the name is unknown.
    """
    if workload is None:
        return prefix_sum(num_steps)
    if isinstance(workload, str):
        return parse(workload, num_steps)
    check_workload(workload)
    return workload


def parse(specification: str, num_steps: int) -> Workload:
    """Parses a workload name, such as "prefix" or "sgd:momentum=0.9,decay=0.999".

    Args:
      specification: "prefix", "identity" or "sgd". The name "sgd" takes `momentum`,
        `decay` or both; these are the arguments of `momentum_sgd`.
      num_steps: number of steps.

    Raises:
      ValueError: if the specification does not have this form.
    """
    name, _, values = specification.partition(":")
    if name in ("prefix", "identity") and not values:
        return prefix_sum(num_steps) if name == "prefix" else identity(num_steps)
    if name != "sgd":
        close = difflib.get_close_matches(name, ("prefix", "identity", "sgd"), n=1)
        raise ValueError(
            f'workload must be "prefix", "identity", or "sgd" with your numbers, as '
            f'in "sgd:momentum=0.9,decay=0.999", but found {specification!r}.'
            + (f" Did you mean {close[0]}?" if close else "")
        )
    settings: dict[str, float] = {}
    for setting in filter(None, values.split(",")):
        key, _, value = setting.partition("=")
        try:
            if key not in ("momentum", "decay") or key in settings:
                raise ValueError
            settings[key] = float(value)
        except ValueError:
            raise ValueError(
                f"Workload sgd takes momentum=NUMBER and decay=NUMBER, found {setting!r}."
            ) from None
    return momentum_sgd(num_steps, **settings)


def prefix_sum(num_steps: int, learning_rates: npt.ArrayLike | None = None) -> Workload:
    """Returns the workload of plain SGD: prefix sums, with `A[i, j] = 1` for j <= i.

    With learning rates, `A[i, j]` is the learning rate of step j instead.
    """
    return momentum_sgd(num_steps, learning_rates=learning_rates)


def momentum_sgd(
    num_steps: int,
    momentum: float = 0.0,
    decay: float = 1.0,
    learning_rates: npt.ArrayLike | None = None,
) -> Workload:
    """Returns the workload of SGD with momentum and weight decay (arXiv:2505.12128, eq. 4).

    For gradients `x`, weights `theta` and learning rates `eta`, the updates are
    `m[i] = momentum m[i-1] + eta[i] x[i]` and `theta[i] = decay theta[i-1] - m[i]`.
    Therefore, up to the sign, `A = T^-1 diag(eta)` for the matrix
    `T = (I - decay S)(I - momentum S)`, where `S` shifts a sequence by one step.

    Args:
      num_steps: number of steps.
      momentum: momentum (the paper's beta), in [0, 1).
      decay: factor (the paper's alpha), in (0, 1], by which each step multiplies the
        weights. A Keras `weight_decay` of w at learning rate eta corresponds to
        `decay = 1 - eta w`.
      learning_rates: optional relative learning rate of each step, shape [n].

    Raises:
      ValueError: if momentum or decay is out of range, or momentum >= decay.
    """
    if not (is_number(momentum) and 0.0 <= momentum < 1.0):
        raise ValueError(f"momentum must be in [0, 1), found {momentum!r}.")
    if not (is_number(decay) and 0.0 < decay <= 1.0):
        raise ValueError(f"decay must be in (0, 1], found {decay!r}.")
    num_steps = matrices.check_num_rows(num_steps)
    if momentum >= decay:
        raise ValueError(f"momentum must be < decay ({decay}), found {momentum}.")
    plain = momentum == 0.0 and decay == 1.0
    product = np.trim_zeros(np.convolve([1.0, -decay], [1.0, -momentum]), "b")
    return Workload(
        name="prefix" if plain else f"sgd(momentum={momentum:g}, decay={decay:g})",
        num_steps=num_steps,
        inverse_coefficients=product[:num_steps],
        learning_rates=learning_rates,
        momentum=float(momentum),
        decay=float(decay),
    )


def identity(num_steps: int) -> Workload:
    """Returns the workload in which each step outputs only its own gradient: `A = I`."""
    return Workload("identity", num_steps, np.array([1.0]))


def from_inverse(
    num_steps: int,
    inverse_coefficients: npt.ArrayLike,
    learning_rates: npt.ArrayLike | None = None,
    name: str = "custom",
) -> Workload:
    """Returns the workload with the matrix `A = T^-1 diag(learning_rates)`.

    Args:
      num_steps: number of steps.
      inverse_coefficients: the diagonals of the banded Toeplitz matrix `T`.
      learning_rates: optional relative learning rate of each step.
      name: name of the workload in tables and statements.
    """
    return Workload(name, num_steps, np.asarray(inverse_coefficients), learning_rates)
