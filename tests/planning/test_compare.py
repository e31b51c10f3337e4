"""Tests the table that `compare` returns, and plans made with its best mechanism."""

import numpy as np
import pytest

import tf_bandmf
from tf_bandmf import strategies, workloads
from tf_bandmf.participation import BallsInBins, MinSep
from tf_bandmf.planning import compare
from tf_bandmf.strategies import registry

NAMES = ["identity", "bsr:4", "bisr:4", "lambda_cgd:0.9", "tree", "dense"]
WORKLOAD, PARTICIPATION = workloads.prefix_sum(60), MinSep(12)
RATES = {"num_steps": 60, "sampling": PARTICIPATION}
BUDGET = {"epsilon": 2.0, "delta": 1e-5}
DATA = {"num_examples": 2000, "batch_size": 100, "epochs": 4}
CLOSED = ("identity", "lambda_cgd", "bisr", "bsr")


@pytest.fixture(scope="module")
def table():
    return tf_bandmf.compare([*NAMES, "lambda_cgd", "blt"], **RATES)


def test_rows_say_what_a_mechanism_costs_and_how_it_was_found(table):
    cases = ("bsr:4", 4, 3, 0), ("bisr:4", 4, 0, 3), ("dense", None, 0, 59)
    for name, bands, memory_vectors, regenerations in cases:
        row = table[name]
        assert (row.bands, row.memory_vectors) == (bands, memory_vectors)
        assert row.regenerations_per_step == regenerations
    banded = strategies.bsr(WORKLOAD, 4)
    largest = banded.max_se(WORKLOAD, PARTICIPATION)
    assert table["bsr:4"].max_se == pytest.approx(largest)
    searched, blt = table.rows[-2:]
    assert blt.bands is None and 1 <= blt.memory_vectors <= 4
    assert table["dense"].converged and 0 <= table["dense"].optimality_gap <= 1e-6
    assert not table["dense"].sensitivity_is_exact
    assert table["bsr:4"].converged and table["bsr:4"].optimality_gap is None
    assert searched.mechanism.startswith("lambda_cgd:0.")
    assert searched.rmse <= table["lambda_cgd:0.9"].rmse
    assert table.best().rmse <= 1.01 * min(row.rmse for row in table)


def test_without_memory_only_what_keeps_nothing_is_compared():
    table = tf_bandmf.compare(CLOSED, max_memory_vectors=0, **DATA, **BUDGET)
    assert all(row.memory_vectors == 0 for row in table)
    assert table.excluded == {"bsr": "max_memory_vectors must be at least 1, found 0."}
    assert table.mechanism.startswith("bisr:")
    assert table.mechanism in table.reason
    assert "Not compared: bsr: max_memory_vectors must be at least 1" in str(table)


def test_a_plan_keeps_the_table_in_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "auto_names", lambda *_: CLOSED)
    plan = tf_bandmf.plan("auto", **DATA, **BUDGET)
    plan.save(tmp_path / "plan.json")
    loaded = tf_bandmf.Plan.load(tmp_path / "plan.json")
    assert loaded.fingerprint == plan.fingerprint
    for made in (plan, loaded):
        row = made.choice.best()
        # The numbers differ slightly, because the plan rounds coefficients to float32.
        np.testing.assert_allclose(plan.rmse(), row.rmse, rtol=1e-5)
    assert str(loaded.choice) == str(plan.choice)
    assert tf_bandmf.plan("identity", **DATA, **BUDGET).choice is None


@pytest.mark.parametrize("sampling", ["balls-in-bins", "cyclic-poisson", "b-min-sep"])
@pytest.mark.slow_cases("b-min-sep")
def test_a_plan_has_the_mechanism_of_the_best_row_with_noise_in_full(sampling):
    use = {"num_examples": 320, "batch_size": 16, "epochs": 4, "sampling": sampling}
    names = ["identity", "bsr:2", "bsr:4"]
    table = tf_bandmf.compare(names, **use, **BUDGET)
    for row in table:
        plan = tf_bandmf.plan(row.mechanism, **use, **BUDGET)
        assert row.is_rough
        assert row.rmse == pytest.approx(plan.rmse(), rel=0.02)
    searched = tf_bandmf.plan("bsr", **use, **BUDGET)
    named = tf_bandmf.plan(searched.choice.mechanism, **use, **BUDGET)
    assert searched.noise_multiplier == named.noise_multiplier


def test_a_mechanism_whose_simulation_overflows_for_large_gamma_is_compared():
    """The search for gamma continues if the simulation overflows for some gamma.

    With momentum and gamma = 0.55, entries of C grow by 4.5% per step, and overflow.
    """
    table = tf_bandmf.compare(
        ["bifr:2", "bifr:2:0.3", "bifr:2:0.5"],
        sampling=BallsInBins(160, 16, 200),
        workload="sgd:momentum=0.9",
        epsilon=3.0,
        delta=1e-5,
    )
    row, *others = table
    assert 0.3 < float(row.mechanism.split(":")[2]) < 0.55
    assert all(row.rmse < other.rmse for other in others)


HONEST_ACCOUNTANT = BallsInBins.accountant


def failing_accountant(self, matrix, confidence=None):
    """Returns the real accountant, or raises an error if the matrix has several bands."""
    if matrix.bands > 1:
        raise ArithmeticError("The accountant lost itself.")
    return HONEST_ACCOUNTANT(self, matrix, confidence)


def test_a_row_that_fails_does_not_end_a_comparison(monkeypatch):
    monkeypatch.setattr(BallsInBins, "accountant", failing_accountant)
    use = {"sampling": BallsInBins(80, 16, 4), **BUDGET}
    names = ["lambda_cgd:0.5", "identity", "bisr:2"]
    table = tf_bandmf.compare(names, **use)
    assert [row.mechanism for row in table.rows] == ["identity"]
    assert list(table.excluded) == ["lambda_cgd:0.5", "bisr:2"]
    assert str(table).count("The accountant lost itself.") == 2


@pytest.mark.slow_cases("cyclic-fixed-size")
@pytest.mark.parametrize("last", ["balls-in-bins", "cyclic-fixed-size"])
def test_samplings_are_compared_in_one_table(last):
    use = {"num_examples": 320, "batch_size": 32, "epochs": 4, **BUDGET}
    samplings = ["fixed-order", "poisson", last]
    table = tf_bandmf.compare(["identity", "bisr:4"], sampling=samplings, **use)
    # Poisson sampling amplifies only the mechanism identity. Samplings with another
    # adjacency are excluded from the table.
    assert "bisr:4, poisson" in table.excluded
    used = {row.sampling for row in table}
    assert used == set(samplings) - {"cyclic-fixed-size"}
    assert ("cyclic-fixed-size" in table.excluded) == (last not in used)
    for row in table:
        (alone,) = tf_bandmf.compare([row.mechanism], sampling=row.sampling, **use)
        assert alone.rmse == pytest.approx(row.rmse, rel=1e-2)
    best = table.best()
    assert f"Chosen: {best.mechanism} ({best.sampling})," in str(table)


def test_long_runs_compare_drafts_and_build_the_chosen_one_in_full(monkeypatch):
    given = {"num_examples": 640, "batch_size": 10, "epochs": 10, **BUDGET}
    full = tf_bandmf.compare(["bandinv:32"], **given)["bandinv:32"]
    monkeypatch.setattr(compare, "LONG_RUN", 639)
    plan = tf_bandmf.plan("auto", **given)
    draft = plan.choice["bandinv:32"]
    assert full.rmse < draft.rmse < 1.005 * full.rmse
    assert plan.choice.best() == draft
    assert plan.rmse() == pytest.approx(full.rmse)
