"""Tests of `PrivateFedAvg` and `ParticipationMod` on an in-process Flower grid."""

import dataclasses
import functools
import io
import shutil
import time
import zipfile

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from one_process import Node, OneProcess, adding, initial_arrays, on_updates
from plans import min_sep_plan
from simulated import Crash, Models

from tf_bandmf_federated import measured_guarantee, write_report
from tf_bandmf_federated.device_policy import DevicePolicy
from tf_bandmf_federated.flower import (
    ParticipationMod,
    PrivateFedAvg,
    private_client_app,
)
from tf_bandmf_federated.flower import strategy as strategy_module
from tf_bandmf_federated.flower.devices import Devices

N, B, K, PER_ROUND = 6, 2, 3, 2


make_plan = functools.partial(min_sep_plan, "banded:2", N, B, K)


PLAN = make_plan(noise_multiplier=0.5)
TEST_PLAN = dataclasses.replace(PLAN, test_seed=3)


def make_strategy(tmp_path, plan=PLAN, **options):
    options.setdefault("clients_per_round", PER_ROUND)
    options = {"max_wait": 0.2, "query_timeout": 0.2, **options}
    return PrivateFedAvg(plan, str(tmp_path / "run"), **options)


def make_grid(tmp_path, plan=PLAN, number=6):
    return OneProcess(str(tmp_path / "nodes"), plan, number)


def start(strategy, grid, timeout=60.0, **options):
    return strategy.start(grid, initial_arrays(), timeout=timeout, **options)


def start_in_full(strategy, grid, **options):
    """Runs the strategy, and checks that every selected device has contributed."""
    result = start(strategy, grid, **options)
    for counts in result.train_metrics_clientapp.values():
        assert counts["contributing"] == PER_ROUND
    return result


def flat(arrays):
    return np.concatenate([a.ravel() for a in arrays.to_numpy_ndarrays()])


def came(grid):
    return {number: node.came for number, node in grid.nodes.items()}


@pytest.mark.invariant(1)
def test_a_run_keeps_the_plan_and_reports_it(tmp_path):
    grid, strategy = make_grid(tmp_path), make_strategy(tmp_path)
    result = start(strategy, grid)
    counts = result.train_metrics_clientapp
    assert sorted(counts) == list(range(1, N + 1))
    assert all(counts[r]["contributing"] == PER_ROUND for r in counts)
    for rounds in came(grid).values():
        assert len(rounds) <= K
        assert all(late - early >= B for early, late in zip(rounds, rounds[1:]))
    actual = write_report(str(tmp_path / "privacy.md"), PLAN, strategy.measured)
    assert actual.is_within_plan
    assert actual.guarantee.epsilon <= PLAN.epsilon * 1.0001
    # Flower numbers rounds from 1, the plan from 0. Devices see Flower's numbers.
    rounds = [c["config"]["server-round"] for _, c in grid.asked]
    assert rounds == sorted(rounds) and set(rounds) == set(range(1, N + 1))
    # The run is complete, so `start` asks no device again and returns the same result.
    again = start(make_strategy(tmp_path), grid)
    assert len(grid.asked) == len(rounds)
    assert flat(result.arrays).tobytes() == flat(again.arrays).tobytes()


@pytest.mark.invariant(14)
def test_the_sum_is_uniform_and_the_denominator_constant(tmp_path):
    """Each device adds a vector of norm 1, and the sum is divided by a constant."""
    grid = make_grid(tmp_path, TEST_PLAN)
    result = start(make_strategy(tmp_path, TEST_PLAN), grid)
    silent = make_grid(tmp_path / "2", TEST_PLAN)
    silent.silent = set(silent.nodes)
    nobody = start(make_strategy(tmp_path / "2", TEST_PLAN), silent, timeout=0.0)
    moved = flat(result.arrays) - flat(nobody.arrays)
    contributions = sum(map(len, came(grid).values()))
    np.testing.assert_allclose(moved, contributions * 0.5 / PER_ROUND, rtol=1e-4)


def test_a_crash_and_another_flower_run_give_no_second_content(tmp_path):
    grid, models = make_grid(tmp_path), Models()

    def get_lost(reply):
        if grid.asked[-1][1]["config"]["tf-bandmf.round"] == 2:
            raise Crash
        return reply

    grid.change = on_updates(get_lost)
    with pytest.raises(Crash):
        start(make_strategy(tmp_path, models=models), grid)
    grid.change = lambda reply: reply
    # The nodes restart with new numbers and the same stores.
    for number in list(grid.nodes):
        grid.restart(number, number + 100)
    after = Models()
    strategy = make_strategy(tmp_path, models=after)
    start(strategy, grid)
    contents = {}
    for key, content in models.released + after.released:
        contents.setdefault(key, set()).add(content)
    for _, content in grid.asked:
        number, arrays = content["config"]["tf-bandmf.round"], content["arrays"]
        contents.setdefault(number, set()).add(flat(arrays).tobytes())
    assert all(len(actual) == 1 for actual in contents.values())
    assert set(contents) >= set(range(1, N + 1))
    assert measured_guarantee(PLAN, strategy.measured).is_within_plan
    for rounds in came(grid).values():
        assert len(rounds) <= K


def test_a_device_refuses_by_itself_whatever_the_server_forgot(tmp_path, monkeypatch):
    """Devices refuse a second run of a plan, because they recorded the first run."""
    # Each round asks two of four devices, and no device in two consecutive rounds.
    grid = make_grid(tmp_path, number=4)
    start(make_strategy(tmp_path), grid)
    before = came(grid)
    assert all(len(rounds) == K for rounds in before.values())
    # A server that lost its record of the run is stopped before a round begins: when the
    # devices report their names, they also report that they took part in the run before.
    with pytest.raises(RuntimeError, match=r"4 node\(s\) claim .* has not begun"):
        start(make_strategy(tmp_path / "another"), grid)
    assert came(grid) == before
    # If the server skips this check, the devices themselves refuse to take part.
    monkeypatch.setattr(Devices, "_is_of_this_run", lambda *arguments: True)
    result = start(make_strategy(tmp_path / "another"), grid)
    counts = result.train_metrics_clientapp
    assert sum(c["refused"] for c in counts.values()) > 0
    for number, rounds in came(grid).items():
        assert rounds[: len(before[number])] == before[number]
        assert len(rounds) <= K
        assert all(late - early >= B for early, late in zip(rounds, rounds[1:]))


@pytest.mark.invariant(8)
def test_a_receipt_of_a_later_round_ends_the_run(tmp_path):
    grid, folder = make_grid(tmp_path), tmp_path / "run"
    start(make_strategy(tmp_path), grid, num_rounds=2)
    shutil.copytree(folder, tmp_path / "backup")
    start(make_strategy(tmp_path), grid, num_rounds=4)
    before = came(grid)
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "backup", folder)
    with pytest.raises(RuntimeError, match=r"receipt for round \d.*\(2 rounds\).* old"):
        start(make_strategy(tmp_path), grid)
    assert came(grid) == before


@pytest.mark.invariant(8)
def test_a_receipt_ends_the_run_also_when_its_round_has_passed(tmp_path, monkeypatch):
    grid, folder = make_grid(tmp_path, number=8), tmp_path / "run"
    start(make_strategy(tmp_path), grid, num_rounds=1)
    shutil.copytree(folder, tmp_path / "backup")
    start(make_strategy(tmp_path), grid, num_rounds=2)
    lost = {number for number, rounds in came(grid).items() if 1 in rounds}
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "backup", folder)
    monkeypatch.setattr(grid, "get_node_ids", lambda: sorted(set(grid.nodes) - lost))
    # The restored run has no record of round 1, and runs it again with other devices.
    start(make_strategy(tmp_path), grid, num_rounds=3)
    monkeypatch.undo()
    with pytest.raises(RuntimeError, match=r"receipt for round 1, .*\(3 rounds\)"):
        start(make_strategy(tmp_path), grid)


@pytest.mark.invariant(8)
def test_a_refusal_shows_that_a_copy_runs_beside(tmp_path, monkeypatch):
    # Skip the check of the devices' names, as if both servers had asked for the names
    # before the folder was copied.
    monkeypatch.setattr(Devices, "_is_of_this_run", lambda *arguments: True)
    grid, copies = make_grid(tmp_path, number=4), [tmp_path / "a", tmp_path / "b"]
    start(make_strategy(copies[0]), grid, num_rounds=1)
    shutil.copytree(*copies)
    start(make_strategy(copies[0]), grid, num_rounds=2)
    # The server with the copied folder asks the same two devices. These already have a
    # receipt for this round, from the server with the original folder.
    with pytest.raises(RuntimeError, match=r"receipt for round 1, .*\(2 rounds\)"):
        start(make_strategy(copies[1]), grid)


def says(**entries):
    """Returns a function that changes what a device reports about itself."""

    def change(reply):
        about = dict(reply.content["tf-bandmf"])
        reply.content["tf-bandmf"] = ConfigRecord({**about, **entries})
        return reply

    return change


@pytest.mark.parametrize(
    "change",
    [
        says(last_round=10**15),
        says(last_round=3, receipt="0" * 32),
        says(last_round=3, receipt=[1, 2]),
        says(last_round="3"),
        says(last_round=[3]),
        says(device=b"1" * 32),
        says(device=7, plan=8),
    ],
)
@pytest.mark.invariant(18)
def test_a_device_that_lies_about_itself_is_left_out(tmp_path, change):
    grid, liar = make_grid(tmp_path, number=7), 7
    grid.change = lambda r: change(r) if r.metadata.src_node_id == liar else r
    start_in_full(make_strategy(tmp_path), grid)
    assert came(grid)[liar] == []


def cut_off(reply):
    for array in reply.content.array_records.get("arrays", {}).values():
        array.data = array.data[:-1]
    return reply


def without_mod(reply):
    return Message(
        RecordDict({"arrays": reply.content["arrays"]}), metadata=reply.metadata
    )


@pytest.mark.parametrize("change", [cut_off, without_mod, says(round=99)])
@pytest.mark.invariant(18)
def test_what_a_device_sends_ends_no_run(tmp_path, change):
    grid = make_grid(tmp_path)
    grid.change = on_updates(change)
    result = start(make_strategy(tmp_path), grid)
    counts = result.train_metrics_clientapp
    assert all(c["contributing"] == 0 for c in counts.values())
    assert sum(c["failed"] for c in counts.values()) == PER_ROUND * N


def test_only_the_update_leaves_a_device(tmp_path):
    grid, seen = make_grid(tmp_path), []

    def look(reply):
        seen.append({name: set(record) for name, record in reply.content.items()})
        return reply

    grid.change = on_updates(look)
    start(make_strategy(tmp_path), grid, num_rounds=1)
    entries = {"plan", "run", "round", "device", "problem", "last_round", "receipt"}
    assert seen == [{"arrays": {"w0", "w1"}, "tf-bandmf": entries}] * PER_ROUND


def trains(grid, function, numbers=None):
    """Replaces the training function of nodes.

    Args:
      grid: the grid.
      function: the new training function.
      numbers: numbers of the nodes; by default, of all nodes.
    """
    for number in numbers or grid.nodes:
        app = grid.nodes[number].app
        del app._registered_funcs["train.default"]
        app.train()(function)


def test_an_app_that_fails_sends_no_text_and_its_round_counts(tmp_path):
    grid, seen = make_grid(tmp_path), []
    trains(grid, lambda message, context: {}["a secret of the data"])
    grid.change = on_updates(lambda reply: seen.append(reply) or reply)
    result = start(make_strategy(tmp_path), grid, num_rounds=1)
    assert result.train_metrics_clientapp[1]["failed"] == PER_ROUND
    assert {reply.content["tf-bandmf"]["problem"] for reply in seen} == {"failed"}


def test_evaluation_on_devices_is_refused_and_on_public_data_works(tmp_path):
    grid = make_grid(tmp_path)
    with pytest.raises(ValueError, match="evaluate_config must be None"):
        start(make_strategy(tmp_path), grid, evaluate_config=ConfigRecord())
    node = next(iter(grid.nodes.values()))
    grid.push_messages([message := Message(RecordDict(), node.number, "evaluate")])
    node.app.evaluate()(lambda message, context: message)
    with pytest.raises(ValueError, match="refuses 'evaluate' messages"):
        node.app(message, node.context)
    rounds = []
    start(make_strategy(tmp_path), grid, evaluate_fn=lambda r, arrays: rounds.append(r))
    assert rounds == list(range(1, N + 1))


def test_over_selection_and_late_reports(tmp_path):
    grid = make_grid(tmp_path, number=9)
    late_round = {}

    def slow_first(server_round, arrays):
        # Devices that did not answer during round 0 answer after the end of the round.
        late_round.setdefault(server_round, set(grid.slow))
        grid.slow = set()

    def slow_down(messages):
        if not late_round:
            grid.slow = {m.metadata.dst_node_id for m in messages[:2]}

    strategy = make_strategy(tmp_path, over_selection=2.0)
    grid.before_train = slow_down
    result = start(strategy, grid, timeout=1.0, evaluate_fn=slow_first)
    counts = result.train_metrics_clientapp
    assert counts[1]["selected"] == 4 and counts[1]["contributing"] == 2
    assert counts[2]["contributing"] == counts[2]["selected"] > PER_ROUND
    assert len(late_round[1]) == 2
    assert counts[2]["late"] == 2
    # The ledger counts late devices as participants too.
    assert strategy.measured.num_participations >= 4 + 2


def sum_of_a_round(folder, victim):
    """Returns the sum of a round that asks three devices and waits for two.

    Device 1 normally answers at the first poll, and the other devices answer later. The
    sum contains only the updates of devices for which the server waits.
    """
    grid, looks = make_grid(folder, TEST_PLAN, number=3), []
    policy = DevicePolicy.from_plan(TEST_PLAN)
    for number in grid.nodes:
        value = {1: 0.0 if victim == "adds zeros" else 1.0}.get(number, -1.0)
        store = str(folder / "nodes" / str(number))
        grid.nodes[number] = Node(store, policy, number, value)
    if victim == "fails":
        trains(grid, lambda message, context: 1 / 0, [1])
    real = grid.pull_messages

    def pull(message_ids):
        if grid.asked:
            looks.append(1)
        grid.slow = {n for n in (2, 3) if grid.asked and n > len(looks)}
        if victim == "is slow":
            grid.silent = {1}
        return real(message_ids)

    grid.pull_messages = pull
    strategy = make_strategy(folder, TEST_PLAN, over_selection=1.5)
    result = start(strategy, grid, timeout=1.0, num_rounds=1)
    return PER_ROUND * np.float64(flat(result.arrays))


@pytest.mark.attack(
    "One device that is slow or fails, with over-selection",
    tried="Asks three devices although two suffice. One of them adds zeros, fails or "
    "is slow: the released sum must change only by the update of this device.",
    area="faults",
)
@pytest.mark.invariant(16)
@pytest.mark.parametrize("victim", ["adds zeros", "fails", "is slow"])
def test_a_device_decides_about_nothing_but_its_own_update(victim, tmp_path, figure):
    with_it = sum_of_a_round(tmp_path / "with", "adds")
    without = sum_of_a_round(tmp_path / "without", victim)
    moved = np.linalg.norm(with_it - without) / TEST_PLAN.l2_norm_clip
    figure(f"a device that {victim} moves the sum by {moved:.3f} clip norms")
    assert moved == pytest.approx(1.0, abs=1e-4)


def test_its_parts_are_refused_outside_of_start(tmp_path):
    strategy = make_strategy(tmp_path)
    for act in ("configure", "aggregate"):
        for what in ("train", "evaluate"):
            with pytest.raises(RuntimeError, match="call start"):
                getattr(strategy, f"{act}_{what}")(1, initial_arrays())
    with pytest.raises(ValueError, match="No round has run"):
        strategy.measured  # noqa: B018


@pytest.mark.parametrize(
    "options, text",
    [
        (dict(clients_per_round=2.5), "whole"),
        (dict(clients_per_round=None), "clients_per_round is missing"),
        (dict(over_selection=0.5), "over_selection"),
        (dict(interrupted_round="again"), "interrupted_round"),
        (dict(over_selection=1.5, timeout=None), "timeout=SECONDS"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_sent(tmp_path, options, text):
    grid = make_grid(tmp_path)
    timeout = options.pop("timeout", 60.0)
    with pytest.raises(ValueError, match=text):
        start(make_strategy(tmp_path, **options), grid, timeout=timeout)
    assert not grid.asked


def mod_of(plan):
    policy = DevicePolicy.from_plan(plan)
    return ParticipationMod(policy, lambda context: context.node_config["store"])


def of_another_plan(grid):
    other = DevicePolicy.from_plan(make_plan(noise_multiplier=0.7))
    for number, node in grid.nodes.items():
        grid.nodes[number] = Node(node.context.node_config["store"], other, number, 1.0)


@pytest.mark.parametrize(
    "change, text",
    [
        (of_another_plan, r"4 node\(s\) have the policy of another plan"),
        (lambda grid: grid.nodes.clear(), "Of 0 connected nodes: there are none"),
    ],
)
def test_why_nobody_may_take_part_is_said(tmp_path, change, text):
    grid = make_grid(tmp_path, number=4)
    change(grid)
    with pytest.raises(RuntimeError, match=text):
        start(make_strategy(tmp_path), grid)
    assert not grid.asked


def test_a_mod_that_is_installed_serves_an_app_with_further_mods(tmp_path):
    grid, seen = make_grid(tmp_path), []

    def further(message, context, call_next):
        seen.append(message.metadata.message_type)
        return call_next(message, context)

    for node in grid.nodes.values():
        mod = mod_of(PLAN)
        node.app = mod.install(ClientApp(mods=[mod, further]))
        node.app.train()(adding(1, node.came))
    start_in_full(make_strategy(tmp_path), grid)
    assert set(seen) == {"train"} and len(seen) == N * PER_ROUND
    app = private_client_app(DevicePolicy.from_plan(PLAN), "store", mods=[further])
    assert app._mods[1:] == [further]


def test_arrays_that_are_not_trained_are_sent_and_never_come_back(tmp_path):
    """A counter and a moving average are sent to devices, which do not return them."""
    grid, seen, left = make_grid(tmp_path, TEST_PLAN), [], []
    first = {
        "w0": np.zeros([3, 1], np.float32),
        "batches": np.array(7, np.int64),
        "average": np.full([2], 1e9, np.float32),
        "w1": np.zeros([1], np.float32),
    }

    def adds_one(message, context):
        before = {n: a.numpy() for n, a in message.content["arrays"].items()}
        seen.append(before)
        after = {n: Array(np.array(a + 1, a.dtype)) for n, a in before.items()}
        return Message(RecordDict({"new": ArrayRecord(after)}), reply_to=message)

    trains(grid, adds_one)
    grid.change = on_updates(lambda r: left.append(set(r.content["arrays"])) or r)
    strategy = make_strategy(tmp_path, TEST_PLAN, not_trained=["batches", "average"])
    arrays = ArrayRecord({name: Array(value) for name, value in first.items()})
    result = strategy.start(grid, arrays, timeout=60.0)
    counts = result.train_metrics_clientapp
    assert all(c["contributing"] == PER_ROUND for c in counts.values())
    assert left == [{"w0", "w1"}] * (N * PER_ROUND)
    actual = {name: array.numpy() for name, array in result.arrays.items()}
    for one in (actual, seen[0], seen[-1]):
        assert list(one) == list(first)
        for name in ("batches", "average"):
            np.testing.assert_array_equal(one[name], first[name])
    # The norm of an update's trained arrays is 2, so clipping to norm 1 halves it.
    plain = make_grid(tmp_path / "plain", TEST_PLAN)
    plain.silent = set(plain.nodes)
    nobody = start(make_strategy(tmp_path / "plain", TEST_PLAN), plain, timeout=0.0)
    moved = np.concatenate([actual["w0"].ravel(), actual["w1"]]) - flat(nobody.arrays)
    np.testing.assert_allclose(moved, N * 0.5, rtol=1e-3)
    # A run cannot continue if the arrays that are not trained have changed.
    with pytest.raises(ValueError, match="belongs to another run: not_trained"):
        changed = {**first, "batches": np.array(8, np.int64)}
        arrays = ArrayRecord({name: Array(value) for name, value in changed.items()})
        strategy.start(grid, arrays, timeout=60.0)
    with pytest.raises(ValueError, match="not_trained must contain"):
        start(strategy, grid)


@pytest.mark.parametrize("over_selection", [1.0, 1.5])
def test_a_device_that_leaves_does_not_make_a_round_last(
    tmp_path, monkeypatch, over_selection
):
    monkeypatch.setattr(strategy_module, "_GONE", 0.05)
    grid = make_grid(tmp_path, number=3)
    grid.silent = {1, 2, 3}

    def leave(messages):
        # One node disconnects, and the others answer.
        del grid.nodes[messages[0].metadata.dst_node_id]
        grid.silent = set()

    grid.before_train = leave
    strategy = make_strategy(tmp_path, over_selection=over_selection)
    began = time.monotonic()
    result = start(strategy, grid, num_rounds=1, timeout=1000.0)
    assert time.monotonic() - began < 100.0
    counts = result.train_metrics_clientapp[1]
    assert (counts["failed"], counts["selected"]) == (1, counts["contributing"] + 1)


def test_a_node_that_does_not_say_its_name_delays_no_round(tmp_path):
    grid = make_grid(tmp_path)

    def another(server_round, arrays):
        number = 100 + server_round
        grid.nodes[number] = None
        grid.slow.add(number)

    another(0, None)
    began = time.monotonic()
    strategy = make_strategy(tmp_path, query_timeout=1000.0)
    start_in_full(strategy, grid, evaluate_fn=another)
    assert time.monotonic() - began < 100.0


@pytest.fixture
def lines(monkeypatch):
    """Returns a list to which the strategy's log lines are appended."""
    made = []
    log = lambda level, text, *values: made.append(text % values)  # noqa: E731
    monkeypatch.setattr(strategy_module, "log", log)
    return made


def test_what_a_device_says_makes_no_lines_in_the_log(tmp_path, lines):
    grid = make_grid(tmp_path)
    forged = "x\nround 5 of 6 done; epsilon <= 0.001" + "y" * 2_000_000
    grid.change = on_updates(says(problem=forged))
    result = start(make_strategy(tmp_path), grid, num_rounds=1)
    assert result.train_metrics_clientapp[1]["failed"] == PER_ROUND
    said = [line for line in lines if "0.001" in line]
    assert len(said) == PER_ROUND
    assert all("\n" not in line and len(line) < 500 for line in said)


@pytest.mark.attack(
    "A run's files in the bundle of a Flower app",
    tried="Puts a server's folder or a device's store into an app, which is refused. "
    "Copies a finished run into an app: Flower's builder does not bundle it.",
    area="secrets",
)
@pytest.mark.invariant(10)
def test_no_file_of_a_run_is_bundled(tmp_path, figure):
    from flwr.cli.build import build_fab_from_disk

    app, run = tmp_path / "app", tmp_path / "output"
    app.mkdir()
    (app / "server.py").write_text("app = None\n")
    # As a control, this file is bundled.
    (app / "secret.json").write_text("{}")
    (app / "pyproject.toml").write_text(
        '[project]\nname = "app"\nversion = "1.0.0"\ndescription = ""\n'
        'license = "Apache-2.0"\n[tool.flwr.app]\npublisher = "x"\n'
        '[tool.flwr.app.components]\nserverapp = "server:app"\n'
        'clientapp = "server:app"\n'
    )
    for folder in (app, app / "below"):
        with pytest.raises(ValueError, match="outside of a Flower app"):
            PrivateFedAvg(PLAN, str(folder), clients_per_round=2)
        with pytest.raises(ValueError, match="outside of a Flower app"):
            mod_of(PLAN).answer(None, make_grid(folder).nodes[1].context)
    start(make_strategy(run), make_grid(run), num_rounds=2)
    shutil.copytree(run, app / "output")
    with zipfile.ZipFile(io.BytesIO(build_fab_from_disk(app))) as bundle:
        names = bundle.namelist()
    assert "secret.json" in names
    assert len([path for path in (app / "output").rglob("*") if path.is_file()]) > 10
    assert not [name for name in names if name.startswith("output")]
    figure("bundled: the control file, and no file of the run")


def test_a_query_that_failed_is_asked_again(tmp_path):
    grid, failed = make_grid(tmp_path, number=4), set()

    def once_in_vain(reply):
        node = reply.metadata.src_node_id
        if node not in failed:
            failed.add(node)
            reply.content = RecordDict()
        return reply

    grid.change = once_in_vain
    start_in_full(make_strategy(tmp_path), grid)
    assert len(failed) == 4
