"""kill -9 at random moments of a run: no noise on two contents, no device too early."""

import asyncio
import collections
import json
import os
import pathlib
import random
import signal
import subprocess
import sys

import pytest

N, B, K, PER_ROUND = 15, 3, 5, 2


@pytest.mark.parametrize(
    "kills", [3, pytest.param(100, marks=pytest.mark.slow)], ids=str
)
def test_killed_at_random_moments(tmp_path, kills):
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    with open(tmp_path / "errors", "w") as errors:
        driver = subprocess.run(
            [sys.executable, __file__, str(tmp_path), str(kills)],
            stdout=errors,
            stderr=errors,
            env=environment,
            timeout=1500,
            check=False,
        )
    assert driver.returncode == 0, (tmp_path / "errors").read_text()[-3000:]
    check(tmp_path, kills)


def check(folder, kills):
    """What left is in files that each child adds to before it goes on."""
    killed = json.loads((folder / "kills").read_text())
    assert killed == kills
    contents, came = collections.defaultdict(set), collections.defaultdict(set)
    for line in (folder / "left").read_text().splitlines():
        number, content = line.split()
        contents[int(number)].add(content)
    assert set(contents) == set(range(N + 1))
    assert all(len(found) == 1 for found in contents.values())
    for line in (folder / "took part").read_text().splitlines():
        device, number = line.split()
        came[device].add(int(number))
    assert came
    for rounds in came.values():
        ordered = sorted(rounds)
        assert len(ordered) <= K
        assert all(late - early >= B for early, late in zip(ordered, ordered[1:]))


def main(folder, kills):
    random.seed(kills)
    done, moments = 0, 0
    while done < kills:
        # Files are written about 20 times in a round.
        moments = random.randrange(1, max(2, 40 * N // (kills + 20)))
        status = in_a_child(lambda moments=moments: train(folder, moments))
        if status == 0:
            raise SystemExit(f"The run ended after {done} kills of {kills}.")
        if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            raise SystemExit(f"A child ended with status {status}.")
        done += 1
    status = in_a_child(lambda: train(folder, None))
    if status:
        raise SystemExit(f"The child that ends the run had status {status}.")
    (folder / "kills").write_text(json.dumps(done))


def in_a_child(function):
    """The wait status of a forked process; TensorFlow must not be in use here yet."""
    child = os.fork()
    if child == 0:
        try:
            function()
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def die_at(moment):
    """Kills this process before or after something of it reaches the disk."""
    left = [moment]

    def count(real):
        def counted(*arguments, **options):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return counted

    for name in ("fsync", "fdatasync", "replace"):
        setattr(os, name, count(getattr(os, name)))


def train(folder, moment):
    plan = tf_bandmf.plan(
        "banded",
        bands=3,
        noise_multiplier=0.5,
        delta=1e-5,
        num_steps=N,
        participation=tf_bandmf.MinSep(B, K),
    )
    devices = SimulatedDevices(str(folder / "devices"), plan, 9)
    rng = random.Random()

    def leaves(number, weights):
        content = hashlib.sha256(b"".join(w.tobytes() for w in weights)).hexdigest()
        with open(folder / "left", "a") as file:
            file.write(f"{number} {content}\n")

    def exchange(request):
        leaves(request.round_number, request.weights)
        devices.gone = {name for name in request.names if rng.random() < 0.2}
        replies = devices.exchange(request)
        with open(folder / "took part", "a") as file:
            for name in replies.updates:
                file.write(f"{name} {request.round_number}\n")
        devices.gone = set()
        return replies

    class Models:
        async def release(self, value, key):
            leaves(key, value)

    engine = FederatedAveraging(
        plan,
        [np.zeros([3, 2], np.float32), np.zeros([2], np.float32)],
        exchange,
        clients_per_round=PER_ROUND,
    )

    async def first():
        cohorts = AvailableCohorts.of(devices.present, plan.participation)
        return ProgramState(engine.initial_state(), engine.no_metrics(), cohorts)

    run = Run(
        plan=plan,
        engine=engine,
        settings=engine.settings,
        host_noise=engine.host_noise,
        first=first,
        private_dir=str(folder / "run"),
        clients_per_round=PER_ROUND,
        models=Models(),
    )
    if moment is not None:
        die_at(moment)
    asyncio.run(run.finish())


if __name__ == "__main__":
    import hashlib

    import numpy as np
    from simulated import SimulatedDevices

    import tf_bandmf
    from tf_bandmf_federated.averaging import FederatedAveraging
    from tf_bandmf_federated.cohorts import AvailableCohorts
    from tf_bandmf_federated.rounds import ProgramState
    from tf_bandmf_federated.running import Run

    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
