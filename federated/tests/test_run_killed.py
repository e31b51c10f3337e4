"""After kills at random moments, no noise is reused, and no device is asked too early.

The test runs this file as a program that forks a child process for each kill. Each
child starts TensorFlow itself.
"""

import asyncio
import collections
import hashlib
import os
import pathlib
import random
import signal
import sqlite3
import subprocess
import sys

import pytest

N, B, K, PER_ROUND = 15, 3, 5, 2


@pytest.mark.attack(
    "kill -9 (federated training)",
    tried="Kills at random moments, just before a write to the disk: each round sends "
    "only one model, and no device participates too early or too often.",
    area="faults",
)
@pytest.mark.invariant(2, 11)
@pytest.mark.parametrize(
    "kills", [3, pytest.param(200, marks=pytest.mark.slow)], ids=str
)
def test_killed_at_random_moments(tmp_path, kills):
    with open(tmp_path / "errors", "w") as errors:
        done = subprocess.run(
            [sys.executable, __file__, tmp_path, str(kills)],
            stdout=errors,
            stderr=errors,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
            timeout=max(1500, 60 * kills),
        )
    assert done.returncode == 0, (tmp_path / "errors").read_text()[-3000:]
    contents, came = collections.defaultdict(set), collections.defaultdict(set)
    for number, content in lines_of(tmp_path / "left"):
        contents[int(number)].add(content)
    assert set(contents) == set(range(N + 1))
    assert all(len(models) == 1 for models in contents.values())
    for device, number in lines_of(tmp_path / "took part"):
        came[device].add(int(number))
    assert came
    for rounds in map(sorted, came.values()):
        assert len(rounds) <= K
        assert all(late - early >= B for early, late in zip(rounds, rounds[1:]))


def lines_of(path):
    return [line.split() for line in path.read_text().splitlines()]


def main(folder, kills):
    """Starts `kills` children that kill themselves, and one that finishes the run."""
    random.seed(kills)
    # A round has about 60 moments at which a child can kill itself.
    end = max(2, 120 * N // (kills + 20))
    moments = [random.randrange(1, end) for _ in range(kills)]
    for moment in [*moments, None]:
        code, _, error = finish(*start(lambda _, moment=moment: train(folder, moment)))
        if code != (0 if moment is None else -signal.SIGKILL):
            raise SystemExit(f"Child of moment {moment} exited with {code}: {error}")


def die_at(moment):
    """Makes this process kill itself just before write number `moment`."""
    count = killer(moment)
    for name in ("fsync", "fdatasync", "replace"):
        setattr(os, name, count(getattr(os, name)))
    connect = sqlite3.connect

    def connected(*arguments, **options):
        # A kill may occur before any SQL statement, or in the middle of a commit.
        database = connect(*arguments, **options)
        database.set_trace_callback(count(lambda statement: None))
        database.set_progress_handler(count(lambda: 0), 100)
        return database

    sqlite3.connect = connected


def train(folder, moment):
    # Each child process computes the plan again, so use a mechanism that is planned
    # quickly.
    plan = min_sep_plan(f"bsr:{B}", N, B, K, noise_multiplier=0.5)
    devices = SimulatedDevices(str(folder / "devices"), plan, 9)
    rng = random.Random()

    def left(file, *words):
        with open(folder / file, "a") as lines:
            lines.write(" ".join(map(str, words)) + "\n")

    def model(rounds_done, weights):
        content = hashlib.sha256(b"".join(w.tobytes() for w in weights)).hexdigest()
        left("left", rounds_done, content)

    class Models:
        async def release(self, value, key):
            model(key, value)

    def exchange(request, add):
        model(request.round_number, request.weights)
        devices.gone = {name for name in request.names if rng.random() < 0.2}

        def took_part(name, update):
            add(name, update)
            left("took part", name, request.round_number)

        replies = devices.exchange(request, took_part)
        devices.gone = set()
        return replies

    weights = [np.zeros([3, 2], np.float32), np.zeros([2], np.float32)]
    engine = FederatedAveraging(plan, weights, exchange, clients_per_round=PER_ROUND)
    options = {"clients_per_round": PER_ROUND, "models": Models()}
    run = make_run(engine, devices, folder / "run", **options)
    if moment is not None:
        die_at(moment)
    asyncio.run(run.finish())


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tests" / "shared"))

    import numpy as np
    from children import finish, killer, start
    from plans import min_sep_plan
    from simulated import SimulatedDevices, make_run

    from tf_bandmf_federated.averaging import FederatedAveraging

    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
