"""Starts processes that begin runs, record steps, and end runs, all in one ledger.

`python racing_runs.py URL PLAN race 8` starts 8 processes that simultaneously begin one
run each. `python racing_runs.py URL PLAN kill 100` starts 100 processes, eight at a
time. Each of them begins runs and ends half of them, and is killed at a random moment.

The program prints the ledger's answers to the processes, one per line. It imports the
package once and forks the processes, so they need not import the package themselves.
"""

import functools
import itertools
import os
import pathlib
import random
import select
import signal
import sys
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "shared"))

from children import finish, start
from small_ledgers import run_name

import tf_bandmf
from tf_bandmf.ledger import BudgetExceededError


def begin_one(gate, url, plan, run, say):
    os.read(gate, 1)
    ledger = tf_bandmf.Ledger(url)
    try:
        ledger.begin(plan, run)
    except BudgetExceededError:
        say("refused")
    else:
        say(f"begun {run}")


def begin_many(url, plan, name, say):
    ledger = tf_bandmf.Ledger(url)
    for number in itertools.count():
        run = run_name(f"{name} {number}")
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


def reported(child, read_end):
    """Waits for a child process to end, and prints its output lines and its error."""
    _, lines, error = finish(child, read_end)
    for line in [*lines, *([f"failed {error!r}"] if error else [])]:
        print(line)


def main(url, path, what, count):
    plan = tf_bandmf.Plan.load(path)
    # The parent uses a ledger before it forks, so the children need not repeat lazy
    # imports.
    ledger, run = tf_bandmf.Ledger(url), run_name("first")
    if what == "kill":
        ledger.begin(plan, run)
        ledger.end(run, plan=plan, steps=0, reason="for the test")
    if what == "race":
        gate, opener = os.pipe()
        begins = [(gate, url, plan, run_name(i)) for i in range(count)]
        children = [start(functools.partial(begin_one, *begin)) for begin in begins]
        os.write(opener, b"x" * count)
        for child in children:
            reported(*child)
        return
    rng = random.Random(count)
    for first in range(0, count, 8):
        here = range(first, min(first + 8, count))
        begins = [(url, plan, number) for number in here]
        children = [start(functools.partial(begin_many, *begin)) for begin in begins]
        for number, child in enumerate(children):
            if number % 2:  # Wait until the child has begun a run.
                select.select([child[1]], [], [], 60.0)
            time.sleep(rng.uniform(0.0, 0.8))
            os.kill(child[0], signal.SIGKILL)
            reported(*child)


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]))
