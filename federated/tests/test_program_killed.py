"""kill -9 at every stage of a round: the releases are those of the run without kills."""

import asyncio
import itertools
import os
import pathlib
import shutil
import signal
import sys

import pytest
from killing import in_a_child, run_driver, was_killed
from ledgers import copy_ledger

LEDGER = "ledger.sqlite3"

# A child process per kill; each is killed in the round of its number.
STAGES = (
    "before next",
    "after next",
    "before the state is saved",
    "before the state has its name",
    "after the state is saved",
    "before the model is released",
    "after the model is released",
)


# The noise is used and its result lost, half of it on the disk; the model has left.
LEFT_TWICE = "after the model is released"
TWO = ("before the state has its name", LEFT_TWICE)


def stages_of(kills):
    """The two that matter most, or all in turns."""
    if kills <= len(TWO):
        return TWO[:kills]
    return tuple(itertools.islice(itertools.cycle(STAGES), kills))


SLOW = [pytest.param(kills, marks=pytest.mark.slow) for kills in (7, 50)]


@pytest.mark.slow
@pytest.mark.parametrize("kills", [2, *SLOW], ids=str)
def test_kill_at_stages(tmp_path, kills):
    run_driver(__file__, tmp_path, kills)
    killed, straight = (releases_of(tmp_path / name) for name in ("killed", "straight"))
    # Twice released were only rounds whose program died in the release or after it.
    assert len(straight) == len(set(straight)) == kills + 1
    assert set(killed) == set(straight)
    assert len(killed) == len(straight) + stages_of(kills).count(LEFT_TWICE)


def releases_of(folder):
    return (folder / "released").read_text().splitlines()


def main(folder, count):
    killed, straight = folder / "killed", folder / "straight"
    killed.mkdir()
    for number, stage in enumerate(stages_of(count)):
        status = in_a_child(lambda n=number, s=stage: train(killed, count, n, s))
        if not was_killed(status):
            raise SystemExit(f"The child of {stage!r} ended with status {status}.")
        if number == 0:  # what makes a run the same: its first state
            straight.joinpath("states").mkdir(parents=True)
            name = "states/state-00000000"
            shutil.copy(killed / name, straight / name)
            # Its kind and the first state.
            copy_ledger(killed / LEDGER, straight / LEDGER, entries=2)
    for folder in (killed, straight):
        status = in_a_child(lambda folder=folder: train(folder, count))
        if status:
            raise SystemExit(f"The child that ends the run had status {status}.")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def train(folder, kills, dying_round=None, stage=None):
    """A run, or its continuation, that kills itself in a stage of a round."""
    ledger.draw = lambda: ""  # so that runs can be compared
    # TFF's default context has a thread, which a forked process lacks.
    tff.backends.native.set_sync_local_cpp_execution_context()
    plan = tf_bandmf.plan(
        "bsr:3",
        noise_multiplier=0.5,
        delta=1e-5,
        num_steps=kills + 1,
        participation=tf_bandmf.MinSep(2, max(4, kills // 2 + 1)),
    )
    process = build_fed_avg(
        model_fn,
        plan,
        tff.learning.optimizers.build_sgdm(0.1),
        clients_per_round=2,
    )
    clients = {f"c{i}": lambda i=i: examples(i) for i in range(6)}
    source = SimulatedClients(clients, plan, seed=3, availability=lambda t, name: 0.9)

    def is_now(which, rounds_done):
        return which == stage and rounds_done == dying_round + 1

    class Models(tff.program.ReleaseManager):
        async def release(self, value, key):
            if is_now("before the model is released", key):
                die()
            weights = b"".join(np.asarray(w).tobytes() for w in value.trainable)
            with open(folder / "released", "a") as file:
                file.write(f"{key} {weights.hex()}\n")
            if is_now("after the model is released", key):
                die()

    class States(StateFiles):
        def __init__(self, folder):
            super().__init__(folder, keep_total=20)

        def save(self, program_state, version):
            if is_now("before the state is saved", version):
                die()
            if is_now("before the state has its name", version):
                os.replace = lambda *names: die()
            super().save(program_state, version)
            if is_now("after the state is saved", version):
                die()

    real = process.next

    def next_round(state, data):
        if is_now("before next", process.round_number(state) + 1):
            die()
        output = real(state, data)
        if is_now("after next", process.round_number(output.state)):
            die()
        return output

    next_round.type_signature = real.type_signature
    type(process).next = property(lambda self: next_round)
    rounds.StateFiles = States
    asyncio.run(
        train_model(
            process,
            source,
            private_dir=str(folder),
            clients_per_round=2,
            model_output_manager=Models(),
        )
    )


if __name__ == "__main__":
    import numpy as np
    import tensorflow_federated as tff
    from linear import examples, model_fn

    import tf_bandmf
    from tf_bandmf_federated import (
        SimulatedClients,
        build_fed_avg,
        ledger,
        rounds,
        train_model,
    )
    from tf_bandmf_federated.state_files import StateFiles

    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
