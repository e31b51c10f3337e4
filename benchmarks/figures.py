"""Draws the error curves of arXiv:2505.12128, Figures 1 to 3.

    python benchmarks/figures.py --out figures [--steps 16384] [--figures 1,2,3]

Figure 1: BSR and BISR over their number of bands. Figure 2: RMSE over the number of
steps for several families. Figure 3: few bands, with optimized inverses (BandInvMF).
Each figure is saved as PNG and its values as JSON.
"""

from __future__ import annotations

import argparse
import json
import pathlib
from typing import Callable

from tf_bandmf import plots, workloads
from tf_bandmf.participation import MinSep
from tf_bandmf.strategies import bisr, bsr, registry
from tf_bandmf.workloads import Workload

SETTINGS = {"alpha=1, beta=0": (0.0, 1.0), "alpha=0.9999, beta=0.9": (0.9, 0.9999)}
Curves = dict[str, list[float]]


def powers(limit: int, first: int = 1) -> list[int]:
    found = []
    while first <= limit:
        found.append(first)
        first *= 2
    return found


def bandwidth_curves(workload: Workload, k: int) -> Curves:
    participation = MinSep(-(-workload.num_steps // k), k)
    curves: Curves = {"BSR": [], "BISR": []}
    for p in powers(workload.num_steps):
        for name, family in (("BSR", bsr), ("BISR", bisr)):
            curves[name].append(family(workload, p).rmse(workload, participation))
    return curves


def best_bisr(workload: Workload, participation: MinSep) -> float:
    limit = min(2 * participation.min_separation, workload.num_steps)
    return min(bisr(workload, p).rmse(workload, participation) for p in powers(limit))


def size_curves(make: Callable[[int], Workload], sizes: list[int], k: int) -> Curves:
    curves: Curves = {"DP-SGD": [], "BSR p=b": [], "BISR best p": []}
    optimized = {"BandMF p=b": "toeplitz", "BLT": "blt"}
    for n in sizes:
        workload, participation = make(n), MinSep(-(-n // k), k)
        b = participation.min_separation
        for name, strategy in (
            ("DP-SGD", registry.build_strategy("identity", workload, participation)),
            ("BSR p=b", bsr(workload, b)),
        ):
            curves[name].append(strategy.rmse(workload, participation))
        curves["BISR best p"].append(best_bisr(workload, participation))
        for name, mechanism in optimized.items():
            options = {"bands": b} if mechanism == "toeplitz" else {}
            strategy = registry.build_strategy(
                mechanism, workload, participation, **options
            )
            curves.setdefault(name, []).append(strategy.rmse(workload, participation))
    return curves


def small_band_curves(workload: Workload, k: int, bands: list[int]) -> Curves:
    participation = MinSep(-(-workload.num_steps // k), k)
    names = {"BSR": "bsr", "BISR": "bisr", "BandInvMF": "bandinv", "BandMF": "toeplitz"}
    curves: Curves = {name: [] for name in names}
    for p in bands:
        for name, mechanism in names.items():
            strategy = registry.build_strategy(
                mechanism, workload, participation, bands=p
            )
            curves[name].append(strategy.rmse(workload, participation))
    return curves


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("figures"))
    parser.add_argument("--steps", type=int, default=16_384)
    parser.add_argument("--figures", default="1,2,3")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot

    wanted = options.figures.split(",")
    for figure in wanted:
        panels = {}
        for label, (momentum, decay) in SETTINGS.items():

            def make(n: int, momentum: float = momentum, decay: float = decay):
                return workloads.momentum_sgd(n, momentum, decay)

            if figure == "1":
                x, x_label = powers(options.steps), "bands"
                panels[f"{label}, k=8"] = bandwidth_curves(make(options.steps), 8)
            elif figure == "2":
                x, x_label = powers(min(options.steps, 4096), 64), "steps"
                for k in (1, 4, 16):
                    panels[f"{label}, k={k}"] = size_curves(make, x, k)
            elif figure == "3":
                x, x_label = [1, 2, 4, 8, 16], "bands"
                size = min(options.steps, 2048)
                panels[f"{label}, k=8"] = small_band_curves(make(size), 8, x)
            else:
                parser.error(f"--figures must be of 1, 2, 3, found {figure!r}.")
        grid = matplotlib.pyplot.subplots(
            1, len(panels), figsize=(5 * len(panels), 4), squeeze=False
        )
        for axes, (title, curves) in zip(grid[1][0], panels.items()):
            plots.error_curves(x, curves, x_label, axes).set_title(title)
            axes.set_yscale("log")
        grid[0].tight_layout()
        grid[0].savefig(options.out / f"figure{figure}.png", dpi=120)
        values = {"x": x, "curves": panels}
        (options.out / f"figure{figure}.json").write_text(json.dumps(values, indent=1))
        print(options.out / f"figure{figure}.png")


if __name__ == "__main__":
    main()
