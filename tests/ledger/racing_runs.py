"""Starts processes that begin runs, record steps, and end runs, all in one ledger.

`python racing_runs.py URL PLAN race 8`: 8 processes begin one run each, simultaneously.
`python racing_runs.py URL PLAN kill 100`: 100 processes, eight at a time, begin runs
and end half of them. Each process is killed at a random moment.

Prints the ledger's answers to the processes, one per line.

Children are forked, so only the parent imports the package.
"""

import hashlib
import itertools
import os
import random
import select
import signal
import sys
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tf_bandmf
from tf_bandmf.ledger import BudgetExceededError


def run_of(name, number):
    return hashlib.sha256(f"{name} {number}".encode()).hexdigest()


def begin_one(url, plan, name, say):
    ledger = tf_bandmf.Ledger(url)
    try:
        ledger.begin(plan, run_of(name, 0))
    except BudgetExceededError:
        say("refused")
    else:
        say(f"begun {run_of(name, 0)}")


def begin_many(url, plan, name, say):
    ledger = tf_bandmf.Ledger(url)
    for number in itertools.count():
        run = run_of(name, number)
        try:
            ledger.begin(plan, run)
        except BudgetExceededError:
            say(f"refused {run}")
            continue
        say(f"begun {run}")
        ledger.note_steps(run, 5)
        if number % 2:
            ledger.end(run, plan=plan, steps=5, reason="for the test")
            say(f"ended {run}")


def fork(function, url, plan, name, gate=None):
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if gate is not None:
                os.read(gate, 1)
            function(
                url, plan, name, lambda text: os.write(write_end, f"{text}\n".encode())
            )
            code = 0
        except BaseException as error:
            os.write(write_end, f"failed {error!r}\n".encode())
        os._exit(code)
    os.close(write_end)
    return child, read_end


def finish(child, read_end):
    with os.fdopen(read_end, "r") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    # An incomplete line does not count as an answer.
    print(text[: text.rfind("\n") + 1], end="")


def main(url, path, what, count):
    plan = tf_bandmf.Plan.load(path)
    # The parent uses a ledger before it forks children, so that lazy imports happen
    # only once.
    ledger, run = tf_bandmf.Ledger(url), run_of("first", 0)
    if what == "kill":
        ledger.begin(plan, run)
        ledger.end(run, plan=plan, steps=0, reason="for the test")
    if what == "race":
        gate, opener = os.pipe()
        children = [fork(begin_one, url, plan, f"{i}", gate) for i in range(count)]
        os.write(opener, b"x" * count)
        for child in children:
            finish(*child)
        return
    rng = random.Random(count)
    for first in range(0, count, 8):
        here = range(first, min(first + 8, count))
        children = [fork(begin_many, url, plan, f"{number}") for number in here]
        for number, child in enumerate(children):
            if number % 2:  # Wait until the child has begun a run.
                select.select([child[1]], [], [], 60.0)
            time.sleep(rng.uniform(0.0, 0.8))
            os.kill(child[0], signal.SIGKILL)
            finish(*child)


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))
