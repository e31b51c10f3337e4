"""TFF's workers: several of them, their limits in time, and their end."""

import asyncio
import functools
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback

import numpy as np
import psutil
import pytest
import tensorflow_federated as tff
from linear import examples, model_fn

import tf_bandmf
from tf_bandmf_federated import (
    LocalWorkers,
    WorkersUnavailable,
    build_fed_avg,
    remote_context,
    tag_dataset,
    use_local_workers,
    worker_guard,
    workers,
)

N, B, CLIENTS = 5, 3, 5


@pytest.fixture(scope="module")
def two_workers():
    with LocalWorkers(2) as started:
        yield started


@functools.cache
def build(mechanism, noise, test_seed=1, **options):
    plan = tf_bandmf.plan(
        "bsr:3" if mechanism == "bsr" else mechanism,
        noise_multiplier=0.5,
        delta=1e-5,
        num_steps=N,
        participation=tf_bandmf.MinSep(B, 2),
        test_seed=test_seed,
    )
    return build_fed_avg(
        model_fn,
        plan,
        tff.learning.optimizers.build_sgdm(0.1),
        clients_per_round=CLIENTS,
        noise=noise,
        **options,
    )


def cohort(round_number):
    """Client 0 comes in every round: in rounds 1, 2 and 4 it is early."""
    past = {0: (-1, 0), 3: (0, 1)}
    last, count = past.get(round_number, (round_number - 1, 1))
    now = round_number
    others = [tag_dataset(examples(c), -1, 0, now) for c in range(1, CLIENTS)]
    return [tag_dataset(examples(0), last, count, now), *others]


def train(process, data=cohort):
    """Flat weights after each round, and how many clients were early in it."""
    state = process.initialize()
    weights, early = [], []
    for round_number in range(N):
        output = process.next(process.prepare(state), data(round_number))
        state = output.state
        trainable = process.get_model_weights(state).trainable
        weights.append(np.concatenate([np.ravel(w) for w in trainable]))
        early.append(int(output.metrics["aggregator"]["early_clients"]))
    return np.stack(weights), early


@pytest.mark.slow
@pytest.mark.parametrize("kind", [("bsr", "host"), ("lambda_cgd", "state")])
def test_two_workers_give_what_one_gives(two_workers, kind):
    process = build(*kind)
    with remote_context(two_workers.addresses[:1]):
        expected, early = train(process)
    with remote_context(two_workers.addresses):
        found, found_early = train(process)
    assert early == found_early == [0, 1, 1, 0, 1]
    # Sums of five floats below 1, in another order, in five rounds.
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert np.abs(expected).max() > 0.1


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("kind", [("bsr", "host"), ("lambda_cgd", "state")])
def test_the_error_for_a_wrong_argument_shows_no_secret(
    two_workers, kind, count, caplog
):
    process = build(*kind)
    with remote_context(two_workers.addresses[:count]):
        state = process.prepare(process.initialize())
        noise = state.aggregator["noise"]
        secrets = noise["values"] if kind[1] == "host" else noise["step_keys"][0]
        for arguments in ((state,), ({"state": state}, cohort(0))):
            with pytest.raises(TypeError) as caught:
                process.next(*arguments)
            # asyncio logs the error of the other worker when it is collected.
            gc.collect()
            text = "".join(traceback.format_exception(caught.value)) + caplog.text
            assert "global_model_weights" in text  # the type that is expected
            assert not any(str(secret) in text for secret in secrets)


def test_the_programs_of_tff(two_workers):
    process = build("lambda_cgd", "state")
    context = remote_context(two_workers.addresses)
    stack = tff.framework.get_context_stack()
    with stack.install(context):
        state = process.initialize()
        expected = process.next(state, cohort(0))

    async def run():
        output = process.next(state, cohort(0))
        return await tff.program.materialize_value(output.metrics["aggregator"])

    with stack.install(context.for_programs()):
        found = asyncio.run(run())
    assert found == expected.metrics["aggregator"]
    assert found["contributing_clients"] == CLIENTS
    context.close()
    with stack.install(context.for_programs()):
        with pytest.raises(ValueError, match="closed"):
            asyncio.run(run())


def test_a_closed_context(two_workers):
    with remote_context(two_workers.addresses) as context:
        assert tff.tensorflow.computation(lambda: 7)() == 7
    with tff.framework.get_context_stack().install(context):
        with pytest.raises(ValueError, match="closed"):
            tff.tensorflow.computation(lambda: 7)()
    context.close()  # again


def test_noise_is_added_once_and_bit_for_bit(two_workers):
    process = build("bsr", "host")
    with remote_context(two_workers.addresses[:1]):
        expected, _ = train(process, lambda _: [])
    with remote_context(two_workers.addresses):
        found, _ = train(process, lambda _: [])
    np.testing.assert_array_equal(found, expected)


def test_fewer_clients_than_workers(two_workers):
    process = build("lambda_cgd", "state")
    with remote_context(two_workers.addresses):
        output = process.next(process.initialize(), cohort(0)[:1])
        assert output.metrics["aggregator"]["contributing_clients"] == 1


def test_keys_are_fresh_on_workers(two_workers):
    for test_seed, keys in ((None, 2), (1, 1)):
        process = build("lambda_cgd", "state", test_seed)
        with remote_context(two_workers.addresses):
            states = [process.initialize() for _ in range(2)]
        assert len({process.key_id(state) for state in states}) == keys


def worker_of(address):
    """The process that serves a port: a child of this one's guards."""
    flag = f"--port={address.rpartition(':')[2]}"
    for child in psutil.Process().children(recursive=True):
        if child.name().startswith("worker_bin") and flag in child.cmdline():
            return child
    raise AssertionError(f"No worker with {flag}.")


def test_a_worker_that_hangs_is_an_error_within_the_limit():
    process = build("lambda_cgd", "state")
    with LocalWorkers(2) as started:
        with remote_context(started.addresses) as context:
            state = process.initialize()
            expected = process.next(state, cohort(0))
            context.time_limit_seconds = 4.0
            hung = worker_of(started.addresses[1])
            hung.suspend()
            begin = time.monotonic()
            with pytest.raises(WorkersUnavailable) as caught:
                process.next(state, cohort(0))
            assert time.monotonic() - begin < 60.0
            message = str(caught.value)
            assert f"No worker answers now at {started.addresses[1]}." in message
            assert "needed longer than the limit" in message
            assert "skip_round" in message
            # The same call with the same state and data, when it is back.
            hung.resume()
            context.time_limit_seconds = 300.0
            found = process.next(state, cohort(0))
    for before, after in zip(
        process.get_model_weights(expected.state).trainable,
        process.get_model_weights(found.state).trainable,
    ):
        np.testing.assert_allclose(after, before, rtol=0, atol=1e-6)


@pytest.mark.slow
def test_a_killed_worker_is_an_error_and_a_new_one_is_found():
    process = build("lambda_cgd", "state")
    with LocalWorkers(2) as started:
        addresses = started.addresses
        patient = remote_context(addresses, reconnect_seconds=60.0)
        with remote_context(addresses, reconnect_seconds=2.0) as context:
            state = process.initialize()
            process.next(state, cohort(0))
            worker_of(addresses[0]).kill()
            begin = time.monotonic()
            with pytest.raises(WorkersUnavailable, match="was gone for 2 s") as caught:
                process.next(state, cohort(0))
            assert time.monotonic() - begin < 60.0
            assert f"No worker answers now at {addresses[0]}." in str(caught.value)
            assert context.silent_workers() == [addresses[0]]
        with pytest.raises(WorkersUnavailable, match=f"answers at {addresses[0]} "):
            remote_context(addresses, connect_seconds=1.0)
        # It comes back while a call waits for it.
        replacement = []

        def come_back():
            time.sleep(1.0)
            replacement.append(start_worker(addresses[0]))

        thread = threading.Thread(target=come_back)
        thread.start()
        try:
            with patient:
                output = process.next(state, cohort(0))
            contributing = output.metrics["aggregator"]["contributing_clients"]
            assert contributing == CLIENTS
        finally:
            thread.join()
            replacement[0].stdin.close()
            replacement[0].wait(10)


def start_worker(address):
    command = [sys.executable, worker_guard.__file__, str(os.getpid())]
    flag = f"--port={address.rpartition(':')[2]}"
    return subprocess.Popen(
        [*command, workers._binary(), flag],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


PROGRAM = """
import sys, psutil, tensorflow_federated as tff, tf_bandmf_federated
tf_bandmf_federated.use_local_workers(2)
assert tff.tensorflow.computation(lambda: 7)() == 7
children = psutil.Process().children(recursive=True)
print(*[c.pid for c in children], flush=True)
if sys.argv[1] == "wait":
    sys.stdin.read()
raise RuntimeError("as programs do")
"""


def is_alive(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # It may end between two looks at it.
        return False


def gone(pids):
    give_up = time.monotonic() + 60.0
    while time.monotonic() < give_up:
        if not any(is_alive(pid) for pid in pids):
            return True
        time.sleep(0.1)
    return False


def test_workers_end_with_a_program_that_is_killed():
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "wait"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with program:
        pids = [int(word) for word in program.stdout.readline().split()]
        assert len(pids) == 4  # two guards and two workers
        assert all(psutil.pid_exists(pid) for pid in pids)
        program.send_signal(signal.SIGKILL)
    assert gone(pids)


def test_workers_end_with_a_program_and_do_not_keep_its_pipe():
    # With TFF's own worker this waits for ever.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "raise"],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode != 0
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 4 and gone(pids)


def test_a_port_is_kept_for_its_worker():
    """Tests run in several processes, which start their workers at the same time."""
    with workers._kept_port() as kept, socket.socket(kept.family) as other:
        with pytest.raises(OSError, match="in use"):
            other.bind(("", kept.getsockname()[1]))


def test_workers_end_with_their_guard():
    with LocalWorkers(1) as started:
        worker = worker_of(started.addresses[0])
        worker.parent().kill()
        assert gone([worker.pid])
    started.close()  # again


def test_wrong_arguments():
    for wrong in ("localhost:8000", 8000, None):
        with pytest.raises(TypeError, match="addresses must be a list"):
            remote_context(wrong)
    with pytest.raises(TypeError, match="must be a string"):
        remote_context([8000])
    with pytest.raises(ValueError, match="empty"):
        remote_context([])
    for wrong in ("localhost", ":8000", "localhost:0", "localhost:65536", "a:b"):
        with pytest.raises(ValueError, match="host:port"):
            remote_context([wrong])
    for wrong in ("http://localhost:8000", "::1:8000", "local host:1", "a:1/"):
        with pytest.raises(ValueError, match="host:port"):
            remote_context([wrong])
    with pytest.raises(ValueError, match="twice"):
        remote_context(["Localhost:8000", "localhost:8000"])
    for name in ("time_limit_seconds", "reconnect_seconds", "connect_seconds"):
        for wrong in (0.0, -1.0, float("nan")):
            with pytest.raises(ValueError, match=f"{name} must be > 0"):
                remote_context(["localhost:1"], **{name: wrong})
    with pytest.raises(ValueError, match="time_limit_seconds"):
        use_local_workers(time_limit_seconds=0.0)
    with pytest.raises(ValueError, match="count"):
        LocalWorkers(0)
    # Nobody listens on this port of this machine; the error comes at once and names it.
    with pytest.raises(WorkersUnavailable, match=r"answers at localhost:1 "):
        remote_context(["localhost:1"], connect_seconds=0.5)
