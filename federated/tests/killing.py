"""Programs that are killed by `kill -9`, and what must hold of what they left.

Test files run themselves as a driver that forks a child for each kill.
"""

import collections
import contextlib
import gc
import hashlib
import os
import signal
import sqlite3
import subprocess
import sys


def run_driver(script, folder, kills, *more):
    """Runs a test file as a program; its errors are those of the test."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    with open(folder / "errors", "w") as errors:
        driver = subprocess.Popen(
            [sys.executable, script, str(folder), str(kills), *more],
            stdout=errors,
            stderr=errors,
            env=environment,
            start_new_session=True,
        )
        try:
            driver.wait(max(1500, 60 * kills))
        finally:  # also TFF's workers, which outlive a program that was killed
            with contextlib.suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)
    assert driver.returncode == 0, (folder / "errors").read_text()[-3000:]


def make_plan(num_rounds, separation, participations):
    """A closed form: each child makes its plan anew."""
    import tf_bandmf

    return tf_bandmf.plan(
        f"bsr:{separation}",
        noise_multiplier=0.5,
        delta=1e-5,
        num_steps=num_rounds,
        sampling=tf_bandmf.MinSep(separation, participations),
    )


def fork():
    """As `os.fork`, of a process that has TensorFlow, whose threads are not in the fork."""
    child = os.fork()
    if child == 0:
        gc.disable()
    return child


def in_a_child(function):
    """The wait status of a forked process; it must not use what TensorFlow had begun."""
    child = fork()
    if child == 0:
        try:
            function()
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def was_killed(status):
    return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL


def kill_and_finish(kills, moments, run):
    """`run(moment)` in a child for each of `kills` moments, then `run(None)` to its end."""
    for done in range(kills):
        moment = moments()
        status = in_a_child(lambda moment=moment: run(moment))
        if status == 0:
            raise SystemExit(f"The run ended after {done} kills of {kills}.")
        if not was_killed(status):
            raise SystemExit(f"A child ended with status {status}.")
    status = in_a_child(lambda: run(None))
    if status:
        raise SystemExit(f"The child that ends the run had status {status}.")


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
    connect = sqlite3.connect

    def connected(*arguments, **options):
        # Before each statement, commits among them, and in the middle of those.
        database = connect(*arguments, **options)
        database.set_trace_callback(count(lambda statement: None))
        database.set_progress_handler(count(lambda: 0), 100)
        return database

    sqlite3.connect = connected


class Left:
    """What left of a run, and who took part, in files of a folder."""

    def __init__(self, folder):
        self._folder = folder

    def model(self, rounds_done, weights, file="left"):
        content = hashlib.sha256(b"".join(w.tobytes() for w in weights)).hexdigest()
        self._add(file, f"{rounds_done} {content}")

    def update(self, device, round_number):
        self._add("took part", f"{device} {round_number}")

    async def release(self, value, key):
        """As what gets models."""
        self.model(key, value)

    def _add(self, name, line):
        with open(self._folder / name, "a") as file:
            file.write(line + "\n")


def check_what_left(folder, num_rounds, separation, participations):
    """One content for each round, and no device too early or too often.

    What left is in files that each child adds to before it goes on: see `Left`.
    """
    contents, came = collections.defaultdict(set), collections.defaultdict(set)
    for line in (folder / "left").read_text().splitlines():
        number, content = line.split()
        contents[int(number)].add(content)
    assert set(contents) == set(range(num_rounds + 1))
    assert all(len(models) == 1 for models in contents.values())
    for line in (folder / "took part").read_text().splitlines():
        device, number = line.split()
        came[device].add(int(number))
    assert came
    for rounds in map(sorted, came.values()):
        assert len(rounds) <= participations
        early_and_late = zip(rounds, rounds[1:])
        assert all(late - early >= separation for early, late in early_and_late)
