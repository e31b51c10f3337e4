"""What each choice is worth: held-out accuracy of rows that differ in one, from the CSV.

    python benchmarks/utility/ablation.py [--task cifar-10] [--base DP-SGD]

For each row whose name begins with that of the base: the accuracy of its best setting,
and the difference to the base's best. The tuning seeds are the same, so the difference
is that of pairs; its standard error is over seeds.
"""

from __future__ import annotations

import argparse

import numpy as np
from results import HERE, Results, best


def by_seed(
    results: Results, name: str, setting: tuple[float, str]
) -> dict[str, float]:
    """Held-out accuracy of a row at a learning rate and readout."""
    rate, readout = setting
    found = results.of(
        row=name, phase="validation", learning_rate=rate, readout=readout
    )
    return {run["seed"]: float(run["accuracy"]) for run in found}


def lines(results: Results, base: str) -> list[str]:
    """Rows of a Markdown table."""
    names = dict.fromkeys(row["row"] for row in results.rows)
    tuning = {name: results.of(row=name, phase="validation") for name in names}
    reference = by_seed(results, base, best(tuning[base]))
    cases = {
        name: (name, tuning[name])
        for name in names
        if name == base or name.startswith(f"{base}:")
    }
    # The base again, as if one readout were the only one.
    for readout in dict.fromkeys(run["readout"] for run in tuning[base]):
        only = [run for run in tuning[base] if run["readout"] == readout]
        cases[f"{base}: {readout}"] = (base, only)
    found = []
    for title, (name, runs) in cases.items():
        setting = best(runs)
        accuracy = by_seed(results, name, setting)
        seeds = sorted(set(accuracy) & set(reference))
        values = np.array([accuracy[seed] for seed in seeds])
        pairs = values - [reference[seed] for seed in seeds]
        error = pairs.std(ddof=1) / len(pairs) ** 0.5 if len(pairs) > 1 else np.nan
        found.append(
            f"| {title} | {setting[0]:g} | {setting[1]} | {values.mean():.2%} | "
            f"{pairs.mean():+.2%} ± {error:.2%} |"
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="cifar-10")
    parser.add_argument("--base", default="DP-SGD")
    arguments = parser.parse_args()
    results = Results(HERE / "results" / f"{arguments.task}.csv")
    print("| row | learning rate | readout | held-out | difference |")
    print("|---|---|---|---|---|")
    print("\n".join(lines(results, arguments.base)))


if __name__ == "__main__":
    main()
