"""Kills, full disks and second processes do not change the result of a run."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

PROGRAM = pathlib.Path(__file__).with_name("killed_runs.py")


@pytest.mark.slow
@pytest.mark.attack(
    "kill -9, full disks, two processes in one folder (centralized training)",
    tried="Kills at random moments of a resumable fit, with different clocks. Digests "
    "of every sum and its noise, kept outside of the run, show that no noise is used "
    "for other data. The final model is equal bit for bit; the ledger has one run.",
    area="faults",
)
@pytest.mark.parametrize(
    ("kills", "full_disks", "pairs"),
    [(3, 0, 1), pytest.param(200, 25, 10, marks=pytest.mark.slow)],
)
@pytest.mark.invariant(9, 11, 19)
def test_whatever_happens_to_a_run_it_is_the_identical_one(
    kills, full_disks, pairs, tmp_path
):
    numbers = [str(number) for number in (kills, full_disks, pairs)]
    with open(tmp_path / "output", "w") as output:
        done = subprocess.run(
            [sys.executable, str(PROGRAM), str(tmp_path), *numbers],
            stdout=output,
            stderr=output,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "-1"},
            timeout=1750,
            check=False,
        )
    assert done.returncode == 0, (tmp_path / "output").read_text()[-4000:]
    interrupted, two = json.loads((tmp_path / "endings").read_text())
    print(interrupted, two)
    # The times of kills are random, so some runs end before they are killed.
    assert interrupted["killed"] >= 0.5 * kills
    refused = interrupted.get("error", 0) + interrupted.get("crashed", 0)
    assert refused >= 0.3 * full_disks
    # Of two processes that train in one folder, the second one usually gets an error.
    assert two["done"] >= pairs
    assert two["error"] >= 0.5 * pairs
