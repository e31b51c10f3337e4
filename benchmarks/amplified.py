"""RMSE with amplified noise of all mechanisms with as many bands, under balls in bins.

    python benchmarks/amplified.py
    python benchmarks/amplified.py --bins 64 --epochs 8 --bands 4,16,64 --out amplified.json

The defaults are the setting of arXiv:2601.22334: n = 3910 steps, 391 bins, 10 epochs,
prefix sum, delta = 1e-5. `rmse` is the error times the noise of the accountant; `more` how
much it exceeds that of the first family with as many bands; `seconds` what finding the
strategy took. DP-SGD (`identity`), `lambda_cgd` and `blt` have no number of bands. The
parameters of `lambda_cgd` and `bifr` are chosen for the amplified error; a strategy that
does not depend on the budget is found once. One that the accountant refuses, since `C` has
negative entries, has no error: its row says why.

With --out, each row is written when it is found, and those that the file has already are
not found again. `results/amplified.json`, which docs/figures/make.py draws, is of the
second command.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import pathlib
import time
from typing import Any, Callable

from tf_bandmf import workloads
from tf_bandmf.participation import BallsInBins
from tf_bandmf.planning import calibration, choosing, comparison
from tf_bandmf.strategies import Strategy, registry

FAMILIES = (
    "amplified",
    "amplified_toeplitz",
    "amplified_blt",
    "identity",
    "lambda_cgd",
    "bifr",
    "bisr",
    "bandinv",
    "bsr",
    "toeplitz",
    "banded",
    "blt",
)
# Their parameter is chosen for the amplified error.
CHOSEN = ("bifr", "lambda_cgd")
# What the file keeps of a row.
KEPT = ("mechanism", "rmse", "noise_stddev", "converged", "seconds")


def rows_of(setting: dict[str, Any]) -> Callable[[str, float], comparison.Row]:
    """A function of a mechanism, "bisr:4", and epsilon that gives its row."""
    bins, epochs, delta = setting["bins"], setting["epochs"], setting["delta"]
    participation = BallsInBins(bins * 128, 128, epochs)
    workload = workloads.momentum_sgd(participation.num_steps, setting["momentum"])

    def build(name: str, **budget: float) -> tuple[Strategy, float]:
        start = time.perf_counter()
        family, options = registry.parse(name)
        options.update(budget)
        found = registry.build_strategy(family, workload, participation, **options)
        return found, time.perf_counter() - start

    once = functools.cache(build)

    def row(name: str, epsilon: float) -> comparison.Row:
        family, _ = registry.parse(name)
        if family in CHOSEN:
            choice = choosing.choose(
                workload,
                participation,
                epsilon=epsilon,
                delta=delta,
                mechanism_names=(name,),
            )
            (found,) = choice.table
            return found
        if registry.family_of(family).needs_budget:
            strategy, seconds = build(name, epsilon=epsilon, delta=delta)
        else:
            strategy, seconds = once(name)
        calibrator = calibration.for_budget(participation, epsilon, delta)
        return comparison.row(
            name, strategy, workload, participation, calibrator, seconds
        )

    return row


def found_or_why(
    find: Callable[[str, float], comparison.Row], name: str, epsilon: float
) -> dict[str, Any]:
    """What the file keeps of a mechanism, or why there is nothing."""
    try:
        row = dataclasses.asdict(find(name, epsilon))
    except ValueError as error:
        return {"mechanism": name, "why": str(error)}
    return {part: row[part] for part in KEPT}


def rows_in(path: pathlib.Path | None, setting: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows that a file has already.

    Raises:
      ValueError: if they are of another setting.
    """
    if path is None or not path.exists():
        return []
    content = json.loads(path.read_text(encoding="utf-8"))
    rows: list[dict[str, Any]] = content.pop("rows")
    if content != setting:
        raise ValueError(f"--out must be of {setting}, found {content}.")
    return rows


def write(
    path: pathlib.Path, setting: dict[str, Any], rows: list[dict[str, Any]]
) -> None:
    """One line a row, in an order that does not depend on that of the runs."""

    def place(row: dict[str, Any]) -> tuple[Any, ...]:
        return row["bands"] or 0, row["epsilon"], row["family"]

    lines = ",\n".join(json.dumps(row) for row in sorted(rows, key=place))
    head = json.dumps(setting)[:-1]
    path.write_text(f'{head}, "rows": [\n{lines}\n]}}\n', encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bins", type=int, default=391)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--bands", default="4,16")
    parser.add_argument("--epsilons", default="0.25,0.5,1,2,4,8")
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--out", type=pathlib.Path, help="JSON with all rows")
    options = parser.parse_args()
    setting = {
        name: getattr(options, name) for name in ("bins", "epochs", "momentum", "delta")
    }
    rows = rows_in(options.out, setting)
    known = {(row["family"], row["bands"], row["epsilon"]): row for row in rows}
    find = rows_of(setting)
    for epsilon in map(float, options.epsilons.split(",")):
        for bands in map(int, options.bands.split(",")):
            first = None
            for family in options.families.split(","):
                has_bands = registry.family_of(family).has_bands
                key = family, bands if has_bands else None, epsilon
                if key not in known:
                    name = f"{family}:{bands}" if has_bands else family
                    record = dict(zip(("family", "bands", "epsilon"), key))
                    known[key] = {**record, **found_or_why(find, name, epsilon)}
                    if options.out is not None:
                        write(options.out, setting, list(known.values()))
                row = known[key]
                print(f"epsilon={epsilon:g}  {row['mechanism']:16s}", end="  ")
                if "why" in row:
                    print(f"none: {row['why']}", flush=True)
                    continue
                first = row["rmse"] if first is None else first
                print(
                    f"rmse={row['rmse']:.4f}  "
                    f"more={100 * (row['rmse'] / first - 1):.1f}%  "
                    f"noise={row['noise_stddev']:.4f}  seconds={row['seconds']:.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
