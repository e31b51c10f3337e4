"""Two processes compete for a privacy budget, and the ledger refuses the second one.

    python examples/ledger_two_shells.py privacy.db

This command starts both processes. To start them by hand, append `first` to the command
in one shell and, once the file privacy.db exists, `second` in another shell. No model is
trained: the example calls `ledger.begin` in the same way as the first step of `fit`.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import textwrap

import tf_bandmf
from tf_bandmf.ledger import BudgetExceededError

DATASET = "patients-2026"


def plan_for(ledger: tf_bandmf.Ledger, epsilon: float) -> tf_bandmf.Plan:
    """Makes a plan that is bound to the ledger."""
    plan = tf_bandmf.plan(
        "lambda_cgd:0.9",
        epsilon=epsilon,
        delta=1e-6,
        num_examples=6000,
        batch_size=100,
        epochs=2,
    )
    return ledger.bind(plan, DATASET)


def say(name: str, text: str) -> None:
    """Prints the shell's name, followed by a message."""
    lines = textwrap.fill(
        f"{name + ':':8}{text}", 90, subsequent_indent=" " * 8, break_on_hyphens=False
    )
    print(lines, flush=True)


def run_of(name: str) -> str:
    """Returns a made-up name of a run; real runs use a digest of the noise key."""
    return hashlib.sha256(name.encode()).hexdigest()


def shell(url: str, name: str) -> None:
    """Makes a plan, waits for a line on standard input, and starts the run."""
    ledger = tf_bandmf.Ledger(url)
    try:
        plan = plan_for(ledger, 4.0)
    except BudgetExceededError as error:
        say(name, f"refused: {error}")
        return
    say(name, "planned")
    sys.stdin.readline()
    try:
        entry = ledger.begin(plan, run_of(name))
        say(name, f"begun, entry {entry.name}")
    except BudgetExceededError as error:
        say(name, f"refused: {error}")
        smaller = plan_for(ledger, error.fitting_epsilon)
        entry = ledger.begin(smaller, run_of(f"{name}, smaller"))
        say(name, f"begun with what fits, entry {entry.name}")


def main(path: str) -> None:
    """Starts two shells, and lets both make a plan before either begins its run.

    After both have ended, a third shell runs.
    """
    url = f"sqlite:///{os.path.abspath(path)}"
    tf_bandmf.Ledger(url).add_dataset(DATASET, epsilon=5.0, delta=1e-6)
    command = [sys.executable, __file__, path]
    shells = []
    for name in ("first", "second"):
        pipe = subprocess.PIPE
        started = subprocess.Popen([*command, name], stdin=pipe, stdout=pipe, text=True)
        assert started.stdin is not None and started.stdout is not None
        print(started.stdout.readline(), end="")
        shells.append(started)
    for started in shells:
        print(started.communicate("\n")[0], end="", flush=True)
    subprocess.run([*command, "third"], stdin=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        shell(f"sqlite:///{os.path.abspath(sys.argv[1])}", sys.argv[2])
    else:
        main(*sys.argv[1:])
