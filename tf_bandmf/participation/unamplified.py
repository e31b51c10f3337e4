"""The accountant of participations from whose randomness nothing is claimed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tf_bandmf.analysis.sensitivity import sensitivity
from tf_bandmf.matrices import LowerTriangular
from tf_bandmf.participation.base import Participation

if TYPE_CHECKING:
    from tf_bandmf.accounting.base import Accountant


def unamplified_accountant(
    matrix: LowerTriangular, participation: Participation, name: str | None = None
) -> Accountant:
    """One Gaussian mechanism with the strategy's sensitivity under the participation.

    Args:
      matrix: C.
      participation: gives separation and number of participations.
      name: of an accountant whose guarantee is a bound; None for the Gaussian
        mechanism itself, exact if the sensitivity is.
    """
    # dp-accounting takes a second to import.
    from tf_bandmf.accounting import gaussian

    found = sensitivity(matrix, participation, matrix.num_rows)
    if name is None:
        return gaussian.GaussianAccountant(found.value, found.is_exact)
    return gaussian.GaussianAccountant(found.value, False, name)
