"""Ledgers account for budgets and runs correctly, in files and on PostgreSQL."""

import dataclasses
import math
import os
import stat

import dp_accounting
import pytest
from small_ledgers import bound_plan, run_name, spent

import tf_bandmf
from tf_bandmf.accounting import gaussian
from tf_bandmf.ledger import BudgetExceededError, LedgerError, book, store
from tf_bandmf.ledger import opened as find_open
from tf_bandmf.planning.account import Account


@pytest.mark.slow_cases("postgresql")
def test_a_run_reserves_once_and_a_second_run_once_more(ledger):
    ledger.add_dataset("patients", epsilon=2.0, delta=1e-6)
    plan = bound_plan(ledger)
    bound_plan(ledger)
    assert spent(ledger) == 0.0 and len(ledger.history()) == 1
    entry = ledger.begin(plan, run_name(1))
    assert spent(ledger) == pytest.approx(1.0, rel=1e-6)
    # A resumed run begins again in the ledger, which reserves no further budget.
    assert ledger.begin(plan, run_name(1)) == entry
    assert spent(ledger) == pytest.approx(1.0, rel=1e-6)
    ledger.begin(plan, run_name(2))
    joint = tf_bandmf.compose([plan, plan]).epsilon(1e-6)
    assert spent(ledger) == pytest.approx(joint, rel=1e-6)
    with pytest.raises(LedgerError, match="began with another plan"):
        other = bound_plan(ledger, epsilon=0.1)
        ledger.begin(other, run_name(1))
    assert ledger.verify() == []


@pytest.mark.slow_cases("sqlite")
def test_a_run_that_does_not_fit_is_refused_with_what_would(ledger):
    ledger.add_dataset("patients", epsilon=1.4, delta=1e-6)
    first = bound_plan(ledger)
    ledger.begin(first, run_name(1))
    with pytest.raises(
        BudgetExceededError, match=r"1\.4.*1 of 1\.4 is spent"
    ) as actual:
        bound_plan(ledger)
    fitting = actual.value.fitting_epsilon
    assert fitting == ledger.fits("patients") > 0.5
    # A plan with this epsilon fits the budget; a slightly larger epsilon does not.
    last = bound_plan(ledger, epsilon=fitting)
    with pytest.raises(BudgetExceededError):
        bound_plan(ledger, epsilon=1.002 * fitting)
    ledger.begin(last, run_name(2))
    assert 1.399 < spent(ledger) <= 1.4
    # The plan fitted into the budget when it was made, but another run of it does not.
    with pytest.raises(BudgetExceededError):
        ledger.begin(last, run_name(3))
    assert not ledger.balance("patients").is_over


@pytest.mark.slow_cases("postgresql")
def test_a_run_that_ended_early_keeps_what_its_steps_cost(ledger):
    ledger.add_dataset("patients", epsilon=1.0, delta=1e-6)
    plan, run = bound_plan(ledger), run_name(1)
    ledger.begin(plan, run)
    ledger.note_steps(run, 7)
    with pytest.raises(ValueError, match="steps must be >= 7, but found 6"):
        ledger.end(run, plan=plan, steps=6, reason="power failure")
    with pytest.raises(BudgetExceededError):
        ledger.begin(plan, run_name(2))
    ledger.end(run, plan=plan, steps=10, reason="power failure")
    assert spent(ledger) == pytest.approx(plan.epsilon_after(10), rel=1e-6)
    with pytest.raises(LedgerError, match="has ended"):
        ledger.begin(plan, run)
    # If a run is ended twice, its unused budget is given back only once.
    ledger.end(run, plan=plan, steps=10, reason="power failure")
    assert spent(ledger) == pytest.approx(plan.epsilon_after(10), rel=1e-6)
    small = bound_plan(ledger, epsilon=0.2)
    ledger.begin(small, run_name(3))
    ledger.end(run_name(3), plan=small, steps=0, reason="it never began")
    assert spent(ledger) == pytest.approx(plan.epsilon_after(10), rel=1e-6)
    assert ledger.verify() == []


@pytest.mark.parametrize(
    ("mechanism", "sampling"),
    [
        ("identity", "poisson"),
        ("bsr:4", "cyclic-poisson"),
        ("identity", "cyclic-fixed-size"),
        ("bisr:4", "fixed-order"),
        ("lambda_cgd:0.9", "shuffled"),
    ],
)
def test_the_end_of_a_second_run_never_costs_budget(mechanism, sampling, file_ledger):
    file_ledger.add_dataset("patients", epsilon=9.0, delta=1e-6)
    plan = bound_plan(file_ledger, mechanism, sampling=sampling)
    file_ledger.begin(plan, run_name(1))
    for number, steps in ((2, plan.num_steps - 1), (3, 1)):
        first = spent(file_ledger)
        file_ledger.begin(plan, run_name(number))
        both = spent(file_ledger)
        file_ledger.end(run_name(number), plan=plan, steps=steps, reason="a power cut")
        assert first < spent(file_ledger) <= both
    # The third run cost less than a whole run, because it took only one step.
    assert spent(file_ledger) < both


def test_a_run_keeps_its_whole_cost_if_its_first_steps_cost_more(
    file_ledger, monkeypatch
):
    file_ledger.add_dataset("patients", epsilon=1.0, delta=1e-6)
    plan = bound_plan(file_ledger)
    file_ledger.begin(plan, run_name(1))
    dataset = file_ledger.balance("patients").dataset
    whole, more = (
        book.of_plan(one, dataset) for one in (plan, bound_plan(epsilon=3.0))
    )
    costs = {None: whole, 10: more}
    monkeypatch.setattr(book, "of_plan", lambda plan, dataset, steps: costs[steps])
    file_ledger.end(run_name(1), plan=plan, steps=10, reason="a power cut")
    assert spent(file_ledger) == pytest.approx(1.0, rel=1e-6)


def test_only_a_run_that_began_ends(file_ledger):
    file_ledger.add_dataset("patients", epsilon=1.0, delta=1e-6)
    plan = bound_plan(file_ledger)
    with pytest.raises(LedgerError, match="is not in the ledger"):
        file_ledger.end(run_name(2), plan=plan, steps=1, reason="a clock")
    with pytest.raises(ValueError, match="64 hexadecimal digits"):
        file_ledger.begin(plan, "my run")


@pytest.mark.attack(
    "Spending for a different privacy unit, or with impossible numbers",
    tried="Spends runs, joint guarantees and tuning with a privacy unit that is not the "
    "budget's, a test seed, a negative rho, and events with impossible numbers.",
    area="inputs",
)
@pytest.mark.invariant(12, 19)
def test_what_is_spent_is_of_the_budgets_unit_and_possible(file_ledger, figure):
    file_ledger.add_dataset("patients", unit="one patient", epsilon=9.0, delta=1e-5)
    rows, patients = bound_plan(), bound_plan(unit="one patient")
    seeded = bound_plan(unit="one patient", test_seed=1)
    gaussian = dp_accounting.GaussianDpEvent
    sampled = dp_accounting.PoissonSampledDpEvent
    several = dp_accounting.SelfComposedDpEvent
    attempts = [
        (lambda: rows, "needs privacy unit 'one patient', not 'one training"),
        (lambda: tf_bandmf.compose([patients, rows]), "needs privacy unit"),
        (lambda: tf_bandmf.tuning_cost(rows, 2), "needs privacy unit"),
        (lambda: seeded, "Omit test_seed"),
        (lambda: tf_bandmf.Guarantee(1, 1e-6, "bound", "me", zcdp_rho=-1.0), "rho"),
        (lambda: gaussian(-1.0), "event must be"),
        (lambda: sampled(0.1, gaussian(-1.0)), "event must be"),
        (lambda: sampled(-0.5, gaussian(5.0)), "event must be"),
        (lambda: sampled(2.0, gaussian(5.0)), "event must be"),
        (lambda: several(gaussian(5.0), -3), "count"),
    ]
    for make, message in attempts:
        with pytest.raises(ValueError, match=message):
            file_ledger.spend("patients", make(), about="something")
    assert spent(file_ledger) == 0.0
    # As a control, valid releases are accepted and charged to the budget.
    file_ledger.spend("patients", patients, about="a run")
    file_ledger.spend("patients", sampled(0.1, gaussian(5.0)), about="a sample")
    assert spent(file_ledger) > 0.5
    figure(f"{len(attempts)} attempts, all refused")


@pytest.mark.slow_cases("sqlite")
def test_other_releases_are_entries_like_any_other(ledger):
    ledger.add_dataset("patients", epsilon=4.0, delta=1e-5)
    ledger.spend("patients", (0.25, 0.0), about="number of patients")
    assert spent(ledger) == pytest.approx(0.25, rel=1e-3)
    plan = bound_plan()
    cost = tf_bandmf.tuning_cost(plan, 5)
    ledger.spend("patients", cost, about="best of about 5 trials")
    ledger.spend("patients", dp_accounting.GaussianDpEvent(20.0), about="means")
    guarantee = tf_bandmf.Guarantee(0.1, 1e-8, "bound", "theirs", zcdp_rho=0.0005)
    ledger.spend("patients", guarantee, about="histogram")
    ledger.spend("patients", plan, about="a run of last year")
    ledger.spend("patients", tf_bandmf.compose([plan]), about="another one")
    assert ledger.balance("patients").runs == 6
    assert ledger.balance("patients").risk == 0.0
    bounded = dataclasses.replace(cost, epsilon=0.01, confidence=0.999)
    ledger.spend("patients", bounded, about="trials of which a bound is simulated")
    assert ledger.balance("patients").risk == pytest.approx(0.001)
    total = 0.26 + cost.epsilon + 0.5 + 0.1 + 2 * plan.epsilon
    assert 1.0 < spent(ledger) <= total
    estimate = tf_bandmf.Guarantee(0.1, 1e-8, "estimate", "simulation")
    with pytest.raises(ValueError, match="Pass a proven cost"):
        ledger.spend("patients", estimate, about="a guess")
    with pytest.raises(TypeError, match="`what` must be"):
        ledger.spend("patients", "0.1", about="a guess")
    with pytest.raises(BudgetExceededError, match="everything"):
        ledger.spend("patients", (5.0, 1e-6), about="everything")
    assert ledger.verify() == []


@pytest.mark.slow_cases("sqlite")
def test_budgets_in_rho(ledger):
    plan = bound_plan()
    ledger.add_dataset("in rho", rho=2.5 * plan.zcdp_rho)
    bound = bound_plan(ledger, dataset="in rho")
    ledger.begin(bound, run_name(1))
    ledger.begin(bound, run_name(2))
    with pytest.raises(BudgetExceededError, match="rho"):
        ledger.begin(bound, run_name(3))
    with pytest.raises(BudgetExceededError, match="rho add up to 1e-09 of 0"):
        ledger.spend("in rho", (1e-3, 1e-9), about="has no rho")


def test_a_sampled_run_that_ended_early_gives_rho_back(file_ledger):
    file_ledger.add_dataset("in rho", rho=1e6)
    plan = bound_plan(file_ledger, "identity", "in rho", sampling="poisson")
    file_ledger.begin(plan, run_name(1))
    assert spent(file_ledger, "in rho") == pytest.approx(plan.zcdp_rho, rel=1e-6)
    steps = plan.num_steps // 4
    file_ledger.end(run_name(1), plan=plan, steps=steps, reason="a power cut")
    left = pytest.approx(plan.zcdp_rho * steps / plan.num_steps, rel=1e-6)
    assert spent(file_ledger, "in rho") == left


@pytest.mark.parametrize(
    ("sampling", "mechanism"),
    [("poisson", "identity"), ("cyclic-poisson", "bsr:4"), ("fixed-order", "bsr:4")],
)
def test_sampled_runs_of_replaced_data_are_settled(sampling, mechanism, file_ledger):
    file_ledger.add_dataset(
        "patients", adjacency="replace-one", epsilon=1000.0, delta=1e-3
    )
    plan = bound_plan(file_ledger, mechanism, sampling=sampling)
    file_ledger.begin(plan, run_name(1))
    before = spent(file_ledger)
    file_ledger.end(run_name(1), plan=plan, steps=9, reason="a clock")
    assert 0.0 < spent(file_ledger) < before
    # The cost is below that without amplification. Without amplification, the replaced
    # example is in each of the 9 steps and changes each sum by twice the clip norm.
    if mechanism == "identity":
        noise = plan.noise_stddev / (2.0 * math.sqrt(9.0))
        most = gaussian.gaussian_epsilon(noise, 1e-3)
        assert plan.epsilon_after(9, 1e-3) < spent(file_ledger) < most


def test_replace_one_counts_twice_the_sensitivity(file_ledger):
    file_ledger.add_dataset(
        "patients", adjacency="replace-one", epsilon=3.0, delta=1e-6
    )
    plan = bound_plan(file_ledger)
    file_ledger.begin(plan, run_name(1))
    actual = gaussian.gaussian_epsilon(plan.noise_multiplier / 2.0, 1e-6)
    assert file_ledger.balance("patients").spent == pytest.approx(actual, rel=1e-6)
    rest = file_ledger.fits("patients")
    last = bound_plan(file_ledger, epsilon=rest)
    file_ledger.begin(last, run_name(2))


def test_what_is_not_meant_is_refused(file_ledger, tmp_path):
    ledger = file_ledger
    with pytest.raises(LedgerError, match="no data set 'patients'"):
        bound_plan(ledger)
    budget = {"epsilon": 1, "delta": 1e-6}
    ledger.add_dataset("patients", **budget, unit="one patient")
    with pytest.raises(ValueError, match="Use another name"):
        ledger.add_dataset("patients", **budget, unit="one visit")
    # Adding the data set again with equal arguments changes nothing.
    ledger.add_dataset("patients", **budget, unit="one patient")
    for bad in ("sqlite://", "mysql://a/b", "privacy.db"):
        with pytest.raises(ValueError, match="URL"):
            tf_bandmf.Ledger(bad)
    with pytest.raises(LedgerError, match="no ledger"):
        tf_bandmf.Ledger(f"sqlite:///{tmp_path}/typo.db", create=False)
    assert not (tmp_path / "typo.db").exists()
    for arguments in ({"epsilon": 1.0}, {"epsilon": 0.0, "delta": 1e-6}, {}):
        with pytest.raises(ValueError):
            ledger.set_budget("patients", **arguments)


def test_a_bound_plan_stays_bound_in_files(file_ledger, tmp_path):
    file_ledger.add_dataset("patients", epsilon=1.0, delta=1e-6)
    plan = bound_plan(file_ledger)
    assert plan.fingerprint != bound_plan().fingerprint
    assert bound_plan().to_config()["account"] is None
    plan.save(str(tmp_path / "plan.json"))
    again = tf_bandmf.Plan.load(str(tmp_path / "plan.json"))
    assert again.account == plan.account and again.fingerprint == plan.fingerprint
    assert find_open(again.account) is file_ledger
    with pytest.raises(LedgerError, match="not open in this process"):
        find_open(Account("patients", "0" * 64))
    file_ledger.begin(again, run_name(1))
    # A data set with the same name in another ledger is a different data set.
    other = tf_bandmf.Ledger(f"sqlite:///{tmp_path}/other.db")
    with pytest.raises(LedgerError, match="not bound to this ledger"):
        other.begin(plan, run_name(1))
    other.add_dataset("patients", epsilon=1.0, delta=1e-6)
    with pytest.raises(LedgerError, match="not bound to this ledger"):
        other.begin(plan, run_name(1))


def test_nothing_secret_is_in_it_and_only_the_owner_reads_it(url, tmp_path):
    tf_bandmf.Ledger(url)
    mode = os.stat(tmp_path / "privacy.db").st_mode
    assert stat.S_IMODE(mode) == 0o600
    named = store._checked("postgresql://me:pass-word@host/db")
    assert "pass-word" not in named.render_as_string(hide_password=True)


def test_estimates_count_without_amplification(file_ledger):
    file_ledger.add_dataset("patients", epsilon=8.0, delta=1e-6)
    options = {"sampling": "balls-in-bins", "noise_multiplier": 2.0, "epsilon": None}
    plan = bound_plan(file_ledger, "identity", **options)
    assert plan.kind == "estimate"
    file_ledger.begin(plan, run_name(1))
    certain = gaussian.gaussian_epsilon(2.0, 1e-6)
    assert spent(file_ledger) == pytest.approx(certain, rel=1e-6)


def test_a_simulated_bound_counts_with_its_risk(file_ledger):
    options = {"sampling": "balls-in-bins", "epsilon": 2.0, "delta": 1e-5}
    plan = bound_plan(None, "identity", **options).bounded(confidence=0.99)
    file_ledger.add_dataset("patients", epsilon=plan.epsilon, delta=1e-5)
    plan = file_ledger.bind(plan, "patients")
    file_ledger.begin(plan, run_name(1))
    for _ in range(2):
        assert spent(file_ledger) == plan.epsilon
        assert file_ledger.balance("patients").risk == pytest.approx(0.01)
        # The simulated bound holds for whole runs only, so the ledger gives back no
        # budget for the steps that the run did not take.
        file_ledger.end(run_name(1), plan=plan, steps=3, reason="a power cut")


def test_a_refusal_says_if_the_deltas_are_too_large(file_ledger):
    for name in ("trials", "runs"):
        file_ledger.add_dataset(name, epsilon=20.0, delta=1e-6)
    plan = bound_plan()
    cost = tf_bandmf.tuning_cost(plan, 3)
    file_ledger.spend("trials", cost, about="best of about 3 trials")
    with pytest.raises(BudgetExceededError, match="rho add up to 2e-06 of 1e-06"):
        file_ledger.spend("trials", cost, about="best of 3 others")
    # The ledger composes a run's guarantee by its rho, so two runs do not use up the
    # delta of the budget.
    for about in ("a run", "another run"):
        file_ledger.spend("runs", plan.guarantee, about=about)
    joint = tf_bandmf.compose([plan, plan]).epsilon(1e-6)
    assert joint < spent(file_ledger, "runs") < 1.2 * joint


def test_a_run_that_goes_on_after_it_was_settled_is_seen(file_ledger):
    file_ledger.add_dataset("patients", epsilon=1.0, delta=1e-6)
    plan = bound_plan(file_ledger)
    file_ledger.begin(plan, run_name(1))
    file_ledger.end(run_name(1), plan=plan, steps=10, reason="thought to be dead")
    assert file_ledger.verify() == []
    file_ledger.note_steps(run_name(1), 60)
    (problem,) = file_ledger.verify()
    assert "took 60 steps" in problem


def test_releases_made_elsewhere_are_spent_as_compose_takes_them(file_ledger):
    file_ledger.add_dataset("patients", epsilon=4.0, delta=1e-5)
    parts = [
        tf_bandmf.Release("query log", epsilon=0.25, delta=1e-7),
        tf_bandmf.Release("census", rho=0.01),
        tf_bandmf.Release("histogram", event=dp_accounting.LaplaceDpEvent(4.0)),
    ]
    for part in parts:
        file_ledger.spend("patients", part, about="made elsewhere")
    joint = tf_bandmf.compose(parts).epsilon(1e-5)
    assert 0.9 * joint < spent(file_ledger) < 1.5 * joint
    replaced = tf_bandmf.Release(epsilon=0.1, adjacency="replace-one")
    with pytest.raises(ValueError, match="is for replace-one"):
        file_ledger.spend("patients", replaced, about="other neighbors")
    file_ledger.spend("patients", tf_bandmf.compose(parts), about="all of them, again")
