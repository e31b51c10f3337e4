"""Holds every accountant's bounds against floors of 60 digits; prints counts.

    python benchmarks/floors.py bins --most-bins 100
    python benchmarks/floors.py poisson
    python benchmarks/floors.py contracts
    python benchmarks/floors.py b-min-sep
    python benchmarks/floors.py fixed-size
    python benchmarks/floors.py selection

A floor is the delta of whoever looks at a part of what is released: the own bin's term, or
one step; none of it goes through an accountant (`tests/accounting/floors.py`). `bins` has
three kinds of correlations, 1 to 1,000 participations; `poisson` one to a thousand million
queries; `contracts` every registered participation that has certain bounds; `b-min-sep` the
estimate and the bound at confidence 0.99; `fixed-size` samples without replacement;
`selection` the best of K runs, of five distributions of K. One line for each group: how
many points were tried, how many lie below their floor, the least of bound over floor,
seconds. Exits with 1 if a certain bound lies below its floor.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "accounting"))
import floors

import tf_bandmf
from tf_bandmf import participation as lib
from tf_bandmf.accounting import gaussian, poisson_tilted, selection
from tf_bandmf.accounting.bins_certain import QUICK, CertainBins
from tf_bandmf.accounting.cyclic_fixed_size import CyclicFixedSizeAccountant
from tf_bandmf.planning.calibration import accountant_for

EPSILONS = (0.01, 0.1, 1.0, 3.0, 6.0, 10.0, 14.0, 20.0, 24.0, 30.0, 50.0)
NOISES = (0.05, 0.1, 0.2, 0.25, 0.35, 0.5, 0.7, 1.0, 2.0, 5.0, 100.0)
DELTAS = tuple(10.0 ** -np.arange(3.0, 21.0))
# Where float64 has no digits left.
LEAST = 1e-290
Point = tuple[Any, Any]


def bins(options: argparse.Namespace) -> Iterator[tuple[str, Iterator[Point]]]:
    for num_bins in (2, 10, 100, 1000):
        if num_bins > options.most_bins:
            return
        identity = np.eye(num_bins)
        places = np.arange(num_bins)
        distance = np.abs(np.subtract.outer(places, places))
        distance = np.minimum(distance, num_bins - distance)
        kinds = {
            "orthogonal": identity,
            "equal": 0.3 + 0.7 * identity,
            "decaying": 0.8**distance,
        }
        for kind, gram in kinds.items():
            for participations in (1, 1000):
                yield (
                    f"bins={num_bins} kind={kind} participations={participations}",
                    of_bins(participations * gram, participations),
                )


def of_bins(gram: np.ndarray, participations: int) -> Iterator[Point]:
    bound = CertainBins(gram, QUICK)
    norm = math.sqrt(gram[0, 0])
    for noise in NOISES:
        noise *= math.sqrt(participations)
        for epsilon in EPSILONS:
            floor = floors.own_bin(norm, noise, len(gram), epsilon)
            yield bound.delta(epsilon, noise), floor


def poisson(options: argparse.Namespace) -> Iterator[tuple[str, Iterator[Point]]]:
    for count in (1, 10, 1_000, 10**6, 10**9):
        yield f"queries={count}", of_poisson(count)


def of_poisson(count: int) -> Iterator[Point]:
    for probability in (1e-6, 1e-3, 0.1, 0.9):
        for noise in (0.05, 0.3, 1.0, 5.0, 100.0):
            for epsilon in EPSILONS[::2]:
                found = poisson_tilted.delta(
                    probability, noise, count, epsilon, poisson_tilted.ROUGH
                )
                # The first of them alone.
                yield found, floors.one_step(probability, noise, epsilon)


def contracts(options: argparse.Namespace) -> Iterator[tuple[str, Iterator[Point]]]:
    strategies = {
        "orthogonal": tf_bandmf.strategies.identity(16),
        "correlated": tf_bandmf.strategies.bsr(
            tf_bandmf.workloads.prefix_sum(16), bands=2
        ),
    }
    for kind in sorted(lib.PARTICIPATIONS):
        for name, strategy in strategies.items():
            participation = lib.PARTICIPATIONS[kind].example(16)
            simulated = kind == "b_min_sep_sampling"
            if simulated or strategy.matrix.bands > getattr(
                participation, "num_parts", 16
            ):
                continue
            yield f"{kind} {name}", of_participation(participation, strategy, NOISES)


def of_participation(
    participation: Any,
    strategy: Any,
    noises: tuple[float, ...],
    confidence: float | None = 1.0,
    deltas: tuple[float, ...] = DELTAS[::2],
) -> Iterator[Point]:
    accountant = accountant_for(strategy, participation, confidence=confidence)
    probability = 1.0
    if participation.is_amplified:
        size = participation.expected_batch_size()
        probability = size / participation.num_examples
    for noise in noises:
        for delta in deltas:
            try:
                found = accountant.guarantee(noise, float(delta))
            except ValueError:  # privacy that means nothing, said so
                continue
            # Of delta that is stated, and the delta that is left at the stated epsilon.
            yield delta, floors.one_step(probability, noise, found.epsilon)


def b_min_sep(options: argparse.Namespace) -> Iterator[tuple[str, Iterator[Point]]]:
    participation = lib.PARTICIPATIONS["b_min_sep_sampling"].example(16)
    strategy = tf_bandmf.strategies.identity(16)
    for confidence in (None, 0.99):
        yield (
            f"confidence={confidence}",
            of_participation(
                participation, strategy, (0.5, 1.0, 2.0, 5.0), confidence, (1e-2, 1e-3)
            ),
        )


def fixed_size(options: argparse.Namespace) -> Iterator[tuple[str, Iterator[Point]]]:
    for queries in (1, 10, 10_000):
        for part, batch in ((10, 1), (1000, 20), (10**6, 1), (100, 90)):
            yield f"queries={queries} {batch} of {part}", of_fixed(queries, part, batch)


def of_fixed(queries: int, part: int, batch: int) -> Iterator[Point]:
    accountant = CyclicFixedSizeAccountant(queries, part, batch)
    for noise in (*NOISES, 1e4):
        for epsilon in EPSILONS:
            found = accountant.delta(epsilon, noise)
            # Replacing is claimed where sampling counts; otherwise leaving out.
            if accountant.is_amplified(epsilon, noise):
                yield found, floors.replaced_step(batch / part, noise, epsilon)
            yield found, floors.one_step(batch / part, noise, epsilon)


def best_of(options: argparse.Namespace) -> Iterator[tuple[str, Iterator[Point]]]:
    for shape in (0.0, 0.5, 1.0, 5.0, math.inf):
        for mean in (1.0, 3.0, 100.0, 10_000.0):
            yield f"shape={shape:g} mean={mean:g}", of_best(mean, shape)


def of_best(mean: float, shape: float) -> Iterator[Point]:
    for noise in NOISES:
        event = dp_accounting.GaussianDpEvent(noise)
        for delta in DELTAS[::2]:
            found = []
            try:
                found.append(selection.renyi_epsilon(event, mean, shape, float(delta)))
            except ValueError:  # privacy that means nothing, said so
                pass
            if math.isfinite(shape):
                found.append(
                    selection.profile_epsilon(
                        lambda at: gaussian.gaussian_epsilon(noise, at),  # noqa: B023
                        mean,
                        shape,
                        float(delta),
                    )
                )
            for epsilon in found:
                yield delta, floors.best_of_runs(noise, mean, shape, epsilon)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    runs = {
        "bins": bins,
        "poisson": poisson,
        "contracts": contracts,
        "b-min-sep": b_min_sep,
        "fixed-size": fixed_size,
        "selection": best_of,
    }
    parser.add_argument("run", choices=sorted(runs))
    parser.add_argument("--most-bins", type=int, default=100)
    options = parser.parse_args()
    points = wrong = 0
    for name, group in runs[options.run](options):
        began, count, below, least = time.perf_counter(), 0, 0, math.inf
        for bound, floor in group:
            count += 1
            if floor > LEAST:
                below += bool(bound < floor * (1 - 1e-12))
            if floor > 1e-25:
                least = min(least, float(bound / floor))
        points, wrong = points + count, wrong + below
        seconds = time.perf_counter() - began
        print(
            f"{name}  points={count}  below={below}  least={least:.9g}  "
            f"seconds={seconds:.1f}",
            flush=True,
        )
    print(f"points={points}  below={wrong}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
