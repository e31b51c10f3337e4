"""One mechanism with its best parameters, under sampling whose accounting simulates."""

import pytest

from tf_bandmf import workloads
from tf_bandmf.participation import BallsInBins
from tf_bandmf.participation.scheme import Scheme
from tf_bandmf.planning import calibration, choosing, comparison


def test_a_mechanism_whose_simulation_overflows_for_large_gamma_is_compared():
    """With momentum C grows like a geometric series: gamma = 0.55 by 1.045 a step."""
    participation = BallsInBins(160, 16, 200)
    workload = workloads.momentum_sgd(participation.num_steps, 0.9)

    def chosen(name):
        (row,) = choosing.choose(
            workload, participation, epsilon=3.0, delta=1e-5, mechanism_names=(name,)
        ).table
        return row

    row = chosen("bifr:2")
    gamma = float(row.mechanism.split(":")[2])
    assert 0.3 < gamma < 0.55
    for other in (0.3, 0.5):
        assert row.rmse < chosen(f"bifr:2:{other}").rmse


def test_what_is_chosen_is_accounted_for_by_more_draws_than_what_is_not():
    participation = BallsInBins(320, 16, 4)
    options = {"epsilon": 2.0, "delta": 1e-5}
    workload = workloads.prefix_sum(participation.num_steps)
    names = ("identity", "lambda_cgd:0.8", "bisr:2")
    choice = choosing.choose(workload, participation, mechanism_names=names, **options)
    for name in names:
        alone = choosing.choose(
            workload, participation, mechanism_names=(name,), **options
        )
        row, full = choice.table[name], alone.table[name]
        assert (row.rmse == full.rmse) == (name == choice.mechanism)
        assert row.rmse == pytest.approx(full.rmse, rel=0.02)


@pytest.mark.slow
def test_the_chosen_one_under_cyclic_sampling_is_accounted_for_in_full():
    scheme = Scheme("cyclic-poisson", 320, 16, 4)
    options = {"epsilon": 2.0, "delta": 1e-5}
    workload = workloads.prefix_sum(scheme.num_steps)
    names = ("identity", "bsr:2", "bsr:4")
    choice = choosing.choose(workload, scheme, mechanism_names=names, **options)
    for name in names:
        participation = scheme.participation(1 if name == "identity" else int(name[4:]))
        calibrator = calibration.for_budget(participation, **options)
        full = comparison.build_row(name, workload, participation, calibrator)
        row = choice.table[name]
        assert (row.rmse == full.rmse) == (name == choice.mechanism)
        assert row.rmse == pytest.approx(full.rmse, rel=0.02)


HONEST_ACCOUNTANT = BallsInBins.accountant


def failing_accountant(self, matrix, simulation=None):
    """Of a participation that has none for strategies with bands."""
    if matrix.bands > 1:
        raise ArithmeticError("The accountant lost itself.")
    return HONEST_ACCOUNTANT(self, matrix, simulation)


def test_a_row_that_fails_does_not_end_a_comparison(monkeypatch):
    monkeypatch.setattr(BallsInBins, "accountant", failing_accountant)
    participation = BallsInBins(80, 16, 4)
    workload = workloads.prefix_sum(participation.num_steps)
    calibrator = calibration.for_budget(participation, 2.0, 1e-5)
    names = ["lambda_cgd:0.5", "identity", "bisr:2"]
    table = comparison.compare(workload, participation, names, calibrator)
    assert [row.mechanism for row in table.rows] == ["identity"]
    assert [name for name, _ in table.failures] == ["lambda_cgd:0.5", "bisr:2"]
    assert str(table).count("The accountant lost itself.") == 2
    # Where nothing is left the reason is an error.
    with pytest.raises(ArithmeticError, match="lost itself"):
        comparison.compare(workload, participation, names[:1], calibrator)


@pytest.mark.slow
def test_a_row_that_fails_does_not_end_auto(monkeypatch):
    monkeypatch.setattr(BallsInBins, "accountant", failing_accountant)
    participation = BallsInBins(80, 16, 4)
    workload = workloads.prefix_sum(participation.num_steps)
    choice = choosing.choose(
        workload, participation, epsilon=2.0, delta=1e-5, max_memory_vectors=3
    )
    assert choice.mechanism in ("identity", "lambda_cgd:0")  # of one band
    reasons = [reason for reason in choice.excluded.values() if "lost itself" in reason]
    assert len(reasons) >= 2
