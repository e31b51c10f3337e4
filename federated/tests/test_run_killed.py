"""kill -9 at random moments of a run: no noise on two contents, no device too early."""

import asyncio
import itertools
import json
import pathlib
import random
import sys

import killing
import pytest

N, B, K, PER_ROUND = 15, 3, 5, 2
EACH, LONG = 150, 120  # moments that are gone through, and rounds


@pytest.mark.attack(
    "kill -9 (federated training)",
    tried="At random moments of a run, when something is about to reach the disk: what "
    "leaves of a round is one content, and no device comes too early or too often.",
    area="faults",
    invariants=[2, 11],
)
@pytest.mark.parametrize(
    "kills", [3, pytest.param(200, marks=pytest.mark.slow)], ids=str
)
def test_killed_at_random_moments(tmp_path, kills):
    killing.run_driver(__file__, tmp_path, kills)
    assert json.loads((tmp_path / "kills").read_text()) == kills
    killing.check_what_left(tmp_path, N, B, K)


@pytest.mark.slow
def test_killed_at_each_moment(tmp_path):
    """Program after program is killed one moment later, of its start and of rounds."""
    killing.run_driver(__file__, tmp_path, EACH, "each")
    assert json.loads((tmp_path / "kills").read_text()) == EACH
    killing.check_what_left(tmp_path, LONG, B, LONG // B)


def main(folder, kills, each=""):
    random.seed(kills)
    # There are about 60 moments in a round.
    end = max(2, 120 * N // (kills + 20))
    moments = itertools.count(1).__next__ if each else lambda: random.randrange(1, end)
    rounds = LONG if each else N
    killing.kill_and_finish(
        kills, moments, lambda moment: train(folder, moment, rounds)
    )
    (folder / "kills").write_text(json.dumps(kills))


def train(folder, moment, rounds):
    plan = killing.make_plan(rounds, B, -(-rounds // B))
    devices = SimulatedDevices(str(folder / "devices"), plan, 9)
    rng, left = random.Random(), killing.Left(folder)

    def exchange(request, add):
        left.model(request.round_number, request.weights)
        devices.gone = {name for name in request.names if rng.random() < 0.2}

        def took_part(name, update):
            add(name, update)
            left.update(name, request.round_number)

        replies = devices.exchange(request, took_part)
        devices.gone = set()
        return replies

    engine = FederatedAveraging(
        plan,
        [np.zeros([3, 2], np.float32), np.zeros([2], np.float32)],
        exchange,
        clients_per_round=PER_ROUND,
    )

    options = {"clients_per_round": PER_ROUND, "models": left}
    run = make_run(engine, devices, folder / "run", **options)
    if moment is not None:
        killing.die_at(moment)
    asyncio.run(run.finish())


if __name__ == "__main__":
    import numpy as np
    from simulated import SimulatedDevices, make_run

    from tf_bandmf_federated.averaging import FederatedAveraging

    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
