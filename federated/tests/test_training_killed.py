"""kill -9 of a program that trains with TFF, in a round and at what reaches the disk."""

import asyncio
import collections
import os
import pathlib
import random
import signal
import sys
import threading

import killing
import numpy as np
import pytest

N, B, K, PER_ROUND, KILLS = 12, 2, 6, 2, 12


@pytest.mark.slow
def test_killed_at_random_moments(tmp_path):
    killing.run_driver(__file__, tmp_path, KILLS)
    killing.check_what_left(tmp_path, N, B, K)
    sums = collections.defaultdict(set)
    for line in (tmp_path / "noise").read_text().splitlines():
        key, content = line.split()
        sums[key].add(content)
    # A round that was repeated has another key, or the same model after it.
    assert len(sums) >= N and all(len(actual) == 1 for actual in sums.values())


def main(folder, kills):
    random.seed(kills)
    # A number counts what reaches the disk; seconds begin with the first round.
    moments = [lambda: random.randrange(1, 120), lambda: random.uniform(0.0, 2.0)]
    killing.kill_and_finish(
        kills, lambda: random.choice(moments)(), lambda moment: train(folder, moment)
    )


def train(folder, moment):
    import tensorflow_federated as tff
    from linear import examples, model_fn

    from tf_bandmf_federated import SimulatedClients, build_fed_avg, train_model
    from tf_bandmf_federated.tff import training

    plan = killing.make_plan(N, B, K)
    clients = {f"c{i}": lambda i=i: examples(i) for i in range(8)}
    source = SimulatedClients(clients, plan, availability=lambda t, name: 0.8)
    optimizer = tff.learning.optimizers.build_sgdm(0.1)
    process = build_fed_avg(model_fn, plan, optimizer, clients_per_round=PER_ROUND)
    left = killing.Left(folder)

    class Models(tff.program.ReleaseManager):
        async def release(self, value, key):
            left.model(key, value.trainable)

    run = training._TffEngine.run

    async def noted(self, state, selected, point):
        if isinstance(moment, float):
            die = threading.Timer(moment, os.kill, [os.getpid(), signal.SIGKILL])
            die.start()
        number = process.round_number(state)
        left.model(number, process.get_model_weights(state).trainable)
        after, metrics = await run(self, state, selected, point)
        for name in selected.names:
            left.update(name, number)
        key = np.asarray(after.aggregator["noise"]["step_keys"])[number].tobytes().hex()
        left.model(key, process.get_model_weights(after).trainable, "noise")
        return after, metrics

    training._TffEngine.run = noted
    if isinstance(moment, int):
        killing.die_at(moment)
    asyncio.run(
        train_model(
            process,
            source,
            private_dir=str(folder / "run"),
            clients_per_round=PER_ROUND,
            model_output_manager=Models(),
        )
    )


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
