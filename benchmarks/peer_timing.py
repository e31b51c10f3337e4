"""Times functions in turns; for the peers' scripts, without any framework."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Callable

from network_shapes import BATCH_SIZES as NETWORK_BATCH_SIZES

BATCH_SIZES = {"mlp": 256, "cnn": 256, "transformer": 128, **NETWORK_BATCH_SIZES}
STEPS = {"mlp": 10, "cnn": 3, "transformer": 2}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default="mlp,cnn,transformer")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def report(model: str, makers: dict[str, Callable], rounds: int) -> None:
    """Prints a line of JSON for each kind of step; the first is the base of the ratios.

    Args:
      model: name.
      makers: of functions that run one step.
      rounds: of all kinds in turns; medians are reported.
    """
    steps, times = {}, {}
    for kind, make in makers.items():
        try:
            step = make()
            step()
            step()
        except Exception as error:  # what a peer cannot do is a result
            text = " ".join(str(error).split())[:100]
            line = {"model": model, "kind": kind}
            print(json.dumps({**line, "error": f"{type(error).__name__}: {text}"}))
            continue
        steps[kind], times[kind] = step, []
    for _ in range(rounds):
        for kind, step in steps.items():
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(STEPS.get(model, 1)):
                step()
            times[kind].append(
                (
                    (time.perf_counter() - wall) / STEPS.get(model, 1),
                    (time.process_time() - cpu) / STEPS.get(model, 1),
                )
            )
    medians = {
        kind: tuple(map(statistics.median, zip(*found)))
        for kind, found in times.items()
    }
    base = medians[next(iter(makers))]
    for kind, (wall, cpu) in medians.items():
        line = {"model": model, "kind": kind, "wall": wall}
        ratios = {"wall_ratio": wall / base[0], "cpu_ratio": cpu / base[1]}
        print(json.dumps({**line, **ratios}), flush=True)
