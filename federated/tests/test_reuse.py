"""Old copies of a server's folder: no two releases share noise on different sums."""

import asyncio
import shutil

import numpy as np
import pytest
from simulated import SimulatedDevices

import tf_bandmf
from tf_bandmf_federated.averaging import FederatedAveraging, Replies
from tf_bandmf_federated.cohorts import AvailableCohorts
from tf_bandmf_federated.host_noise import HostNoise
from tf_bandmf_federated.rounds import ProgramState
from tf_bandmf_federated.running import Run

N, B, K, PER_ROUND, SIZE = 12, 3, 4, 3, 2000


class Models:
    def __init__(self):
        self.left = {}

    async def release(self, value, key):
        self.left[key] = value[0].copy()


def make_plan(mechanism):
    return tf_bandmf.plan(
        mechanism if mechanism == "lambda_cgd" else f"{mechanism}:3",
        noise_multiplier=20.0,
        delta=1e-6,
        num_steps=N,
        participation=tf_bandmf.MinSep(B, K),
    )


def run(plan, folder, total, devices):
    """Releases of the rounds up to `total`, and the sums that were sent."""
    sums, models = {}, Models()

    def exchange(request, add):
        total = np.zeros(SIZE)
        for name in request.names:
            number = list(devices.stores).index(name)
            update = np.random.default_rng(number).normal(size=SIZE)
            update = np.float32(update / np.linalg.norm(update) * 0.999)
            add(name, [update])
            total += update
        sums[request.round_number] = total
        return Replies()

    engine = FederatedAveraging(
        plan, [np.zeros(SIZE, np.float32)], exchange, clients_per_round=PER_ROUND
    )

    async def first(ledger):
        cohorts = AvailableCohorts(ledger, devices.present, plan.participation)
        return ProgramState(engine.initial_state(), engine.no_metrics(), cohorts)

    asyncio.run(
        Run(
            plan=plan,
            engine=engine,
            settings=engine.settings,
            host_noise=engine.host_noise,
            first=first,
            private_dir=str(folder),
            clients_per_round=PER_ROUND,
            total_rounds=total,
            models=models,
        ).finish()
    )
    return models.left, sums


def two_histories(plan, folder, devices):
    """What rounds 5 to 7 release and sum, from two copies of the folder of round 5."""
    before, _ = run(plan, folder / "first", 5, devices)
    found = []
    for name in "ab":
        shutil.copytree(folder / "first", folder / name)
        left, sums = run(plan, folder / name, 8, devices)
        left[5] = before[5]
        steps = [PER_ROUND * (left[t + 1] - left[t]) for t in (5, 6, 7)]
        found.append((np.array(steps), np.array([sums[t] for t in (5, 6, 7)])))
    return found


@pytest.mark.attack(
    "A backup of the server's folder goes on (invariant 8)",
    tried="Copies the folder after 5 rounds, goes on from both copies with other cohorts, "
    "and subtracts the devices' sums from the difference of what both release.",
    area="noise",
    invariants=[8],
)
@pytest.mark.parametrize("mechanism", ["banded", "lambda_cgd", "bisr"])
def test_invariant_8_two_histories_share_no_noise(mechanism, tmp_path, figure):
    plan = make_plan(mechanism)
    devices = SimulatedDevices(str(tmp_path / "devices"), plan, 40)
    (a, sums_a), (b, sums_b) = two_histories(plan, tmp_path, devices)
    left = (a - b - (sums_a - sums_b)) / plan.noise_stddev
    # Of each round: 2000 differences, of rows of C^-1 Z with independent new normals.
    deviations = left.std(axis=1)
    figure(f"{mechanism}: {deviations.min():.2f} times the noise is left")
    assert deviations.min() > 1.3 and deviations.max() < 3.0


def test_the_measure_sees_noise_that_is_reused(tmp_path, monkeypatch):
    # The control: noise that is bound to the rounds alone.
    monkeypatch.setattr(HostNoise, "digest", lambda *arguments: 0)
    plan = make_plan("banded")
    devices = SimulatedDevices(str(tmp_path / "devices"), plan, 40)
    (a, sums_a), (b, sums_b) = two_histories(plan, tmp_path, devices)
    np.testing.assert_allclose(a - b, sums_a - sums_b, atol=1e-3)


def test_the_same_replies_get_the_same_noise(tmp_path):
    plan = make_plan("banded")
    host = HostNoise(plan, SIZE)
    engine = FederatedAveraging(
        plan,
        [np.zeros(SIZE, np.float32)],
        lambda request: Replies({}),
        clients_per_round=PER_ROUND,
    )
    state = engine.initial_state()
    noise = host.bound_to(state, np.zeros(SIZE))[0]
    np.testing.assert_array_equal(noise, host.bound_to(state, np.zeros(SIZE))[0])
    other = host.bound_to(state, np.ones(SIZE))[0]
    assert abs(np.corrcoef(noise, other)[0, 1]) < 5 / np.sqrt(SIZE)
    np.testing.assert_array_equal(noise, host.bound_to(state, np.zeros(SIZE))[0])
