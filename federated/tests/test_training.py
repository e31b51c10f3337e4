"""`train_model` with TFF keeps the guarantees of the module `rounds`."""

import asyncio
import contextlib
import functools
import sqlite3

import numpy as np
import pytest
import tensorflow_federated as tff
from ledgers import copy_ledger
from linear import examples, model_fn
from plans import min_sep_plan
from simulated import Crash

from tf_bandmf_federated import (
    Ledger,
    SimulatedClients,
    build_fed_avg,
    ledger,
    measured_guarantee,
    train_model,
)

LEDGER = "ledger.sqlite3"
N, B = 5, 2
CLIENTS_PER_ROUND = 2
OPTIMIZER = tff.learning.optimizers.build_sgdm(0.1)
SERVER = tff.learning.optimizers.build_sgdm(1.0, momentum=0.9)


make_plan = functools.partial(min_sep_plan, "bsr:2", N, B, 3)


def make_source(plan):
    clients = {f"c{i}": lambda i=i: examples(i) for i in range(8)}
    return SimulatedClients(clients, plan, seed=3, availability=lambda t, name: 0.9)


def build(plan):
    return build_fed_avg(
        model_fn,
        plan,
        OPTIMIZER,
        SERVER,
        clients_per_round=CLIENTS_PER_ROUND,
    )


PLAN = make_plan(noise_multiplier=0.5)


@pytest.fixture(scope="module")
def process():
    """Builds the TFF process once; simulated restarts of the program reuse it."""
    return build(PLAN)


class Models(tff.program.ReleaseManager):
    """Collects all released models in order."""

    def __init__(self):
        self.releases = []

    async def release(self, value, key):
        flat = np.concatenate([np.ravel(w) for w in value.trainable])
        self.releases.append((key, flat.tobytes()))


class Metrics(tff.program.ReleaseManager):
    def __init__(self):
        self.releases = []

    async def release(self, value, key):
        self.releases.append((key, int(value["aggregator"]["contributing_clients"])))


def train(path, process, models=None, metrics=None, dies=None, **more):
    """Trains, with or without a crash.

    Args:
      path: folder for the ledger.
      process: the learning process.
      models, metrics: destinations of releases.
      dies: ("before", round) or ("after", round) for a crash just before or just after
        the result of this round is recorded; None for no crash.
      **more: further arguments of `train_model`.
    """
    more.setdefault("clients_per_round", CLIENTS_PER_ROUND)
    wrote = Ledger.finished

    def finished(self, number, *arguments):
        if dies == ("before", number):
            raise Crash
        wrote(self, number, *arguments)
        if dies == ("after", number):
            raise Crash

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Ledger, "finished", finished)
        return asyncio.run(
            train_model(
                process,
                make_source(PLAN),
                private_dir=str(path),
                model_output_manager=models,
                train_metrics_manager=metrics,
                **more,
            )
        )


def test_a_run_releases_every_model_and_measures_participation(tmp_path, process):
    models, metrics = Models(), Metrics()
    outcome = train(tmp_path, process, models, metrics=metrics)
    assert [key for key, _ in models.releases] == list(range(1, N + 1))
    assert [key for key, _ in metrics.releases] == list(range(1, N + 1))
    assert len({weights for _, weights in models.releases}) == N
    last = np.concatenate([np.ravel(w) for w in outcome.model_weights.trainable])
    assert models.releases[-1][1] == last.tobytes()
    assert outcome.measured.skipped_rounds == ()
    assert outcome.measured.num_rounds == N
    assert outcome.measured.num_participations == N * CLIENTS_PER_ROUND
    assert outcome.measured.min_separation >= B
    actual = measured_guarantee(PLAN, outcome.measured)
    assert actual.is_within_plan
    # The run is complete, so another call releases nothing.
    again = Models()
    train(tmp_path, process, again)
    assert again.releases == []


@pytest.mark.slow_cases("*before*")
@pytest.mark.parametrize("dies", [("before", 2), ("after", 2)], ids=str)
def test_a_crash_and_a_restart_release_what_the_uninterrupted_run_does(
    tmp_path, process, dies, monkeypatch
):
    # Without random numbers in the ledger, both runs have the same noise.
    monkeypatch.setattr(ledger, "draw", lambda: "")
    metrics, before, after, straight = Metrics(), Models(), Models(), Models()
    train(tmp_path / "run", process, before, metrics=metrics, total_rounds=1)
    copy_ledger(tmp_path / "run" / LEDGER, tmp_path / "straight" / LEDGER)
    with pytest.raises(Crash):
        train(tmp_path / "run", process, before, metrics, dies=dies)
    outcome = train(tmp_path / "run", process, after, metrics)
    assert outcome.measured.skipped_rounds == ()
    train(tmp_path / "straight", build(PLAN), straight)
    released = before.releases + after.releases
    assert released[1:] == straight.releases
    assert [key for key, _ in metrics.releases] == list(range(1, N + 1))


def test_too_many_rounds_and_wrong_arguments_are_refused(tmp_path, process):
    with pytest.raises(ValueError, match="More rounds need a new plan"):
        train(tmp_path, process, total_rounds=N + 1)
    with pytest.raises(ValueError, match="made with process"):
        train(tmp_path, build(make_plan(noise_multiplier=2.0)))


@pytest.mark.invariant(10)
def test_releases_hold_no_secret(tmp_path, process):
    released = tmp_path / "released"
    manager = tff.program.SavedModelFileReleaseManager(str(released), "model_")
    train(tmp_path / "run", process, manager, total_rounds=2)
    query = "SELECT content FROM states WHERE name LIKE '%noise.digest_key'"
    with contextlib.closing(sqlite3.connect(tmp_path / "run" / LEDGER)) as database:
        ((secret,),) = database.execute(query)
    assert any(secret) and len(secret) >= 32
    contents = [path.read_bytes() for path in released.rglob("*") if path.is_file()]
    assert contents and not any(secret[:16] in content for content in contents)


def test_a_changed_process_is_refused(tmp_path):
    def build_with(learning_rate=0.1, denominator=CLIENTS_PER_ROUND):
        optimizer = tff.learning.optimizers.build_sgdm(learning_rate)
        return build_fed_avg(
            model_fn, PLAN, optimizer, SERVER, clients_per_round=denominator
        )

    train(tmp_path, build_with(), total_rounds=2)
    with pytest.raises(ValueError, match=r"clients_per_round was 2\.0 and is 7\.0"):
        train(tmp_path, build_with(denominator=7))
    with pytest.raises(ValueError, match="belongs to another run: hyper_parameters"):
        train(tmp_path, build_with(learning_rate=0.5))
    train(tmp_path, build_with())
