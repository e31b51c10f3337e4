"""Compares the numbers of sixty small plans with the reference values in plans.json.

    python tests/golden/plans.py             # prints the differences from plans.json
    python tests/golden/plans.py --save      # rewrites plans.json
    python tests/golden/plans.py --save --only poisson     # plans named "*poisson*"

A commit that is not meant to change numbers must not change plans.json. A commit that
improves numbers saves the new ones, and its message says which numbers improve, and by
how much.
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import warnings
from typing import Any

import numpy as np

import tf_bandmf
from tf_bandmf import workloads

FILE = pathlib.Path(__file__).with_suffix(".json")
BUDGET = {"epsilon": 4.0, "delta": 1e-5}
DATA = {"num_examples": 600, "batch_size": 60, "epochs": 6}
# Sampling amplifies privacy strongly here, because a batch is only 1% of the data.
SPARSE = {"num_examples": 2_000, "batch_size": 20, "epochs": 2}
APART = {"num_steps": 60, "sampling": tf_bandmf.MinSep(8, 5)}
FEW = {"num_examples": 64, "batch_size": 8, "epochs": 4}
RATES = 1.0 - np.arange(60) / 80
SCHEDULE = workloads.momentum_sgd(60, 0.9, 0.999, RATES)


def _of(mechanism: str, data: dict[str, Any] = DATA, **options: Any) -> dict[str, Any]:
    budget = {} if "noise_multiplier" in options or "epsilon" in options else BUDGET
    return {"mechanism": mechanism, **data, **budget, **options}


def _sampled(sampling: str, *mechanisms: str, **options: Any) -> dict[str, Any]:
    data = options.pop("data", SPARSE)
    return {
        f"{sampling}, {mechanism}": _of(mechanism, data, sampling=sampling, **options)
        for mechanism in mechanisms
    }


# Plans with closed-form strategies. On other machines, their numbers differ only by
# rounding errors.
CLOSED = {
    name: _of(name)
    for name in (
        *("identity", "tree", "bsr:4", "bsr:4:normalized", "bisr", "bisr:4"),
        *("bisr:4:normalized", "bifr:3:0.6", "bifr:3", "lambda_cgd"),
        *("lambda_cgd:0.9", "lambda_cgd:0.5:normalized", "lambda_cgd:max"),
    )
} | {
    "bisr:4, momentum": _of("bisr:4", workload="sgd:momentum=0.9"),
    "bsr:4, schedule": _of("bsr:4", workload=SCHEDULE),
    "lambda_cgd, schedule": _of("lambda_cgd", workload=SCHEDULE),
    "bisr:4, clip": _of("bisr:4", l2_norm_clip=0.3),
    "bisr:4, epsilon 0.1": _of("bisr:4", epsilon=0.1, delta=1e-9),
    "bsr:3, epsilon 20": _of("bsr:3", epsilon=20.0, delta=1e-3),
    "bisr:4, noise": _of("bisr:4", noise_multiplier=1.3, delta=1e-6),
    "identity, one epoch": _of("identity", {**DATA, "epochs": 1}),
    "bsr:4, uneven": _of("bsr:4", {**DATA, "batch_size": 70}),
    "shuffled, bisr:4": _of("bisr:4", sampling="shuffled"),
    "min sep, lambda_cgd:0.9": _of("lambda_cgd:0.9", APART),
    "min sep, bsr:4": _of("bsr:4", APART),
}
# Plans with optimized strategies. On other machines, the optimizer may stop at slightly
# different coefficients.
OPTIMIZED = {
    name: _of(name)
    for name in (
        *("bandinv:4", "bandinv:3:normalized", "bandinv:2:max"),
        *("toeplitz:4", "toeplitz:4:normalized", "toeplitz:3:max"),
        *("blt:2", "blt:3", "banded:4", "banded:3:max"),
    )
} | {
    "bandinv:3, schedule": _of("bandinv:3", workload=SCHEDULE),
    "banded:4, schedule": _of("banded:4", workload=SCHEDULE),
    "toeplitz:4, momentum": _of("toeplitz:4", workload="sgd:momentum=0.9"),
    "blt:2, one epoch": _of("blt:2", {**DATA, "epochs": 1}),
    "auto": _of("auto", max_memory_vectors=3),
    "auto, no memory": _of("auto", max_memory_vectors=0),
}
# Plans whose amplification by sampling is computed without a simulation.
POISSON = {
    **_sampled("poisson", "identity"),
    **_sampled("cyclic-poisson", "identity", "bsr:4", "toeplitz:4", "auto"),
    **_sampled("cyclic-fixed-size", "identity", "bsr:4"),
    "poisson, epsilon 0.5": _of("identity", SPARSE, sampling="poisson", epsilon=0.5)
    | {"delta": 1e-6},
    "poisson, noise": _of(
        "identity", SPARSE, sampling="poisson", noise_multiplier=0.8, delta=1e-5
    ),
    "cyclic-poisson, noise": {
        "mechanism": "bsr:3",
        "sampling": tf_bandmf.participation.CyclicPoisson(2_000, 20, 3),
        "num_steps": 200,
        "batch_size": 20,
        "noise_multiplier": 0.2,
        "delta": 1e-5,
    },
    "cyclic-fixed-size, noise": {
        "mechanism": "bsr:2",
        "sampling": tf_bandmf.participation.CyclicFixedSize(64, 8, 2),
        "num_steps": 32,
        "batch_size": 8,
        "noise_multiplier": 0.8,
        "delta": 1e-5,
    },
    "cyclic-poisson, schedule": _of(
        "bsr:3",
        {"num_examples": 600, "batch_size": 10, "epochs": 1},
        sampling="cyclic-poisson",
        workload=SCHEDULE,
    ),
}
# Plans whose amplification by sampling is computed by a simulation. It gives either an
# estimate, or a bound that holds with a stated confidence.
SIMULATED = {
    **_sampled("balls-in-bins", "identity", "lambda_cgd:0.5", "bisr:2", data=FEW),
    **_sampled("balls-in-bins", "amplified:2", data=FEW),
    **_sampled("b-min-sep", "bsr:2", data=FEW),
    "balls-in-bins, bound": _of(
        "bisr:2", FEW, sampling="balls-in-bins", confidence=0.999, epsilon=4.0
    )
    | {"delta": 1e-3},
    "b-min-sep, bound": _of(
        "bsr:2", FEW, sampling="b-min-sep", confidence=0.999, epsilon=4.0
    )
    | {"delta": 1e-3},
}
PLANS = {**CLOSED, **OPTIMIZED, **POISSON, **SIMULATED}
# The names of plans that take at least a few seconds each, because they optimize a
# strategy, or calibrate the noise of a sampled run.
SLOW = (
    {name for name in OPTIMIZED if "banded" in name or "bandinv:3, " in name}
    | {"blt:3", "blt:2, one epoch", "balls-in-bins, amplified:2"}
    | {name for name in POISSON if "noise" not in name}
)


def tolerance(name: str, field: str) -> float:
    """Returns the tolerance of a field, relative to the field's largest number.

    On the same machine, all numbers are equal to the last bit. Other machines may add
    numbers in a different order, so an optimizer may stop at another point near the
    optimum. The RMSE hardly changes near the optimum, but the amplification does.
    """
    if name in SIMULATED:
        return 1e-3
    if name in POISSON:
        return 1e-4
    if name in OPTIMIZED and field in ("first_column", "last_row", "sensitivity"):
        return 1e-5
    return 1e-7 if name in OPTIMIZED else 1e-9


def _made(
    mechanism: str,
    max_memory_vectors: int | None = None,
    confidence: float | None = None,
    **use: Any,
) -> tf_bandmf.Plan:
    """Makes a plan, which may be chosen by `compare` or simulated by `Plan.bounded`."""
    if max_memory_vectors is not None:
        table = tf_bandmf.compare(max_memory_vectors=max_memory_vectors, **use)
        mechanism = table.mechanism
    plan = tf_bandmf.plan(mechanism, **use)
    return plan if confidence is None else plan.bounded(confidence=confidence)


def record(name: str) -> dict[str, Any]:
    """Makes the plan that has this name in `PLANS`, and returns its numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plan = _made(**PLANS[name])
    dense = plan.strategy.matrix.to_dense()
    rmse = plan.strategy.rmse(plan.workload, plan.participation)
    return {
        "strategy": plan.strategy.describe(),
        "kind": plan.kind,
        "first_column": dense[:5, 0].tolist(),
        "last_row": [*dense[-1, -3:].tolist(), float(dense.sum())],
        "sensitivity": plan.sensitivity.value,
        "rmse": float(rmse),
        "noise_multiplier": float(plan.noise_multiplier),
        "epsilon": float(plan.epsilon),
        "delta": float(plan.delta),
    }


def differences(name: str, before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Returns one line for each field that differs by more than its tolerance."""
    lines = []
    for field in sorted({*before, *now}):
        old, new = before.get(field), now.get(field)
        if old == new:
            continue
        try:
            ratio = _distance(old, new)
        except (TypeError, ValueError):
            ratio = math.inf
        if not ratio <= tolerance(name, field):
            lines.append(f"{name}: {field} was {old}, is {new} ({ratio:.1e})")
    return lines


def _distance(old: Any, new: Any) -> float:
    before, now = np.asarray(old, float), np.asarray(new, float)
    return float(np.max(np.abs(now - before)) / np.max(np.abs(before)))


def saved() -> dict[str, dict[str, Any]]:
    """Reads the numbers of plans.json."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def main() -> None:
    """Prints differences from plans.json; with `--save`, also rewrites plans.json."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    before = saved() if FILE.exists() else {}
    records = {name: before[name] for name in PLANS if name in before}
    names = [name for name in PLANS if arguments.only in name]
    equal = 0
    for name in names:
        now = json.loads(json.dumps(record(name)))
        equal += now == before.get(name)
        for line in differences(name, before.get(name, {}), now):
            print(line)
        records[name] = now
    print(f"{equal} of {len(names)} plans are equal to the last bit.")
    if arguments.save:
        rows = [f"{json.dumps(n)}: {json.dumps(records[n])}" for n in PLANS]
        FILE.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
