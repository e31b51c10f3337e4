"""RMSE with amplified noise of all mechanisms with as many bands, under balls in bins.

    python benchmarks/amplified.py
    python benchmarks/amplified.py --bins 64 --epochs 8 --bands 4,16 --epsilons 1,8

The defaults are the setting of arXiv:2601.22334: n = 3910 steps, 391 bins, 10 epochs,
prefix sum, delta = 1e-5. `rmse` is the error times the noise of the accountant; `more` how
much it exceeds that of the amplified strategy; `seconds` what finding the strategy took.
"""

from __future__ import annotations

import argparse

from tf_bandmf import workloads
from tf_bandmf.participation import BallsInBins
from tf_bandmf.planning import calibration, choosing, comparison

FAMILIES = ("amplified", "bifr", "bisr", "bandinv", "bsr", "toeplitz", "lambda_cgd")


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
    options = parser.parse_args()
    participation = BallsInBins(options.bins * 128, 128, options.epochs)
    workload = workloads.momentum_sgd(participation.num_steps, options.momentum)
    for epsilon in map(float, options.epsilons.split(",")):
        calibrator = calibration.for_budget(participation, epsilon, options.delta)
        for bands in map(int, options.bands.split(",")):
            best = None
            for family in options.families.split(","):
                if family in ("bifr", "lambda_cgd"):
                    # Their parameter is chosen for the amplified error.
                    name = f"{family}:{bands}" if family == "bifr" else family
                    choice = choosing.choose(
                        workload,
                        participation,
                        epsilon=epsilon,
                        delta=options.delta,
                        mechanism_names=(name,),
                    )
                    (row,) = choice.table
                else:
                    name = f"{family}:{bands}"
                    row = comparison.build_row(
                        name, workload, participation, calibrator
                    )
                best = row.rmse if best is None else best
                print(
                    f"epsilon={epsilon:g}  {row.mechanism:16s}  rmse={row.rmse:.4f}  "
                    f"more={100 * (row.rmse / best - 1):.1f}%  "
                    f"noise={row.noise_stddev:.4f}  seconds={row.seconds:.1f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
