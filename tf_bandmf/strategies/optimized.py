"""Functions that several families of numerically optimized strategies use."""

from __future__ import annotations

import numpy as np

from tf_bandmf.accounting.checks import whole_number


def check_bands(bands: int, num_steps: int) -> int:
    """Returns `bands`, after checking that it is a possible number of diagonals.

    Raises:
      ValueError: if `bands` is not a whole number from 1 to `num_steps`.
    """
    return whole_number("bands", bands, most=num_steps, most_is="num_steps")


def fit_bands(x: np.ndarray, bands: int) -> np.ndarray:
    """Returns the first `bands` entries along axis 0, padded with zeros."""
    kept = x[:bands]
    return np.pad(kept, [(0, bands - len(kept))] + [(0, 0)] * (x.ndim - 1))
