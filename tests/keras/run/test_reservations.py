"""Tests that a run with a ledger must reserve its budget before its first step."""

import keras
import pytest
from same_weights import refused
from small_models import built, data, make_plan, make_private_model

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf.ledger import BudgetExceededError, LedgerError, book

pytest.importorskip("sqlalchemy")


@pytest.fixture
def ledger(tmp_path):
    made = tf_bandmf.Ledger(f"sqlite:///{tmp_path}/privacy.db")
    made.add_dataset("patients", epsilon=5.0, delta=1e-5)
    return made


@pytest.fixture
def plan(ledger):
    made = make_plan("identity", batch_size=11, test_seed=None)
    return ledger.bind(made, "patients")


def runs(ledger):
    return ledger.balance("patients").runs


@pytest.mark.invariant(19)
def test_a_run_reserves_at_its_first_step(plan, ledger):
    model = built(make_private_model(plan))
    assert runs(ledger) == 0
    assert "nothing is reserved" in str(model.privacy_statement())
    model.fit(plan.batches(*data), epochs=1, verbose=0)
    assert runs(ledger) == 1
    (entry,) = [entry for entry in ledger.history() if entry.kind == "begun"]
    assert f"entry {entry.name}" in str(model.privacy_statement())
    # The run continues with the same reservation, and the ledger records its steps.
    model.fit(plan.batches(*data), epochs=1, verbose=0)
    assert runs(ledger) == 1
    steps = [e.body["steps"] for e in ledger.history() if e.kind == "steps"]
    assert steps == [2, 4]
    assert ledger.verify(entry.name) == []


@pytest.mark.invariant(19)
def test_the_plan_that_was_given_to_bind_takes_no_step(ledger):
    plan = make_plan("identity", batch_size=11, test_seed=None)
    ledger.bind(plan, "patients")
    model = make_private_model(plan)
    with refused(model, LedgerError, r"plan = ledger\.bind\(plan, dataset\)"):
        model.fit(plan.batches(*data), epochs=1, verbose=0)
    assert runs(ledger) == 0


@pytest.mark.invariant(19)
def test_a_run_without_budget_takes_no_step(plan, ledger):
    waiting = make_private_model(plan)
    ledger.spend("patients", (3.0, 1e-6), about="somebody was faster")
    with refused(waiting, BudgetExceededError, "would fit with epsilon"):
        waiting.fit(plan.batches(*data), epochs=1, verbose=0)
    for step in (waiting.train_on_batch, waiting.private_gradients):
        with refused(waiting, BudgetExceededError):
            step(next(iter(plan.batches(*data))))
    assert runs(ledger) == 1
    # The same run can start once the budget is increased.
    ledger.set_budget("patients", epsilon=8.0, delta=1e-5)
    waiting.fit(plan.batches(*data), epochs=1, verbose=0)
    assert runs(ledger) == 2


@pytest.mark.invariant(19)
def test_without_the_ledger_nothing_begins(plan, monkeypatch):
    monkeypatch.setattr(book, "_OPEN", {})
    model = make_private_model(plan)
    with refused(model, LedgerError, "not open in this process"):
        model.fit(plan.batches(*data), epochs=1, verbose=0)


@pytest.mark.invariant(19)
def test_a_resumed_run_reserves_once(plan, ledger, train_from_files):
    train_from_files(make_private_model(plan), "run", 1)
    model = train_from_files(make_private_model(plan), "run", 2)
    assert model.optimizer.steps_taken == 4
    assert runs(ledger) == 1


@pytest.mark.slow
def test_a_run_that_ends_early_gives_back_the_rest(plan, ledger):
    model = make_private_model(plan)
    with pytest.raises(ValueError, match="has not begun"):
        model.optimizer.end_run("too early")
    model.fit(plan.batches(*data), epochs=1, verbose=0)
    with pytest.raises(ValueError, match="steps must be a whole number from 2"):
        model.optimizer.end_run("the machine is needed", steps=1)
    model.optimizer.end_run("the machine is needed")
    spent = ledger.balance("patients").spent
    assert spent == pytest.approx(plan.epsilon_after(2), rel=1e-6)
    assert spent < plan.epsilon
    batch = list(plan.batches(*data))[2]
    for train in (
        lambda: model.fit(plan.batches(*data), epochs=1, verbose=0),
        lambda: model.train_on_batch(batch),
    ):
        with refused(model, LedgerError, "has ended"):
            train()


def test_a_run_that_somebody_ended_does_not_go_on(plan, ledger):
    model = make_private_model(plan)
    model.fit(plan.batches(*data), epochs=1, verbose=0)
    (entry,) = [entry for entry in ledger.history() if entry.kind == "begun"]
    ledger.end(entry.run, plan=plan, steps=2, reason="thought to be dead")
    with refused(model, LedgerError, "has ended"):
        model.fit(plan.batches(*data), epochs=1, verbose=0)


def test_a_model_that_is_loaded_reserves_nothing(plan, ledger, tmp_path):
    model = make_private_model(plan)
    model.fit(plan.batches(*data), epochs=1, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.plan.account == plan.account
    loaded.predict(data[0], verbose=0)
    assert runs(ledger) == 1
    key = model.optimizer.run.secrets.key.secret_bytes()
    content = (tmp_path / "privacy.db").read_bytes()
    assert key not in content and key.hex().encode() not in content
