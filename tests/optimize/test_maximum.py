"""Tests strategies that minimize the maximum error of a step, and bounds on it."""

import numpy as np
import pytest

from tf_bandmf import strategies, workloads


@pytest.mark.slow
def test_general_columns_are_certified_to_a_thousandth_by_default():
    workload = workloads.prefix_sum(24)
    actual = strategies.optimized_banded(workload, 4, objective="max")
    largest = np.max(actual.per_step_squared_error(workload))
    assert actual.diagnostics["value"] == pytest.approx(largest)
    assert actual.diagnostics["optimality_gap"] < 1e-3
    # The optimum from another start is better by at most the stated optimality gap.
    start = strategies.bsr(workload, 4).normalize_columns()
    other = strategies.optimized_banded(
        workload, 4, objective="max", start=start, max_iterations=100
    )
    least = np.max(other.per_step_squared_error(workload))
    assert least > largest * (1.0 - actual.diagnostics["optimality_gap"])
