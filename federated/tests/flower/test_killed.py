"""kill -9 of a Flower server at random moments: what left is of one run."""

import json
import pathlib
import random
import sys

import pytest

# Run as a program, this file has no conftest.
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

import killing

N, B, K, PER_ROUND = 8, 2, 4, 2


@pytest.mark.parametrize(
    "kills", [2, pytest.param(50, marks=pytest.mark.slow)], ids=str
)
def test_killed_at_random_moments(tmp_path, kills):
    killing.run_driver(__file__, tmp_path, kills)
    killing.check_what_left(tmp_path, N, B, K)
    measured = json.loads((tmp_path / "measured").read_text())
    assert measured["num_rounds"] == N and not measured["skipped_rounds"]


def main(folder, kills):
    random.seed(kills)
    end = max(4, 40 * N // (kills + 4))
    killing.kill_and_finish(
        kills, lambda: random.randrange(1, end), lambda moment: serve(folder, moment)
    )


def serve(folder, moment):
    plan = killing.make_plan(N, B, K)
    grid = OneProcess(str(folder / "nodes"), plan, 6)
    if moment is not None:
        killing.die_at(moment)

    left, real = killing.Left(folder), grid.push_messages

    def push(messages):
        messages = list(messages)
        for message in messages[:1]:
            if message.metadata.message_type == "train":
                number = message.content["config"]["tf-bandmf.round"]
                left.model(number, message.content["arrays"].to_numpy_ndarrays())
        return real(messages)

    def look(reply):
        about = reply.content["tf-bandmf"]
        if not about["problem"]:
            left.update(about["device"], about["round"])
        return reply

    grid.push_messages, grid.change = push, look

    strategy = PrivateFedAvg(
        plan, str(folder / "run"), clients_per_round=PER_ROUND, models=left
    )
    strategy.start(grid, initial_arrays(), timeout=5.0)
    measured = dataclasses.asdict(strategy.measured)
    (folder / "measured").write_text(json.dumps(measured))


if __name__ == "__main__":
    import dataclasses

    from flwr.supercore.task_identity import TaskIdentity
    from one_process import OneProcess, initial_arrays

    from tf_bandmf_federated.flower import PrivateFedAvg

    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
