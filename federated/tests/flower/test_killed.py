"""kill -9 of a Flower server at random moments: what left is of one run."""

import collections
import json
import os
import pathlib
import random
import signal
import subprocess
import sys

import pytest

N, B, K, PER_ROUND = 8, 2, 4, 2


@pytest.mark.parametrize(
    "kills", [2, pytest.param(50, marks=pytest.mark.slow)], ids=str
)
def test_killed_at_random_moments(tmp_path, kills):
    with open(tmp_path / "errors", "w") as errors:
        driver = subprocess.run(
            [sys.executable, __file__, str(tmp_path), str(kills)],
            stdout=errors,
            stderr=errors,
            timeout=1500,
            check=False,
        )
    assert driver.returncode == 0, (tmp_path / "errors").read_text()[-3000:]
    contents, came = collections.defaultdict(set), collections.defaultdict(set)
    for line in (tmp_path / "left").read_text().splitlines():
        number, content = line.split()
        contents[int(number)].add(content)
    assert set(contents) == set(range(N + 1))
    assert all(len(found) == 1 for found in contents.values())
    for line in (tmp_path / "took part").read_text().splitlines():
        device, number = line.split()
        came[device].add(int(number))
    assert came
    for rounds in map(sorted, came.values()):
        assert len(rounds) <= K
        assert all(late - early >= B for early, late in zip(rounds, rounds[1:]))
    measured = json.loads((tmp_path / "measured").read_text())
    assert measured["num_rounds"] == N and not measured["skipped_rounds"]


def main(folder, kills):
    random.seed(kills)
    for done in range(kills):
        moment = random.randrange(1, max(4, 40 * N // (kills + 4)))
        status = in_a_child(lambda moment=moment: serve(folder, moment))
        if status == 0:
            raise SystemExit(f"The run ended after {done} kills of {kills}.")
        if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            raise SystemExit(f"A child ended with status {status}.")
    status = in_a_child(lambda: serve(folder, None))
    if status:
        raise SystemExit(f"The child that ends the run had status {status}.")


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
    """Kills this process before something of it reaches the disk."""
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


def serve(folder, moment):
    plan = tf_bandmf.plan(
        "banded",
        bands=2,
        noise_multiplier=0.5,
        delta=1e-5,
        num_steps=N,
        participation=tf_bandmf.MinSep(B, K),
    )
    grid = OneProcess(str(folder / "nodes"), plan, 6)
    if moment is not None:
        die_at(moment)

    def leaves(number, weights):
        content = hashlib.sha256(b"".join(w.tobytes() for w in weights)).hexdigest()
        with open(folder / "left", "a") as file:
            file.write(f"{number} {content}\n")

    real = grid.push_messages

    def push(messages):
        messages = list(messages)
        for message in messages[:1]:
            if message.metadata.message_type == "train":
                number = message.content["config"]["tf-bandmf.round"]
                leaves(number, message.content["arrays"].to_numpy_ndarrays())
        return real(messages)

    def look(reply):
        about = reply.content["tf-bandmf"]
        if not about["problem"]:
            with open(folder / "took part", "a") as file:
                file.write(f"{about['device']} {about['round']}\n")
        return reply

    grid.push_messages, grid.change = push, look

    class Models:
        async def release(self, value, key):
            leaves(key, value)

    strategy = PrivateFedAvg(
        plan, str(folder / "run"), clients_per_round=PER_ROUND, models=Models()
    )
    strategy.start(grid, initial_arrays(), timeout=5.0)
    measured = dataclasses.asdict(strategy.measured)
    (folder / "measured").write_text(json.dumps(measured))


if __name__ == "__main__":
    import dataclasses
    import hashlib

    from flwr.supercore.task_identity import TaskIdentity
    from one_process import OneProcess, initial_arrays

    import tf_bandmf
    from tf_bandmf_federated.flower import PrivateFedAvg

    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
