"""Seconds of a round of `PrivateFedAvg` beside Flower's FedAvg. Flower's environment.

    python benchmarks/flower_rounds.py --parameters 1e6 --rounds 8 --turns 2

The deployment of `federated/examples/flower`: a SuperLink and SuperNodes as processes,
which train a wider model; and the same app with Flower's FedAvg and no mod
(`flower_plain/`). They take turns, since other work on the machine slows both. A round
lasts from one evaluation to the next; the first of a turn is left out. `private` writes
its ledger and state to `--out`.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import platform
import shutil
import statistics
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
EXAMPLE = HERE.parent / "federated" / "examples" / "flower"
sys.path.insert(0, str(EXAMPLE))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import deploy  # noqa: E402

KINDS = ("private", "FedAvg")
SEPARATION = 3


def turn(kind: str, options: argparse.Namespace, folder: pathlib.Path) -> list[float]:
    """Seconds of each round but the first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    app = folder / "app"
    shutil.copytree(EXAMPLE, app, ignore=shutil.ignore_patterns("__pycache__"))
    if kind == "FedAvg":
        for file in (HERE / "flower_plain").glob("*.py"):
            shutil.copy(file, app / "speakers" / file.name)
    deploy.write_plan(folder, options.rounds, SEPARATION, epsilon=100.0)
    run = deploy.Deployment(folder, options.port, options.data, app=app)
    try:
        run.start_link()
        for number in range(options.devices):
            run.start_node(number)
        hidden = round((options.parameters - 279) / 64)
        run.submit(options.rounds, options.per_round, hidden=hidden)
        run.wait_for(options.rounds, 3600.0)
        ends = [float(line[1]) for line in run.progress()]
    finally:
        run.end()
    return [later - earlier for earlier, later in zip(ends, ends[1:])]


def main() -> None:
    """Prints a line for each of the two, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=float, default=1e6)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--per-round", type=int, default=2)
    parser.add_argument("--data", default="", help="speeches; made up if it is missing")
    parser.add_argument("--port", type=int, default=18420)
    parser.add_argument("--out", default=tempfile.gettempdir())
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for number in range(options.turns):
        for kind in KINDS:
            folder = pathlib.Path(options.out) / f"flower-rounds-{kind}-{number}"
            seconds[kind] += turn(kind, options, folder)
    print(f"{platform.machine()}, {os.cpu_count()} cores, d = {options.parameters:g}")
    for kind in KINDS:
        found = seconds[kind]
        print(
            f"{kind}: median {statistics.median(found):.2f} s, "
            f"{min(found):.2f} to {max(found):.2f}, {len(found)} rounds"
        )
    ratio = statistics.median(seconds["private"]) / statistics.median(seconds["FedAvg"])
    print(f"ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
