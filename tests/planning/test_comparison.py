"""The comparison table."""

import dataclasses
import json
import math

import numpy as np
import pytest

from tf_bandmf import strategies, workloads
from tf_bandmf.accounting.guarantee import Calibration
from tf_bandmf.participation import FixedEpochOrder, MinSep
from tf_bandmf.planning import comparison
from tf_bandmf.strategies import registry

NAMES = ["identity", "bsr:4", "bisr:4", "lambda_cgd:0.9", "lambda_cgd", "blt", "tree"]
WORKLOAD, PARTICIPATION = workloads.prefix_sum(60), MinSep(12)


@pytest.fixture(scope="module")
def table():
    return comparison.compare(WORKLOAD, PARTICIPATION, [*NAMES, "dense"])


def test_errors_are_those_of_the_dense_formula(table):
    assert [row.mechanism for row in table] == [*NAMES, "dense"]
    a = WORKLOAD.to_dense()
    for row in table:
        family, options = registry.parse(row.mechanism)
        strategy = registry.build_strategy(family, WORKLOAD, PARTICIPATION, **options)
        factor = a @ np.linalg.inv(strategy.matrix.to_dense())
        per_step = np.sum(factor**2, axis=1)
        np.testing.assert_allclose(row.rmse, np.sqrt(per_step.mean()) * row.sensitivity)
        np.testing.assert_allclose(
            row.max_se, np.sqrt(per_step.max()) * row.sensitivity
        )
        found = strategy.sensitivity(PARTICIPATION)
        assert (row.sensitivity, row.sensitivity_is_exact) == (
            found.value,
            found.is_exact,
        )


def test_rows_say_what_a_mechanism_costs_and_how_it_was_found(table):
    costs = {
        row.mechanism: (row.bands, row.memory_vectors, row.regenerations_per_step)
        for row in table
    }
    assert costs["identity"] == (1, 0, 0)
    assert costs["bsr:4"] == (4, 3, 0)
    assert costs["bisr:4"] == (4, 0, 3)
    assert costs["lambda_cgd:0.9"] == (2, 0, 1)
    assert costs["dense"] == (None, 0, 59)
    assert costs["blt"][0] is None and 1 <= costs["blt"][1] <= 4
    assert table["dense"].converged and 0 <= table["dense"].optimality_gap <= 1e-6
    assert not table["dense"].sensitivity_is_exact
    assert table["bsr:4"].converged and table["bsr:4"].optimality_gap is None
    assert table["lambda_cgd"].rmse <= table["lambda_cgd:0.9"].rmse
    assert table.best().rmse == min(row.rmse for row in table)


def test_a_calibrator_scales_all_errors_in_one_place():
    plain = comparison.compare(WORKLOAD, PARTICIPATION, NAMES[:3])
    budget = comparison.compare(
        WORKLOAD, PARTICIPATION, NAMES[:3], comparison.unamplified(2.5)
    )
    for one, scaled in zip(plain, budget):
        assert scaled.normalization == "sensitivity"
        assert scaled.noise_multiplier == pytest.approx(2.5, rel=1e-14)
        np.testing.assert_allclose(scaled.noise_stddev, 2.5 * one.sensitivity)
        np.testing.assert_allclose(scaled.rmse, 2.5 * one.rmse)

    def per_column(strategy, sensitivity):
        norm = float(strategy.matrix.column_norms().max())
        return Calibration(0.7 * norm, is_amplified=True)

    amplified = comparison.compare(WORKLOAD, PARTICIPATION, NAMES[:3], per_column)
    for one, row in zip(plain, amplified):
        assert row.normalization == "column_norm"
        np.testing.assert_allclose(
            row.rmse, one.rmse * row.noise_stddev / one.noise_stddev
        )


def test_existing_strategies_can_be_compared():
    strategy = strategies.bisr(WORKLOAD, 4)
    table = comparison.compare(WORKLOAD, PARTICIPATION, ["bisr:4", strategy])
    assert table.rows[0].rmse == table.rows[1].rmse
    assert table.rows[1].mechanism == "bisr"


def test_fixed_epoch_order_and_learning_rates():
    rates = np.linspace(1.0, 0.1, 24)
    workload = workloads.momentum_sgd(24, 0.9, 0.99, rates)
    fixed = FixedEpochOrder(num_examples=8, batch_size=1, epochs=3)
    table = comparison.compare(workload, fixed, ["identity", "bisr:4", "blt", "dense"])
    assert all(row.sensitivity_is_exact for row in table)
    assert table.best().mechanism == "dense"


def test_text_and_records(table):
    text = str(table)
    assert text.startswith("prefix workload, 60 steps.")
    lines = text.split("\n")
    assert len(lines) == 2 + len(table)
    assert any("<=" in line for line in lines if line.startswith("dense"))
    assert not any("<=" in line for line in lines if line.startswith("bsr"))
    records = json.loads(json.dumps(table.to_records(), allow_nan=False))
    assert [record["mechanism"] for record in records] == [*NAMES, "dense"]
    assert all(math.isfinite(record["seconds"]) for record in records)
    with pytest.raises(KeyError, match="mechanism must be one of"):
        table["nothing"]


def test_rows_are_immutable(table):
    with pytest.raises(dataclasses.FrozenInstanceError):
        table.rows[0].rmse = 0.0


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "Give at least one mechanism of amplified, amplified_blt, "),
        (["nothing"], "mechanism must be one of amplified, amplified_blt, "),
        (["identity:3"], "takes no value"),
        (["bsr:four"], "bsr takes bands as its value"),
        (["lambda_cgd:x"], "lambda_cgd takes lambda as its value"),
        (["lambda_cgd:1.5"], r"lambda must be in \[0, 1\)"),
        (["bsr:61"], "bands must be a whole number from 1 to num_steps = 60"),
        (["tree:normalized"], "has no normalized variant"),
        (["blt:0"], "num_buffers must be a whole number from 1 to 10"),
    ],
)
def test_bad_mechanisms_are_refused_before_anything_is_built(names, message):
    with pytest.raises(ValueError, match=message):
        comparison.compare(WORKLOAD, PARTICIPATION, names)


def test_separations_and_noise_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="min_separation must be <= num_steps"):
        comparison.compare(WORKLOAD, MinSep(61), ["identity"])
    for multiplier in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="noise_multiplier must be finite"):
            comparison.unamplified(multiplier)
    broken = lambda strategy, sensitivity: Calibration(math.nan)  # noqa: E731
    with pytest.raises(ValueError, match="must be finite and > 0, found nan"):
        comparison.compare(WORKLOAD, PARTICIPATION, ["identity"], broken)
