"""What a round costs for the record of who took part, with very many devices. Main stack.

    PYTHONPATH=federated python benchmarks/federated_devices.py --devices 1e7

A process writes a ledger in which so many devices took part; another opens it, and begins
rounds of 1000 of a million that are there: selection, the ledger's entries, the state,
what was measured. The model is tiny. Memory is what the second process takes on top of its
imports.
"""

from __future__ import annotations

import argparse
import asyncio
import copy
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

import numpy as np

import tf_bandmf
from tf_bandmf_federated.cohorts import AvailableCohorts
from tf_bandmf_federated.ledger import Ledger
from tf_bandmf_federated.rounds import ProgramState
from tf_bandmf_federated.state_files import StateFiles

RUN = {"plan": "benchmark"}
AT_ONCE = 100_000  # devices of a round that is written
PARTICIPATION = tf_bandmf.MinSep(10, 200)


class Names(Sequence[str]):
    """The names of the first devices, which take no memory."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, number: int) -> str:  # type: ignore[override]
        return hashlib.blake2b(b"%d" % number, digest_size=16).hexdigest()


def write(path: str, devices: int) -> None:
    """A ledger of rounds in which each device took part once."""
    names = Names(devices)
    start = time.perf_counter()
    with Ledger(path, RUN) as ledger:
        for number, first in enumerate(range(0, devices, AT_ONCE)):
            cohort = tuple(
                names[i] for i in range(first, min(first + AT_ONCE, devices))
            )
            ledger.started(number, 1, cohort, "0" * 64, "0" * 64)
    print(
        f"{devices:,} participations written in {time.perf_counter() - start:.0f} s, "
        f"{os.path.getsize(path) / 1e6:.0f} MB on the disk",
        flush=True,
    )


def resident() -> int:
    """Bytes of memory that this process has now."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def measure(path: str, present: int, rounds: int) -> None:
    """Opens the ledger and begins rounds."""
    before = peak = resident()
    start = time.perf_counter()
    with Ledger(path, RUN) as ledger:
        print(f"opened and checked in {time.perf_counter() - start:.1f} s", flush=True)
        peak = max(peak, resident())
        cohorts = AvailableCohorts(ledger, lambda: Names(present), PARTICIPATION)
        done = len(ledger.rounds)
        template = {"round": np.int64(0), "w": np.zeros(10, np.float32)}
        state = ProgramState(template, {}, cohorts)
        state = state._replace(
            data_iterator=cohorts.from_bytes(
                cohorts.to_bytes().replace(b'"round": 0', b'"round": %d' % done)
            )
        )
        states = StateFiles(os.path.join(os.path.dirname(path), "states"))
        took = []
        for number in range(done, done + rounds):
            start = time.perf_counter()
            iterator = copy.deepcopy(state.data_iterator)
            selected = iterator.select(1000)
            ledger.started(number, 1, selected.names, "0" * 64, "0" * 64)
            ledger.result(number, "1" * 64)
            state = ProgramState(template, {}, iterator)
            asyncio.run(states.save(state, number))
            ledger.releasing(number, "2" * 64)
            ledger.released(number)
            iterator.measured()
            took.append(time.perf_counter() - start)
            peak = max(peak, resident())
    print(
        f"{platform.machine()}, {os.cpu_count()} cores: {np.median(took):.3f} s per "
        f"round (largest {max(took):.3f}); {(peak - before) / 1e6:.0f} MB of memory"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--devices", type=float, default=1e6)
    parser.add_argument("--present", type=float, default=1e6)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--folder", help="on the disk to measure")
    parser.add_argument("--opened", help=argparse.SUPPRESS)
    options = parser.parse_args()
    devices = int(options.devices)
    present = min(int(options.present), devices)
    if options.opened:
        measure(options.opened, present, options.rounds)
        return
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        path = os.path.join(folder, "ledger.sqlite3")
        write(path, devices)
        again = [sys.executable, *sys.argv, f"--opened={path}"]
        subprocess.run(again, check=True)


if __name__ == "__main__":
    main()
