"""Interrupted runs of the NumPy server never send a second model for a round."""

import asyncio
import dataclasses
import functools
import re

import numpy as np
import pytest
import simulated
from plans import min_sep_plan
from simulated import Crash, Models

import tf_bandmf
from tf_bandmf.noise import NoiseGenerator
from tf_bandmf_federated import ledger as ledger_module
from tf_bandmf_federated import measure_participation
from tf_bandmf_federated.averaging import FederatedAveraging, Replies
from tf_bandmf_federated.health import line_of
from tf_bandmf_federated.ledger import Ledger
from tf_bandmf_federated.rounds import LEDGER_FILE
from tf_bandmf_federated.server_optimizers import ServerYogi

N, B, K, PER_ROUND = 7, 2, 3, 2
SHAPES = ([3, 1], [1])


make_plan = functools.partial(min_sep_plan, "banded:2", N, B, K)


PLAN = make_plan(noise_multiplier=0.5)
TEST_PLAN = dataclasses.replace(PLAN, test_seed=3)


def make_run(tmp_path, devices, plan=PLAN, exchange=None, **options):
    engine_options = options.pop("engine", {})
    engine = FederatedAveraging(
        plan,
        [np.zeros(shape, np.float32) for shape in SHAPES],
        exchange or devices.exchange,
        **{"clients_per_round": PER_ROUND, **engine_options},
    )

    options = {"clients_per_round": PER_ROUND, **options}
    return simulated.make_run(engine, devices, tmp_path / "run", **options)


def finish(*arguments, **options):
    return asyncio.run(make_run(*arguments, **options).finish())


def make_devices(tmp_path, number=8, plan=PLAN):
    return simulated.SimulatedDevices(str(tmp_path / "devices"), plan, number)


def flat(state):
    return np.concatenate([np.ravel(w) for w in state.state["weights"]])


def check_one_content(devices, models):
    """Checks that only one model was sent and released for each round."""
    contents = {}
    for number, content, _ in devices.asked:
        contents.setdefault(number, set()).add(content)
    for key, content in models:
        contents.setdefault(key, set()).add(content)
    assert all(len(actual) == 1 for actual in contents.values())


@pytest.mark.parametrize("who", ["all", "nobody"])
@pytest.mark.invariant(5)
def test_the_model_is_the_sum_of_updates_and_of_the_cores_noise(who, tmp_path):
    devices = make_devices(tmp_path, plan=TEST_PLAN)
    exchange = devices.exchange if who == "all" else lambda request, add: Replies()
    done, _ = finish(tmp_path, devices, plan=TEST_PLAN, exchange=exchange)
    generator = NoiseGenerator(TEST_PLAN.strategy, 4)
    state = generator.initial_state(tf_bandmf.noise.keys.NoiseKey.for_testing(3))
    noise = np.zeros(4)
    for step in range(N):
        row, state = generator.next(state, step)
        noise += row.numpy()
    # Each device adds a vector of norm 1 with equal entries.
    asked = sum(len(names) for _, _, names in devices.asked)
    expected = (asked * 0.5 + TEST_PLAN.noise_stddev * noise) / PER_ROUND
    np.testing.assert_allclose(flat(done), expected, rtol=1e-4, atol=3e-3)


@pytest.mark.invariant(4)
def test_the_server_clips_again_and_divides_by_a_constant(tmp_path):
    devices = make_devices(tmp_path, plan=TEST_PLAN)

    def liar(request, add):
        add(request.names[0], [np.full(shape, 1e9, np.float32) for shape in SHAPES])
        return Replies()

    told, _ = finish(tmp_path, devices, plan=TEST_PLAN, exchange=liar)
    nobody, _ = finish(
        tmp_path / "2", devices, plan=TEST_PLAN, exchange=lambda request, add: Replies()
    )
    moved = np.linalg.norm(flat(told) - flat(nobody))
    assert moved == pytest.approx(N / PER_ROUND, rel=1e-4)


@pytest.mark.parametrize(
    "answer, count",
    [
        ([np.full(shape, np.nan, np.float32) for shape in SHAPES], "non_finite"),
        ([np.zeros([5], np.float32)], "failed"),
        ([np.array([["a"]]), np.array([1])], "failed"),
        (None, "failed"),
        ([[[1.0, 2.0], [3.0]]], "failed"),
        ([object()], "failed"),
    ],
)
@pytest.mark.invariant(18)
def test_a_bad_answer_adds_nothing_and_stops_nobody(answer, count, tmp_path):
    devices, metrics = make_devices(tmp_path), []

    def exchange(request, add):
        return devices.exchange(request, lambda name, update: add(name, answer))

    finish(
        tmp_path,
        devices,
        exchange=exchange,
        total_rounds=1,
        after_round=lambda state: metrics.append(state.metrics),
    )
    assert (metrics[0][count], metrics[0]["contributing"]) == (PER_ROUND, 0)


def test_updates_of_who_was_not_asked_and_second_ones_are_refused(tmp_path):
    devices = make_devices(tmp_path)
    update = [np.zeros(shape, np.float32) for shape in SHAPES]

    def twice(request, add):
        add(request.names[0], update)
        add(request.names[0], update)

    with pytest.raises(ValueError, match="not selected"):
        finish(tmp_path, devices, exchange=lambda request, add: add("me", update))
    with pytest.raises(ValueError, match="update was already added"):
        finish(tmp_path, devices, exchange=twice)


STAGES = ["sending", "answers", "lost result", "saved", "release", "released"]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("interrupted_round", ["replay", "skip"])
@pytest.mark.invariant(11)
def test_a_crash_gives_no_second_content(
    tmp_path, stage, interrupted_round, monkeypatch
):
    devices, wrote, told = make_devices(tmp_path), Ledger.finished, Ledger.released

    def dies(request, add):
        if request.round_number == 2 and stage == "sending":
            raise Crash
        replies = devices.exchange(request, add)
        if request.round_number == 2 and stage == "answers":
            raise Crash
        return replies

    def finished(self, number, state, skipped=None):
        if number == 2 and stage == "lost result":
            raise Crash
        wrote(self, number, state, skipped)
        if number == 2 and stage == "saved":
            raise Crash

    def released(self, number):
        told(self, number)
        if number == 2 and stage == "released":
            raise Crash

    models = Models(dies_at=3 if stage == "release" else None)
    with monkeypatch.context() as patch, pytest.raises(Crash):
        patch.setattr(Ledger, "finished", finished)
        patch.setattr(Ledger, "released", released)
        finish(tmp_path, devices, exchange=dies, models=models)
    # Two devices are no longer available when the run continues.
    devices.gone = set(list(devices.stores)[:2])
    after = Models()
    _, measured = finish(
        tmp_path, devices, models=after, interrupted_round=interrupted_round
    )
    check_one_content(devices, models.released + after.released)
    assert len({names for number, _, names in devices.asked if number == 2}) <= 1
    assert max(s.record["participations"] for s in devices.stores.values()) <= K
    skips = interrupted_round == "skip" and stage in STAGES[:3]
    assert measured.skipped_rounds == ((2,) if skips else ())
    assert {key for key, _ in models.released + after.released} == set(range(1, N + 1))
    if skips:
        contents = dict(models.released + after.released)
        assert contents[3] == contents[2]
    # The run is complete, so another call releases nothing.
    again = Models()
    finish(tmp_path, devices, models=again)
    assert again.released == []


@pytest.mark.parametrize("dies_at", [3, N])
def test_only_some_models_are_released_also_after_a_skipped_round(tmp_path, dies_at):
    devices, models = make_devices(tmp_path), Models()

    def dies(request, add):
        if request.round_number == dies_at - 1:
            raise Crash
        return devices.exchange(request, add)

    with pytest.raises(Crash):
        finish(tmp_path, devices, exchange=dies, models=models, release_every=3)
    done, measured = finish(
        tmp_path, devices, models=models, release_every=3, interrupted_round="skip"
    )
    assert measured.skipped_rounds == (dies_at - 1,)
    assert [key for key, _ in models.released] == [3, 6, N]
    assert models.released[-1][1] == flat(done).tobytes()


@pytest.mark.invariant(11)
def test_another_model_plan_format_or_denominator_is_refused(tmp_path, monkeypatch):
    devices = make_devices(tmp_path)
    finish(tmp_path, devices, total_rounds=2)
    with pytest.raises(ValueError, match="belongs to another run: server_optimizer"):
        finish(tmp_path, devices, engine={"optimizer": ServerYogi()})
    with pytest.raises(ValueError, match="belongs to another run: plan"):
        finish(tmp_path, devices, plan=make_plan(noise_multiplier=0.7))
    with pytest.raises(ValueError, match="belongs to another run: clients_per_round"):
        finish(tmp_path, devices, engine={"clients_per_round": 3})
    asked = len(devices.asked)
    monkeypatch.setattr(ledger_module, "_FORMAT", "another")
    with pytest.raises(ValueError, match="belongs to another run: format was"):
        finish(tmp_path, devices)
    # No device was asked again.
    assert len(devices.asked) == asked


def test_a_run_goes_on_to_more_rounds_but_not_past_the_plan(tmp_path):
    devices = make_devices(tmp_path)
    finish(tmp_path, devices, total_rounds=3)
    with pytest.raises(ValueError, match=r"total_rounds .* must be at least .* \(3\)"):
        finish(tmp_path, devices, total_rounds=2)
    _, measured = finish(tmp_path, devices)
    assert measured.num_rounds == N
    with pytest.raises(ValueError, match=r"num_rounds must be in \[1, 7\]"):
        make_run(tmp_path, devices, total_rounds=N + 1)


def test_the_health_line_has_counts_and_a_growing_epsilon(tmp_path):
    devices = make_devices(tmp_path)
    lines, most = [], []

    def after_round(state):
        number = len(state.state["noise"]["digests"]) - 1
        measured = measure_participation(
            dict(enumerate(n for _, _, n in devices.asked))
        )
        most.append(measured.max_participations)
        lines.append(line_of(PLAN, number, state.metrics, measured))

    finish(tmp_path, devices, after_round=after_round)
    assert re.match(
        r"round 0 of 7 done: available 8, eligible 8, selected 2, reported 2", lines[0]
    )
    spent = [float(re.search(r"epsilon <= ([\d.]+) so far", line)[1]) for line in lines]
    assert spent == sorted(spent) and 0 < spent[0] < spent[-1]
    assert spent[-1] <= PLAN.epsilon + 0.001
    # The devices are drawn at random; in some runs, none takes part as often as it may.
    assert spent[-1] >= PLAN.epsilon or most[-1] < PLAN.participation.participations(N)


def test_the_folder_is_private(tmp_path):
    finish(tmp_path, make_devices(tmp_path), total_rounds=2)
    folder = tmp_path / "run"
    assert folder.stat().st_mode & 0o777 == 0o700
    names = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert names == {LEDGER_FILE: 0o600, f"{LEDGER_FILE}.lock": 0o600}
