"""Strategies that minimize the largest per-step error, and bounds on this error."""

import numpy as np
import pytest

from tf_bandmf import matrices, strategies, workloads
from tf_bandmf.optimize import banded
from tf_bandmf.optimize.options import Options
from tf_bandmf.participation import MinSep


@pytest.mark.slow
def test_general_columns_are_certified_to_a_thousandth_by_default():
    workload = workloads.prefix_sum(24)
    actual = strategies.optimized_banded(workload, MinSep(4), 4, objective="max")
    largest = np.max(actual.per_step_squared_error(workload))
    assert actual.diagnostics["value"] == pytest.approx(largest)
    assert actual.diagnostics["optimality_gap"] < 1e-3
    # The optimum from another start is not better by more than the stated gap.
    start = strategies.bsr(workload, 4).matrix.normalize_columns().as_rows()
    columns = matrices.columns_from_rows(start)
    _, other = banded.optimize(workload, "max", columns, Options(max_iterations=100))
    assert other.value > largest * (1.0 - actual.diagnostics["optimality_gap"])
