"""Two runs that continue from copies of one server's folder share no noise."""

import asyncio
import itertools
import shutil

import numpy as np
import pytest
from plans import min_sep_plan
from simulated import Crash, SimulatedDevices, Weights, make_run

from tf_bandmf_federated import large_vectors
from tf_bandmf_federated.averaging import FederatedAveraging, Replies
from tf_bandmf_federated.round_noise import RoundNoise

N, B, K, PER_ROUND, SIZE = 12, 3, 4, 3, 2000


def make_plan(mechanism):
    mechanism = mechanism if "lambda_cgd" in mechanism else f"{mechanism}:3"
    return min_sep_plan(mechanism, N, B, K, noise_multiplier=20.0, delta=1e-6)


def make_engine(
    plan, devices, sums, meanwhile=lambda round_number: None, scale=1.0, order=1, data=0
):
    """Makes an engine whose devices send fixed random updates.

    Args:
      plan: plan of the run.
      devices: simulated devices.
      sums: dictionary that gets the sum of the updates of each round.
      meanwhile: function of the round number, called before updates are sent.
      scale: factor by which updates are multiplied.
      order: -1 if devices answer in reverse order.
      data: number that selects the devices' data.
    """

    def exchange(request, add):
        meanwhile(request.round_number)
        total = np.zeros(SIZE)
        for name in request.names[::order]:
            number = list(devices.stores).index(name) + data
            update = np.random.default_rng(number).normal(size=SIZE)
            update = np.float32(update / np.linalg.norm(update) * 0.999 * scale)
            add(name, [update])
            total += update
        sums[request.round_number] = total
        return Replies()

    return FederatedAveraging(
        plan, [np.zeros(SIZE, np.float32)], exchange, clients_per_round=PER_ROUND
    )


def run(
    plan,
    folder,
    total,
    devices,
    meanwhile=lambda round_number: None,
    interrupted_round="replay",
    **options,
):
    """Runs the first `total` rounds; returns the released weights and the sums."""
    sums, models = {}, Weights()
    engine = make_engine(plan, devices, sums, meanwhile, **options)
    begun = make_run(
        engine,
        devices,
        folder,
        clients_per_round=PER_ROUND,
        total_rounds=total,
        models=models,
        interrupted_round=interrupted_round,
    )
    asyncio.run(begun.finish())
    return models, sums


def noise_left(plan, rounds, *histories):
    """Compares the noise of two runs, and returns one number per round.

    The noise of a round is the released sum minus the devices' sum, divided by the
    standard deviation of the plan's noise. The number is the standard deviation of
    `noise of the first run - noise of the second run`.
    """
    steps = [
        np.array([PER_ROUND * (left[t + 1] - left[t]) - sums[t] for t in rounds])
        for left, sums in histories
    ]
    return ((steps[0] - steps[1]) / plan.noise_stddev).std(axis=1)


def noise_of_two_histories(plan, folder):
    """Continues two copies of a run, and compares the noise of rounds 5 to 7.

    Returns:
      For each round, the standard deviation of the difference between the runs' noise.
    """
    devices = SimulatedDevices(str(folder / "devices"), plan, 40)
    before, _ = run(plan, folder / "first", 5, devices)
    histories = []
    for name in "ab":
        shutil.copytree(folder / "first", folder / name)
        left, sums = run(plan, folder / name, 8, devices)
        left[5] = before[5]
        histories.append((left, sums))
    assert histories[0][1][5].tolist() != histories[1][1][5].tolist()
    return noise_left(plan, (5, 6, 7), *histories)


@pytest.mark.slow_cases("banded")
@pytest.mark.attack(
    "A run continues from a backup of the server's folder",
    tried="Copies the folder after 5 rounds, continues from both copies with different "
    "cohorts, and subtracts the devices' sums from the difference of the releases.",
    area="noise",
)
@pytest.mark.parametrize("mechanism", ["banded", "lambda_cgd", "bisr"])
@pytest.mark.invariant(8)
def test_two_histories_share_no_noise(mechanism, tmp_path, figure):
    # The deviation of a round is computed from 2000 noise differences. In each of them,
    # both runs have drawn their own normal variates.
    deviations = noise_of_two_histories(make_plan(mechanism), tmp_path)
    figure(f"{mechanism}: {deviations.min():.2f} times the noise remains")
    assert deviations.min() > 1.25 and deviations.max() < 3.0


def test_the_measure_sees_noise_that_is_reused(tmp_path, monkeypatch):
    # As a control, make the noise depend only on the round.
    monkeypatch.setattr(RoundNoise, "_digest", lambda *arguments: 0)
    deviations = noise_of_two_histories(make_plan("banded"), tmp_path)
    # The noise cancels, except for rounding to the grid.
    assert deviations.max() < 3e-3


@pytest.mark.attack(
    "Two histories whose sums are equal",
    tried="Continues from two copies of a folder with different devices, which all send "
    "zeros: the releases must differ, so they do not show that the sums are equal.",
    area="noise",
)
@pytest.mark.parametrize("is_bound", [True, False], ids=["bound", "control"])
@pytest.mark.invariant(8)
def test_equal_sums_do_not_show(is_bound, tmp_path, figure, monkeypatch):
    if not is_bound:
        # As a control, make the noise depend only on the sum.
        real = RoundNoise._digest
        monkeypatch.setattr(
            RoundNoise, "_digest", lambda *given: real(*given[:3], "no point")
        )
    plan = make_plan("lambda_cgd")
    devices = SimulatedDevices(str(tmp_path / "devices"), plan, 40)
    run(plan, tmp_path / "first", 2, devices)
    actual = []
    for name in "ab":
        shutil.copytree(tmp_path / "first", tmp_path / name)
        left, sums = run(plan, tmp_path / name, 3, devices, scale=0.0)
        assert not np.any(sums[2])
        actual.append(left[3])
    if not is_bound:
        np.testing.assert_array_equal(*actual)
        return
    deviation = PER_ROUND * np.std(actual[0] - actual[1]) / plan.noise_stddev
    figure(f"{deviation:.2f} times the noise remains")
    assert deviation > 1.25


@pytest.mark.attack(
    "Parts of a backup are restored",
    tried="Restores the database as it was in round 4 or 6, and the journal as it was "
    "in round 4 or 6. The run is refused, or it repeats one round exactly, and further "
    "rounds share no noise with the earlier run.",
    area="noise",
)
@pytest.mark.invariant(8, 11)
def test_parts_of_a_backup(tmp_path, figure):
    plan, ends = make_plan("banded"), ("", "-wal")
    devices = SimulatedDevices(str(tmp_path / "devices"), plan, 40)

    def snapshot(round_number):
        if round_number in (4, 6):
            shutil.copytree(tmp_path / "run", tmp_path / f"{round_number}")

    left, sums = run(plan, tmp_path / "run", 7, devices, snapshot)
    refused = 0
    for parts in itertools.product("46", repeat=2):
        folder = tmp_path / "".join(parts)
        folder.mkdir(mode=0o700)
        for end, part in zip(ends, parts):
            name = f"ledger.sqlite3{end}"
            shutil.copy2(tmp_path / part / name, folder / name)
        try:
            again, again_sums = run(plan, folder, 8, devices)
        except ValueError as error:
            assert "damaged" in str(error) and len(set(parts)) == 2
            refused += 1
            continue
        twice = [t for t in again_sums if t in sums]
        # If the copied run began after a release, add the weights of this release.
        again.setdefault(min(twice), left[min(twice)])
        # The copy's first round began before the copy was made, so it has the same
        # devices, sum and noise as in the original run.
        np.testing.assert_array_equal(again[min(twice) + 1], left[min(twice) + 1])
        if twice[1:]:
            deviations = noise_left(plan, twice[1:], (left, sums), (again, again_sums))
            assert deviations.min() > 1.25
    figure(f"{refused} of 4 are refused; the other runs share no noise")
    assert refused <= 2


@pytest.mark.attack(
    "A run continues differently from a snapshot within a round",
    tried="Continues from a copy that was made while devices compute: with replies in "
    "another order and other threads, and with different data on the same devices.",
    area="noise",
)
@pytest.mark.invariant(8, 9, 11)
def test_a_round_that_goes_on_otherwise(tmp_path, figure, monkeypatch):
    plan = make_plan("lambda_cgd")
    devices = SimulatedDevices(str(tmp_path / "devices"), plan, 40)

    def snapshot(round_number):
        if round_number == 3:
            for name in ("order", "data"):
                shutil.copytree(tmp_path / "run", tmp_path / name)

    left, sums = run(plan, tmp_path / "run", 4, devices, snapshot)
    monkeypatch.setattr(large_vectors, "_CHUNK", 300)
    monkeypatch.setattr(large_vectors, "_THREADS", 3)
    again, _ = run(plan, tmp_path / "order", 4, devices, order=-1)
    np.testing.assert_array_equal(again[4], left[4])
    other, other_sums = run(plan, tmp_path / "data", 4, devices, data=100)
    assert np.abs(other_sums[3] - sums[3]).max() > 0.01
    actual = PER_ROUND * (other[4] - left[4]) - (other_sums[3] - sums[3])
    deviation = actual.std() / plan.noise_stddev
    figure(f"other data: {deviation:.1f} times the noise remains")
    assert deviation > 1.25


def noise_after_a_skipped_round(plan, folder, devices):
    """Kills a run in round 5, skips this round, and returns the noise of round 6."""

    def killed(round_number):
        if round_number == 5:
            raise Crash

    with pytest.raises(Crash):
        run(plan, folder, 6, devices, killed)
    left, sums = run(plan, folder, 7, devices, interrupted_round="skip")
    return PER_ROUND * (left[7] - left[6]) - sums[6]


@pytest.mark.attack(
    "Two histories skip the same round",
    tried="Continues from two copies of a folder, skips one round in both, and checks "
    "that the noise of the next round contains no normals that both runs share.",
    area="noise",
)
@pytest.mark.invariant(8)
def test_histories_that_skip_a_round_share_no_normals(tmp_path, figure):
    # With this strategy, the noise of round 6 is z_6 - 0.9 z_5.
    plan = make_plan("lambda_cgd:0.9")
    devices = SimulatedDevices(str(tmp_path / "devices"), plan, 40)
    run(plan, tmp_path / "first", 5, devices)
    rows = []
    for name in "ab":
        shutil.copytree(tmp_path / "first", tmp_path / name)
        rows.append(noise_after_a_skipped_round(plan, tmp_path / name, devices))
    actual = np.corrcoef(*rows)[0, 1]
    figure(f"correlation {actual:.3f}")
    # Shared normal variates would give a correlation of 0.81 / 1.81 = 0.45. With
    # independent variates, 1 of 100,000 runs exceeds this bound.
    assert abs(actual) < 4.4 / np.sqrt(SIZE)
