"""The training program: one release per round's noise, whatever ends it."""

import asyncio
import collections
import functools
import importlib
import io
import os
import shutil
import signal
import types

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from ledgers import copy_ledger, number_of_entries
from linear import INPUT_SPEC, examples, model_fn
from simulated import Crash

import tf_bandmf
import tf_bandmf.noise.keys
from tf_bandmf.files import private as private_files
from tf_bandmf_federated import (
    Ledger,
    SimulatedClients,
    build_fed_avg,
    ledger,
    measure_participation,
    measured_guarantee,
    rounds,
    train_model,
)
from tf_bandmf_federated.state_files import StateFiles

LEDGER = "ledger.sqlite3"
N, B = 5, 2
CLIENTS_PER_ROUND = 2
OPTIMIZER = tff.learning.optimizers.build_sgdm(0.1)
SERVER = tff.learning.optimizers.build_sgdm(1.0, momentum=0.9)


def make_plan(**options):
    arguments = dict(noise_multiplier=0.5, delta=1e-5, num_steps=N)
    return tf_bandmf.plan(
        "bsr:2", participation=tf_bandmf.MinSep(B, 3), **{**arguments, **options}
    )


def make_source(plan, num_clients=8, shift=0.0, **options):
    clients = {f"c{i}": lambda i=i: examples(i, shift) for i in range(num_clients)}
    options.setdefault("availability", lambda t, name: 0.9)
    return SimulatedClients(clients, plan, seed=3, **options)


def build(plan):
    return build_fed_avg(
        model_fn,
        plan,
        OPTIMIZER,
        SERVER,
        clients_per_round=CLIENTS_PER_ROUND,
    )


PLAN = make_plan()


@functools.cache
def process_of():
    """Built once: a restart in one process goes on with it.

    Real restarts, in new processes, are in test_program_killed.
    """
    return build(PLAN)


# A process that did not see a run.
another = functools.cache(lambda: build(PLAN))


class Models(tff.program.ReleaseManager):
    """All releases, in their order; dies in the one that it is told to."""

    def __init__(self, dies_before=None, dies_after=None):
        self.releases = []
        self._dies_before, self._dies_after = dies_before, dies_after

    async def release(self, value, key):
        if key == self._dies_before:
            raise Crash
        flat = np.concatenate([np.ravel(w) for w in value.trainable])
        self.releases.append((key, flat.tobytes()))
        if key == self._dies_after:
            raise Crash


class Metrics(tff.program.ReleaseManager):
    def __init__(self):
        self.releases = []

    async def release(self, value, key):
        self.releases.append((key, int(value["aggregator"]["contributing_clients"])))


class States(StateFiles):
    """Dies before or after a version is saved."""

    def __init__(self, directory, dies_before=None, dies_after=None):
        super().__init__(directory, keep_total=20)
        self._dies_before, self._dies_after = dies_before, dies_after

    def save(self, program_state, version):
        if version == self._dies_before:
            raise Crash
        super().save(program_state, version)
        if version == self._dies_after:
            raise Crash


def train(path, process, models=None, states=None, metrics=None, source=None, **more):
    more.setdefault("clients_per_round", CLIENTS_PER_ROUND)
    made = StateFiles if states is None else lambda folder: states
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "StateFiles", made)
        return asyncio.run(
            train_model(
                process,
                source or make_source(PLAN),
                private_dir=str(path),
                model_output_manager=models,
                train_metrics_manager=metrics,
                **more,
            )
        )


def ledger_of(path, process):
    made_for = {"plan": process.plan.fingerprint, **process.settings}
    with Ledger(str(path / LEDGER), made_for) as ledger:
        return ledger.rounds


def cohort_of(path, process, round_number):
    made_for = {"plan": process.plan.fingerprint, **process.settings}
    with Ledger(str(path / LEDGER), made_for) as ledger:
        return ledger.cohort(round_number)


@pytest.fixture
def process():
    return process_of()


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
    found = measured_guarantee(PLAN, outcome.measured)
    assert found.is_within_plan
    # Done: once more does nothing, and releases nothing.
    again = Models()
    train(tmp_path, process, again)
    assert again.releases == []


def test_only_some_models_are_released(tmp_path):
    models = Models()
    train(tmp_path, process_of(), models, release_every=3)
    assert [key for key, _ in models.releases] == [3, N]


def crashing(stage, tmp_path):
    """Managers that die in the third round, at a stage of it."""
    states, models = str(tmp_path / "states"), 3
    return {
        "result": (States(states, dies_before=models), Models()),
        "saved": (States(states, dies_after=models), Models()),
        "half released": (States(states), Models(dies_before=models)),
        "released": (States(states), Models(dies_after=models)),
    }[stage]


@pytest.mark.slow_cases("result", "released")
@pytest.mark.parametrize("stage", ["result", "saved", "half released", "released"])
def test_a_crash_and_a_restart_release_what_the_uninterrupted_run_does(
    tmp_path, process, stage, monkeypatch
):
    monkeypatch.setattr(ledger, "draw", lambda: "")  # so that runs can be compared
    states, before = crashing(stage, tmp_path)
    metrics = Metrics()
    with pytest.raises(Crash):
        train(tmp_path, process, before, states, metrics)
    after = Models()
    outcome = train(tmp_path, process, after, States(str(tmp_path / "states")), metrics)
    assert outcome.measured.skipped_rounds == ()
    released = dict(before.releases)
    for key, weights in after.releases:
        assert released.setdefault(key, weights) == weights
    assert sorted(released) == list(range(1, N + 1))
    assert len(set(metrics.releases)) == N  # the same content, if twice
    # The uninterrupted run, from the same first state and key.
    straight = Models()
    (tmp_path / "straight" / "states").mkdir(parents=True)
    name = "states/state-00000000"
    shutil.copy2(tmp_path / name, tmp_path / "straight" / name)
    # Before the first round: its kind and the first state.
    copy_ledger(tmp_path / LEDGER, tmp_path / "straight" / LEDGER, entries=2)
    train(tmp_path / "straight", another(), straight)
    assert dict(straight.releases) == released


def test_a_round_that_failed_is_begun_again_with_the_same_cohort(
    tmp_path, process, monkeypatch
):
    real, calls = process.next, []

    def failing(state, data):
        calls.append(data)
        if len(calls) == 2:
            raise RuntimeError("the workers are gone")
        return real(state, data)

    failing.type_signature = real.type_signature
    monkeypatch.setattr(type(process), "next", property(lambda self: failing))
    models = Models()
    with pytest.raises(RuntimeError, match="workers are gone"):
        train(tmp_path, process, models)
    train(tmp_path, process, models)
    assert [key for key, _ in models.releases] == list(range(1, N + 1))
    assert [known.starts for known in ledger_of(tmp_path, process).values()] == [
        1,
        2,
        1,
        1,
        1,
    ]


def interrupted(path, process):
    """A run that died when the result of its third round (2) was known, not saved."""
    states = States(str(path / "states"), dies_before=3)
    models = Models()
    with pytest.raises(Crash):
        train(path, process, models, states)
    return models


@pytest.mark.slow_cases("told to skip")
@pytest.mark.parametrize("change", ["data", "a client left", "told to skip"])
def test_a_round_that_cannot_be_repeated_is_skipped(tmp_path, process, change):
    before = interrupted(tmp_path, process)
    cohort = cohort_of(tmp_path, process, 2)
    rest = make_source(PLAN)
    rest.names = tuple(name for name in rest.names if name != cohort[0])
    options = {
        "data": dict(source=make_source(PLAN, shift=0.5)),
        "a client left": dict(source=rest),
        "told to skip": dict(interrupted_round="skip"),
    }[change]
    after, states = Models(), tmp_path / "states"
    outcome = train(tmp_path, process, after, States(str(states)), **options)
    assert outcome.measured.skipped_rounds == (2,)
    assert [key for key, _ in before.releases + after.releases] == [1, 2, 3, 4, 5]
    # After the skipped round the model is the one before it.
    assert after.releases[0][1] == before.releases[1][1]
    assert outcome.measured.skipped_rounds == (2,)
    known = ledger_of(tmp_path, process)
    assert known[2].skipped_because and known[2].result_digest is not None
    # Its clients count, and stay away for b rounds.
    cohorts = [cohort_of(tmp_path, process, t) for t in known]
    assert not set(cohort) & set(cohorts[3])
    assert outcome.measured.num_participations == sum(map(len, cohorts))
    assert outcome.measured.min_separation >= B
    # It stays skipped, also if the state before it comes back.
    for path in states.iterdir():
        if path.name != "state-00000002":
            path.unlink()
    again = Models()
    outcome = train(tmp_path, process, again, **options)
    assert outcome.measured.skipped_rounds[0] == 2
    released = dict(before.releases + after.releases)
    assert all(released[key] == weights for key, weights in again.releases)


def test_noise_of_a_skipped_round_is_not_in_the_next_model(tmp_path):
    """The rows of noise after a skipped round are the plan's, with that row left out."""
    plan = make_plan(test_seed=7)
    process = build_fed_avg(model_fn, plan, OPTIMIZER, clients_per_round=2)
    source = make_source(plan, num_clients=8, on_shortage="fewer", availability=nobody)
    states = States(str(tmp_path / "states"), dies_before=3)
    models = Models()
    with pytest.raises(Crash):
        train(tmp_path, process, models, states, source=source)
    train(tmp_path, process, models, source=source, interrupted_round="skip")
    generator = tf_bandmf.noise.NoiseGenerator(plan.strategy, 4)
    kept = generator.initial_state(tf_bandmf.noise.keys.NoiseKey.for_testing(7))
    expected = {}
    total = np.zeros(4, np.float32)
    for step in range(N):
        row, kept = generator.next(kept, tf.constant(step))
        if step != 2:
            total = total - plan.noise_stddev * row.numpy() / 2
        expected[step + 1] = total
    assert sorted(expected) == [key for key, _ in models.releases]
    for key, weights in models.releases:
        found = np.frombuffer(weights, np.float32)
        np.testing.assert_allclose(found, expected[key], rtol=1e-4, atol=3e-3)


def nobody(round_number, client):
    return False


def test_an_older_state_is_brought_forward_with_the_same_releases(tmp_path, process):
    states = str(tmp_path / "states")
    first = Models()
    train(tmp_path, process, first, States(states))
    for version in (2, 3, 4, 5):
        os.unlink(os.path.join(states, f"state-{version:08d}"))
    again = Models()
    outcome = train(tmp_path, process, again, States(states))
    assert again.releases == first.releases[1:]
    assert outcome.measured.skipped_rounds == ()


def test_an_older_state_and_other_data_release_nothing_more(tmp_path, process):
    states = str(tmp_path / "states")
    train(tmp_path, process, Models(), States(states), total_rounds=4)
    for version in (2, 3, 4):
        os.unlink(os.path.join(states, f"state-{version:08d}"))
    again = Models()
    other = make_source(PLAN, shift=1.0)
    outcome = train(tmp_path, process, again, States(states), source=other)
    assert outcome.measured.skipped_rounds == (1, 2, 3)
    assert [key for key, _ in again.releases] == [5]


def test_missing_or_damaged_files_are_refused(tmp_path, process):
    states = tmp_path / "states"
    train(tmp_path, process, Models(), total_rounds=3)
    ledger = (tmp_path / LEDGER).read_bytes()
    newest = sorted(states.iterdir())[-1]
    content = newest.read_bytes()

    newest.write_bytes(content[:-1] + b"\1")
    with pytest.raises(ValueError, match="damaged"):
        train(tmp_path, process)
    newest.write_bytes(content)

    whole = (tmp_path / LEDGER).rename(tmp_path / "whole")
    with pytest.raises(ValueError, match="one of the two was replaced"):
        train(tmp_path, process)
    (tmp_path / LEDGER).write_bytes(ledger)
    os.chmod(tmp_path / LEDGER, 0o600)

    (tmp_path / LEDGER).unlink()
    copy_ledger(tmp_path / "whole", tmp_path / LEDGER, number_of_entries(whole) - 4)
    with pytest.raises(ValueError, match="one of the two was replaced"):
        train(tmp_path, process)
    (tmp_path / LEDGER).write_bytes(ledger)

    for path in states.iterdir():
        path.unlink()
    with pytest.raises(ValueError, match="no state of the run is there"):
        train(tmp_path, process)


def test_a_first_state_without_its_ledger_is_refused(tmp_path, process):
    """Nothing says any more for whom the noise of its first round was used."""
    states = str(tmp_path / "states")
    train(tmp_path, process, Models(), total_rounds=1)
    (tmp_path / LEDGER).unlink()
    os.unlink(os.path.join(states, "state-00000001"))
    models = Models()
    for folder in (tmp_path, tmp_path / "new"):
        with pytest.raises(ValueError, match="one of the two was replaced"):
            train(folder, process, models, States(states), clients_per_round=1)
    assert models.releases == []


def test_a_crash_before_the_first_state_is_saved_loses_nothing(tmp_path, process):
    for manager in (dict(dies_before=0), dict(dies_after=0)):
        with pytest.raises(Crash):
            train(tmp_path, process, None, States(str(tmp_path / "states"), **manager))
    models = Models()
    train(tmp_path, process, models)
    assert [key for key, _ in models.releases] == list(range(1, N + 1))


def test_fewer_rounds_than_were_begun_are_refused(tmp_path):
    """With an older state they would be missing in what was measured."""
    process, states = process_of(), str(tmp_path / "states")
    train(tmp_path, process, Models(), States(states))
    for version in (3, 4, 5):
        os.unlink(os.path.join(states, f"state-{version:08d}"))
    with pytest.raises(ValueError, match="5 rounds were begun, more than"):
        train(tmp_path, process, states=States(states), total_rounds=2)
    outcome = train(tmp_path, process, states=States(states))
    assert outcome.measured.num_rounds == N


def test_what_a_killed_program_left_of_the_key_is_removed(tmp_path):
    (tmp_path / ".unfinished-half").write_bytes(b"secret")
    train(tmp_path, process_of(), total_rounds=1)
    names = {LEDGER, f"{LEDGER}.lock", "states"}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_another_plan_is_refused(tmp_path):
    train(tmp_path, process_of(), total_rounds=2)
    other = make_plan(noise_multiplier=2.0)
    with pytest.raises(ValueError, match="of another run"):
        train(tmp_path, build(other), source=make_source(other))
    with pytest.raises(ValueError, match="of one plan"):
        train(tmp_path / "new", build(other))


def test_another_run_s_state_is_refused(tmp_path, process):
    for name in ("one", "two"):
        train(tmp_path / name, build(PLAN), total_rounds=2)
    for path in (tmp_path / "one" / "states").iterdir():
        content = (tmp_path / "two" / "states" / path.name).read_bytes()
        path.write_bytes(content)
    with pytest.raises(ValueError, match="another noise key"):
        train(tmp_path / "one", build(PLAN))


def test_two_programs_of_one_run_are_refused(tmp_path):
    process = process_of()
    made_for = {"plan": "another"}
    tmp_path.joinpath("run").mkdir()
    with Ledger(str(tmp_path / "run" / LEDGER), made_for):
        with pytest.raises(BlockingIOError, match="Another program"):
            train(tmp_path / "run", process)


def test_too_few_clients_lose_nothing(tmp_path):
    process = process_of()
    poor = make_source(PLAN, num_clients=3, availability=lambda t, name: 1.0)
    models = Models()
    with pytest.raises(ValueError, match="Round 1 needs 2 clients"):
        train(tmp_path, process, models, source=poor)
    assert sorted(ledger_of(tmp_path, process)) == [0]
    # Fewer clients will do.
    train(tmp_path, process, models, source=poor, clients_per_round=1)
    assert [key for key, _ in models.releases] == list(range(1, N + 1))


def test_too_many_rounds_and_wrong_arguments_are_refused(tmp_path):
    process = process_of()
    with pytest.raises(ValueError, match="More rounds need a new plan"):
        train(tmp_path, process, total_rounds=N + 1)
    with pytest.raises(TypeError, match="build_fed_avg"):
        train(tmp_path, "process")
    with pytest.raises(TypeError, match="SimulatedClients"):
        train(tmp_path, process, source=[1])
    with pytest.raises(ValueError, match="interrupted_round"):
        train(tmp_path, process, interrupted_round="retry")
    with pytest.raises(ValueError, match="release_every"):
        train(tmp_path, process, release_every=0)


def test_files_are_private_and_releases_hold_no_secret(tmp_path):
    process = process_of()
    released = tmp_path / "released"
    manager = tff.program.SavedModelFileReleaseManager(str(released), "model_")
    train(tmp_path / "run", process, manager, total_rounds=2)
    for path in (tmp_path / "run").rglob("*"):
        mode = path.stat().st_mode & 0o777
        assert mode == (0o700 if path.is_dir() else 0o600), path
    (state,) = (tmp_path / "run" / "states").glob("*2")
    with np.load(io.BytesIO(private_files.read(str(state)))) as content:
        leaf = (
            content["names"]
            .tobytes()
            .decode()
            .split()
            .index("state.aggregator.noise.digest_key")
        )
        secret = content[f"leaf_{leaf}"].tobytes()[:64]
    assert any(secret)
    for path in released.rglob("*"):
        assert path.is_dir() or secret not in path.read_bytes()


def test_it_runs_in_a_federated_context_of_tff_s_programs(tmp_path, monkeypatch):
    # TFF interrupts its service and waits for its end without limit; some never end.
    monkeypatch.setattr(
        importlib.import_module(
            "tensorflow_federated.python.core.impl.executor_stacks.executor_factory"
        ),
        "signal",
        types.SimpleNamespace(SIGINT=signal.SIGKILL),
    )
    process, models = process_of(), Models()
    context = tff.program.NativeFederatedContext(
        tff.backends.native.create_async_local_cpp_execution_context()
    )
    with tff.framework.get_context_stack().install(context):
        train(tmp_path, process, models, total_rounds=2)
    # It goes on in another context, as the same run.
    train(tmp_path, process, models)
    assert [key for key, _ in models.releases] == list(range(1, N + 1))


def test_metrics_of_every_structure_are_kept(tmp_path):
    process = build_fed_avg(
        model_fn,
        PLAN,
        OPTIMIZER,
        clients_per_round=2,
        metrics_aggregator=tff.learning.metrics.sum_then_finalize,
    )
    states, models = States(str(tmp_path / "states"), dies_after=2), Models()
    with pytest.raises(Crash):
        train(tmp_path, process, models, states)
    metrics = collections.deque()

    class Recorded(tff.program.ReleaseManager):
        async def release(self, value, key):
            metrics.append((key, value["client_work"]["train"]["num_examples"]))

    train(tmp_path, process, models, metrics=Recorded(), total_rounds=2)
    assert list(metrics) == [(2, 16)]


# --- Models after a skipped round.


@pytest.mark.parametrize(("dies_before", "keys"), [(N, [3, N]), (3, [3, N])])
def test_a_model_that_is_due_after_a_skipped_round_is_released(
    tmp_path, dies_before, keys
):
    process, models = process_of(), Models()
    states = States(str(tmp_path / "states"), dies_before=dies_before)
    with pytest.raises(Crash):
        train(tmp_path, process, models, states, release_every=3)
    outcome = train(
        tmp_path, process, models, release_every=3, interrupted_round="skip"
    )
    assert outcome.measured.skipped_rounds == (dies_before - 1,)
    assert [key for key, _ in models.releases] == keys
    last = np.concatenate([np.ravel(w) for w in outcome.model_weights.trainable])
    assert models.releases[-1][1] == last.tobytes()


def test_a_crash_in_the_release_after_a_skipped_round_releases_it_again(tmp_path):
    process = process_of()
    interrupted(tmp_path, process)
    dying = Models(dies_before=3)
    with pytest.raises(Crash):
        train(tmp_path, process, dying, interrupted_round="skip")
    models, metrics = Models(), Metrics()
    train(tmp_path, process, models, metrics=metrics, total_rounds=3)
    assert [key for key, _ in models.releases] == [3]
    assert metrics.releases == []  # the round has none


def test_nothing_is_released_twice_with_different_content(tmp_path):
    """A round's model left; then its state is lost, and it cannot be repeated."""
    process = process_of()
    first, second = Models(), Models()
    train(tmp_path, process, first, total_rounds=3)
    os.unlink(tmp_path / "states" / "state-00000003")
    other = make_source(PLAN, shift=1.0)
    outcome = train(tmp_path, process, second, source=other, total_rounds=3)
    assert outcome.measured.skipped_rounds == (2,)
    assert second.releases == []
    assert [key for key, _ in first.releases] == [1, 2, 3]


# --- What changed between two calls.


def test_devices_join_and_leave_between_two_calls(tmp_path, process):
    models = Models()
    train(tmp_path, process, models, source=make_source(PLAN), total_rounds=2)
    gone = {cohort_of(tmp_path, process, t)[0] for t in (0, 1)}
    names = [f"c{i}" for i in range(10) if f"c{i}" not in gone]
    clients = {name: lambda i=i: examples(i) for i, name in enumerate(names)}
    source = SimulatedClients(clients, PLAN, seed=3, availability=lambda t, name: 0.9)
    outcome = train(tmp_path, process, models, source=source)
    assert outcome.measured.skipped_rounds == ()
    assert [key for key, _ in models.releases] == list(range(1, N + 1))
    record = {t: cohort_of(tmp_path, process, t) for t in range(N)}
    assert not gone & set().union(*(record[t] for t in range(2, N)))
    assert outcome.measured == measure_participation(record)
    assert measured_guarantee(PLAN, outcome.measured).is_within_plan


def test_a_changed_process_is_refused(tmp_path):
    def build_with(learning_rate=0.1, model=model_fn, **options):
        options.setdefault("clients_per_round", CLIENTS_PER_ROUND)
        optimizer = tff.learning.optimizers.build_sgdm(learning_rate)
        return build_fed_avg(model, PLAN, optimizer, SERVER, **options)

    def other_model():
        layers = [
            tf.keras.layers.Dense(1, input_shape=(3,), use_bias=False),
            tf.keras.layers.Dense(1, use_bias=False),
        ]
        return tff.learning.models.from_keras_model(
            tf.keras.Sequential(layers),
            loss=tf.keras.losses.MeanSquaredError(),
            input_spec=INPUT_SPEC,
        )

    train(tmp_path, build_with(), total_rounds=2)
    with pytest.raises(ValueError, match=r"clients_per_round was 2\.0 and is 7\.0"):
        train(tmp_path, build_with(clients_per_round=7))
    with pytest.raises(ValueError, match=r"weights was .*float32\[3,1\].* and is"):
        train(tmp_path, build_with(model=other_model))
    with pytest.raises(ValueError, match="run has the hyper-parameters"):
        train(tmp_path, build_with(learning_rate=0.5))
    train(tmp_path, build_with())
