"""The class `Strategy`: a matrix C, its family, and the properties of its noise."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from tf_bandmf import matrices
from tf_bandmf.analysis import error
from tf_bandmf.analysis import sensitivity as sensitivity_lib
from tf_bandmf.participation import Participation
from tf_bandmf.workloads import Workload


@dataclasses.dataclass(frozen=True, eq=False)
class Strategy:
    """A strategy matrix `C` for a fixed number of steps.

    Attributes:
      family: name of the family, such as "identity", "lambda_cgd", "bsr" or "bisr".
      matrix: `C`, n x n.
      parameters: the values that define the strategy within its family, for tables and
        plans.
      diagnostics: information about the optimization of C, such as convergence,
        gradient norm and certified optimality gap. Privacy guarantees do not depend on
        it.
    """

    family: str
    matrix: matrices.LowerTriangular
    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    diagnostics: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def num_steps(self) -> int:
        return self.matrix.num_rows

    @property
    def core(self) -> matrices.LowerTriangular:
        """`C` without its column scaling."""
        return self.matrix.core

    @property
    def is_inverse_banded(self) -> bool:
        """True if `C^-1` is banded. The generator then regenerates earlier noise."""
        return self.core.banded_inverse() is not None

    @property
    def memory_vectors(self) -> int:
        """The number of model-sized vectors that the noise generator stores.

        It is 0 for a dense strategy, for which the generator regenerates all earlier
        vectors.
        """
        return self.matrix.streaming().memory_vectors

    @property
    def regenerations_per_step(self) -> int:
        """The maximum number of earlier noise vectors that a step regenerates."""
        return self.matrix.streaming().regenerations

    def describe(self) -> str:
        """Returns the family and the parameters, such as "bisr(bands=4)"."""
        values = (
            f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in self.parameters.items()
        )
        inside = ", ".join(values)
        return f"{self.family}({inside})" if inside else self.family

    def sensitivity(self, participation: Participation) -> sensitivity_lib.Sensitivity:
        """Returns the sensitivity of C; see `tf_bandmf.analysis.sensitivity`."""
        return sensitivity_lib.sensitivity(self.matrix, participation)

    def per_step_squared_error(self, workload: Workload) -> np.ndarray:
        """Returns `||row i of A C^-1||^2` for every step i, shape [n].

        A is the matrix of the workload; see `tf_bandmf.analysis.error`.
        """
        return error.per_step_squared_error(self.matrix, workload)

    def rmse(self, workload: Workload, participation: Participation) -> float:
        """Returns the root mean squared error over all steps at noise multiplier 1.

        The value is `||A C^-1||_F / sqrt(n) * sens(C)` (arXiv:2601.22334, eq. 6), where
        A is the matrix of the workload and `sens(C)` the sensitivity.
        """
        mean = error.root_mean_squared_error(self.per_step_squared_error(workload))
        return mean * self.sensitivity(participation).value

    def max_se(self, workload: Workload, participation: Participation) -> float:
        """Returns the root mean squared error of the worst step at noise multiplier 1.

        This is the MaxSE of arXiv:2601.22334, eq. 7.
        """
        largest = error.max_error(self.per_step_squared_error(workload))
        return largest * self.sensitivity(participation).value

    def normalize_columns(self) -> Strategy:
        """Returns the strategy with the columns of `C` scaled to norm 1."""
        parameters = {**self.parameters, "column_normalized": True}
        return dataclasses.replace(
            self, matrix=self.matrix.normalize_columns(), parameters=parameters
        )

    def in_float32(self) -> Strategy:
        """Returns the strategy with its coefficients rounded to float32.

        The noise generator uses float32 coefficients. Therefore plans contain rounded
        strategies: their sensitivity and error are those of the matrix that generates
        the noise. If the columns were normalized, they are normalized again.
        """
        return dataclasses.replace(self, matrix=self.matrix.in_float32())

    def to_config(self) -> dict[str, Any]:
        return {**vars(self), "matrix": self.matrix.to_config()}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Strategy:
        matrix = matrices.from_config(config["matrix"])
        return cls(
            config["family"], matrix, config["parameters"], config["diagnostics"]
        )
