"""The table of mechanisms, and the plan of its best row."""

import dataclasses
import json
import logging
import math

import numpy as np
import pytest

import tf_bandmf
from tf_bandmf import strategies, workloads
from tf_bandmf.participation import BallsInBins, MinSep, samplings
from tf_bandmf.planning.arguments import DataUse, resolve_data
from tf_bandmf.planning.compare import Search
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


def test_errors_are_those_of_the_dense_formula(table):
    assert [row.mechanism for row in table][:-2] == NAMES
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
        actual = strategy.sensitivity(PARTICIPATION)
        assert (row.sensitivity, row.sensitivity_is_exact) == (
            actual.value,
            actual.is_exact,
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
    searched, blt = table.rows[-2:]
    assert blt.bands is None and 1 <= blt.memory_vectors <= 4
    assert table["dense"].converged and 0 <= table["dense"].optimality_gap <= 1e-6
    assert not table["dense"].sensitivity_is_exact
    assert table["bsr:4"].converged and table["bsr:4"].optimality_gap is None
    assert searched.mechanism.startswith("lambda_cgd:0.")
    assert searched.rmse <= table["lambda_cgd:0.9"].rmse
    assert table.best().rmse <= 1.01 * min(row.rmse for row in table)


def test_a_budget_scales_all_errors():
    plain = tf_bandmf.compare(NAMES[:3], **RATES)
    noisy = tf_bandmf.compare(NAMES[:3], **RATES, **BUDGET)
    for one, scaled in zip(plain, noisy, strict=True):
        assert one.noise_multiplier == 1.0 and not scaled.is_rough
        assert scaled.normalization == "sensitivity"
        plan = tf_bandmf.plan(one.mechanism, **RATES, **BUDGET)
        assert scaled.noise_multiplier == pytest.approx(plan.noise_multiplier, rel=1e-8)
        np.testing.assert_allclose(scaled.rmse, scaled.noise_multiplier * one.rmse)


def test_existing_strategies_can_be_compared():
    strategy = strategies.bisr(WORKLOAD, 4)
    table = tf_bandmf.compare(["bisr:4", strategy], **RATES)
    assert table.rows[0].rmse == table.rows[1].rmse
    assert table.rows[1].mechanism == "bisr:4"


def test_fixed_epoch_order_and_learning_rates():
    workload = workloads.momentum_sgd(24, 0.9, 0.99, np.linspace(1.0, 0.1, 24))
    names = ["identity", "bisr:4", "blt", "dense"]
    use = {"num_examples": 8, "batch_size": 1, "epochs": 3}
    table = tf_bandmf.compare(names, workload=workload, **use)
    assert all(row.sensitivity_is_exact for row in table)
    assert min(table, key=lambda row: row.rmse).mechanism == "dense"


def test_text_and_records(table):
    text = str(table)
    assert text.startswith("prefix workload, 60 steps, noise multiplier 1.")
    lines = text.split("\n")
    assert len(lines) == 3 + len(table) and lines[-1] == table.reason
    assert any("<=" in line for line in lines if line.startswith("dense"))
    assert not any("<=" in line for line in lines if line.startswith("bsr"))
    records = json.loads(json.dumps(table.to_records(), allow_nan=False))
    assert [record["mechanism"] for record in records][:-2] == NAMES
    assert all(math.isfinite(record["seconds"]) for record in records)
    with pytest.raises(KeyError, match="mechanism must be one of"):
        table["nothing"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        table.rows[0].rmse = 0.0


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "at least one of amplified, banded, .*, found \\[\\]"),
        ("bisr", "mechanisms must be a list of names or strategies"),
        (["nothing"], "mechanism must be one of amplified, banded, "),
        (["identity:3"], "takes no value"),
        (["bsr:four"], "bsr takes bands as its value"),
        (["lambda_cgd:x"], "lambda_cgd takes lambda as its value"),
        (["lambda_cgd:1.5"], r"lambda must be in \[0, 1\)"),
        (["bsr:61"], "bands must be a whole number from 1 to num_steps = 60"),
        (["tree:normalized"], "has no normalized variant"),
        (["blt:0"], "num_buffers must be a whole number from 1 to 10"),
    ],
)
def test_bad_mechanisms_are_refused(names, message):
    with pytest.raises(ValueError, match=message):
        tf_bandmf.compare(names, **RATES)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"objective": "median"}, "objective must be"),
        ({"max_memory_vectors": -1}, "max_memory_vectors must be"),
        ({"mechanisms": ["bsr:4"], "max_memory_vectors": 2}, "keeps 3 vectors"),
        ({"sampling": MinSep(61)}, "min_separation must be <= num_steps"),
        ({"delta": 1e-5}, "exactly one of epsilon and noise_multiplier"),
        ({"epsilon": 2.0}, "delta is missing"),
    ],
)
def test_wrong_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        tf_bandmf.compare(**{"mechanisms": ["identity"], **RATES, **options})


def test_without_memory_only_what_keeps_nothing_is_compared():
    table = tf_bandmf.compare(CLOSED, max_memory_vectors=0, **DATA, **BUDGET)
    assert all(row.memory_vectors == 0 for row in table)
    assert table.excluded == {"bsr": "it keeps at least one vector."}
    assert table.mechanism.startswith("bisr:")
    assert table.mechanism in table.reason
    assert "Not compared: bsr: it keeps at least one vector." in str(table)


def test_a_mechanism_with_its_size_keeps_what_it_needs():
    use = {"num_steps": 80, "sampling": MinSep(80, 1)}
    (row,) = tf_bandmf.compare(["bsr:40"], **use, **BUDGET)
    assert row.memory_vectors == 39
    with pytest.raises(ValueError, match="39 vectors, found max_memory_vectors = 31"):
        tf_bandmf.compare(["bsr:40"], max_memory_vectors=31, **use, **BUDGET)


def test_no_other_number_of_bands_is_better():
    best = {row.mechanism.split(":")[0]: row for row in tf_bandmf.compare(
        CLOSED, **DATA, **BUDGET
    )}  # fmt: skip
    for family in ("bisr", "bsr"):
        names = [f"{family}:{p}" for p in (1, 2, 4, 8, 16)]
        for other in tf_bandmf.compare(names, **DATA, **BUDGET):
            assert best[family].rmse <= other.rmse


def test_of_equals_the_cheapest_is_the_best():
    # bsr:1 is identity.
    names = ["bsr:2", "bisr:2", "identity"]
    table = tf_bandmf.compare(names, workload="identity", **DATA, **BUDGET)
    assert table.mechanism == "identity"


def test_a_plan_keeps_the_table_in_its_file(tmp_path):
    plan = tf_bandmf.plan("auto", **DATA, **BUDGET)
    path = str(tmp_path / "plan.json")
    plan.save(path)
    loaded = tf_bandmf.Plan.load(path)
    assert loaded.fingerprint == plan.fingerprint
    for made in (plan, loaded):
        row = made.choice.best()
        # The plan rounds coefficients to float32.
        np.testing.assert_allclose(plan.rmse(), row.rmse, rtol=1e-5)
    assert str(loaded.choice) == str(plan.choice)
    assert tf_bandmf.plan("identity", **DATA, **BUDGET).choice is None


@pytest.mark.parametrize("sampling", ["balls-in-bins", "cyclic-poisson"])
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


def test_amplified_lambda_is_smaller_and_better_than_the_unamplified_one():
    """arXiv:2601.22334, section 5.1. The simulation has fixed seeds."""
    participation = BallsInBins(2000, 100, 4)
    plain = strategies.optimized_lambda_cgd(workloads.prefix_sum(80), participation)
    names = ["lambda_cgd", plain]
    actual, other = tf_bandmf.compare(names, sampling=participation, **BUDGET)
    assert float(actual.mechanism.split(":")[1]) < plain.parameters["lambda"]
    assert actual.rmse < other.rmse


def test_a_mechanism_whose_simulation_overflows_for_large_gamma_is_compared():
    """With momentum C grows like a geometric series: gamma = 0.55 by 1.045 a step."""
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


@pytest.mark.slow
def test_cyclic_sampling_gets_as_many_parts_as_bands():
    use = {"num_examples": 2000, "batch_size": 25, "epochs": 1}
    plan = tf_bandmf.plan("bsr", sampling="cyclic-poisson", **use, **BUDGET)
    assert plan.participation.num_parts == plan.strategy.matrix.bands > 1
    assert plan.choice.mechanism == f"bsr:{plan.participation.num_parts}"
    assert plan.expected_batch_size == 25.0 and plan.num_steps == 80


@pytest.mark.parametrize("sampling", samplings())
def test_every_sampling_has_a_participation(sampling):
    use = resolve_data(2000, 100, 4, None, sampling)
    participation = use.participation(4)
    participation.validate_num_steps(use.num_steps)
    assert use.num_steps == 80 and participation.sampling == sampling
    assert use.is_cyclic == participation.is_cyclic
    # One part for each band, where there are parts.
    assert getattr(participation, "num_parts", 1) == (4 if use.is_cyclic else 1)


@pytest.mark.slow
def test_doubling_epsilon_doubles_the_bands_and_doubling_epochs_halves_them():
    """arXiv:2405.15913, Fig. 3b: normalized Toeplitz strategies, 4,096 steps."""
    names = [f"toeplitz:{2**i}:normalized" for i in range(2, 8)]

    def best(epochs, epsilon):
        table = tf_bandmf.compare(
            names,
            epsilon=epsilon,
            delta=1e-6,
            num_examples=4096 * 100 // epochs,
            batch_size=100,
            epochs=epochs,
            sampling="cyclic-poisson",
            max_memory_vectors=127,
        )
        return min(table, key=lambda row: row.rmse).bands

    bands = {(k, eps): best(k, eps) for k in (4, 8, 16) for eps in (1.0, 2.0)}
    assert bands == {
        (4, 1.0): 32,
        (4, 2.0): 64,
        (8, 1.0): 16,
        (8, 2.0): 32,
        (16, 1.0): 8,
        (16, 2.0): 16,
    }


HONEST_ACCOUNTANT = BallsInBins.accountant


def failing_accountant(self, matrix, simulation=None):
    """Of a participation that has none for strategies with bands."""
    if matrix.bands > 1:
        raise ArithmeticError("The accountant lost itself.")
    return HONEST_ACCOUNTANT(self, matrix, simulation)


def test_a_row_that_fails_does_not_end_a_comparison(monkeypatch):
    monkeypatch.setattr(BallsInBins, "accountant", failing_accountant)
    use = {"sampling": BallsInBins(80, 16, 4), **BUDGET}
    names = ["lambda_cgd:0.5", "identity", "bisr:2"]
    table = tf_bandmf.compare(names, **use)
    assert [row.mechanism for row in table.rows] == ["identity"]
    assert list(table.excluded) == ["lambda_cgd:0.5", "bisr:2"]
    assert str(table).count("The accountant lost itself.") == 2
    # Where nothing is left the reason is an error.
    with pytest.raises(ArithmeticError, match="lost itself"):
        tf_bandmf.compare(names[:1], **use)
    with pytest.raises(ValueError, match=r"No mechanism can be used.*bisr:2: The acc"):
        tf_bandmf.compare([names[0], names[2]], **use)


@pytest.mark.slow
def test_a_row_that_fails_does_not_end_auto(monkeypatch):
    monkeypatch.setattr(BallsInBins, "accountant", failing_accountant)
    table = tf_bandmf.compare(
        sampling=BallsInBins(80, 16, 4), max_memory_vectors=3, **BUDGET
    )
    assert table.mechanism in ("identity", "lambda_cgd:0")  # of one band
    reasons = [reason for reason in table.excluded.values() if "lost itself" in reason]
    assert len(reasons) >= 2


def test_general_columns_are_left_out_where_toeplitz_is_far_behind(monkeypatch):
    names = ("banded", "lambda_cgd", "toeplitz")
    monkeypatch.setattr(registry, "auto_names", lambda *_: names)
    # However far it is.
    monkeypatch.setattr("tf_bandmf.planning.compare._REFINEMENT", 0.5)
    use = {"num_examples": 500, "batch_size": 50, "epochs": 20}
    table = tf_bandmf.compare(workload="sgd:momentum=0.5", **use, **BUDGET)
    assert "general columns gain a few percent" in table.excluded["banded"]
    assert [row.mechanism.split(":")[0] for row in table] == list(names[1:])


@pytest.mark.slow
def test_what_is_planned_is_optimized_in_full(monkeypatch):
    monkeypatch.setattr(registry, "auto_names", lambda *_: ("toeplitz", "banded"))
    use = {"num_examples": 160, "batch_size": 20, "epochs": 4}
    plan = tf_bandmf.plan("auto", **use, **BUDGET)
    assert plan.strategy.family == "banded"
    assert plan.strategy.diagnostics["optimality_gap"] < 1e-3


@pytest.mark.slow
def test_rough_noise_begins_where_other_bands_promise(monkeypatch):
    from tf_bandmf.accounting.b_min_sep_simulator import BMinSepSimulator
    from tf_bandmf.participation import BMinSepSampling

    counts = []
    original = BMinSepSimulator.rough_runs

    def counted(self, noise):
        counts[-1] += 1
        return original(self, noise)

    monkeypatch.setattr(BMinSepSimulator, "rough_runs", counted)
    sampled, workload = BMinSepSampling(6400, 32, 16), workloads.prefix_sum(256)
    use = DataUse(sampled, 256, None, None)
    together = Search(workload, use, (2.0, 1e-5))
    for bands in (1, 2, 4, 8, 16, 4):
        actual = []
        for search in (together, Search(workload, use, (2.0, 1e-5))):
            counts.append(0)
            actual.append(search.table([f"bsr:{bands}"]).rows[-1].noise_stddev)
        assert actual[0] == pytest.approx(actual[1], rel=5e-3)
    helped, alone = counts[0::2], counts[1::2]
    assert sum(helped[1:]) <= sum(alone[1:]) - 10
    assert helped[-1] == 1  # as many bands as before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sampling": "random"}, "sampling must be one of fixed-order"),
        ({"sampling": "poisson", "num_steps": 80}, "num_steps with a participation"),
        ({"sampling": "cyclic-poisson", "mechanism": "bisr"}, "use balls-in-bins"),
        ({"mechanism": "auto:4"}, "auto chooses all parameters itself"),
        ({"mechanism": "auto", "epsilon": None, "noise_multiplier": 1.0}, "budget"),
    ],
)
def test_a_plan_whose_sampling_contradicts_it_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        tf_bandmf.plan(**{**BUDGET, **DATA, **options})


@pytest.mark.slow_cases("cyclic-fixed-size")
@pytest.mark.parametrize("last", ["balls-in-bins", "cyclic-fixed-size"])
def test_samplings_are_compared_in_one_table(last, caplog):
    use = {"num_examples": 320, "batch_size": 32, "epochs": 4, **BUDGET}
    samplings = ["fixed-order", "poisson", last]
    with caplog.at_level(logging.INFO, logger="tf_bandmf"):
        table = tf_bandmf.compare(["identity", "bisr:4"], sampling=samplings, **use)
    assert "comparing bisr:4" in [record.message for record in caplog.records]
    # Poisson sampling amplifies banded C alone; replacements are other neighbors.
    assert "bisr:4, poisson" in table.excluded
    used = {row.sampling for row in table}
    assert used == set(samplings) - {"cyclic-fixed-size"}
    assert ("cyclic-fixed-size" in table.excluded) == (last not in used)
    for row in table:
        (alone,) = tf_bandmf.compare([row.mechanism], sampling=row.sampling, **use)
        assert alone.rmse == pytest.approx(row.rmse, rel=1e-2)
    best = table.best()
    assert f"Chosen: {best.mechanism} ({best.sampling})," in str(table)
    with pytest.raises(ValueError, match="No sampling can be used"):
        tf_bandmf.compare(["tree"], sampling=["poisson", "cyclic-poisson"], **use)
    with pytest.raises(ValueError, match="sampling must be a name or several"):
        tf_bandmf.compare(["tree"], sampling=[], **use)
