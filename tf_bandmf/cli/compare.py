"""`tf-bandmf compare`: error, sensitivity and cost of many mechanisms."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from tf_bandmf.cli import parsing, printing
from tf_bandmf.cli.parsing import BadArguments
from tf_bandmf.participation import MinSep
from tf_bandmf.planning import calibration, comparison
from tf_bandmf.strategies import registry


def add_to(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "compare",
        help="error, sensitivity and cost of many mechanisms",
        description="Error, sensitivity and cost of many mechanisms under "
        "min-separation. Without a budget the noise multiplier is 1 per unit of "
        "sensitivity.",
    )
    parser.add_argument(
        "--steps", type=int, required=True, help="n, the number of training steps"
    )
    parser.add_argument(
        "--min-sep",
        type=int,
        required=True,
        help="b, least number of steps from one participation of an example to the next; "
        "under balls-in-bins the number of bins",
    )
    parser.add_argument(
        "--participations",
        type=int,
        help="k, the most participations of one example; by default ceil(n / b); under "
        "cyclic-poisson the expected number",
    )
    parsing.add_workload(parser)
    parser.add_argument(
        "--mechanisms",
        default=",".join(registry.typical_specifications()),
        help="comma-separated name[:value][:normalized] of "
        f"{', '.join(registry.names())}; the value is the number of bands, "
        'of buffers ("blt") or lambda ("lambda_cgd")',
    )
    parser.add_argument("--epsilon", type=float, help="of the privacy budget")
    parser.add_argument("--delta", type=float, help="of the privacy budget")
    parser.add_argument(
        "--sampling",
        choices=("none", *calibration.samplings_with_rates()),
        default="none",
        help="amplification by sampling",
    )
    parser.add_argument(
        "--json", action="store_true", help="print a JSON array, one object a mechanism"
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    names = [name.strip() for name in options.mechanisms.split(",") if name.strip()]
    with parsing.refusals():
        workload = parsing.workload(options.workload, options.steps)
        participation = MinSep(options.min_sep, options.participations)
        participation.validate_num_steps(options.steps)
        for name in names:
            registry.parse(name)
        table = comparison.compare(
            workload,
            participation,
            names,
            _calibrator(options, participation),
            printing.progress(),
        )
    if options.json:
        printing.print_json(table.to_records())
    else:
        printing.print_table(table.title, *table.cells())


def _calibrator(
    options: argparse.Namespace, participation: MinSep
) -> calibration.Calibrator:
    epsilon, delta = options.epsilon, options.delta
    participations = participation.participations(options.steps)
    if options.sampling == "none" and epsilon is None and delta is None:
        return calibration.unamplified()
    if epsilon is None or delta is None:
        if options.sampling == "none":
            raise BadArguments(
                "--epsilon and --delta belong together: give both or none."
            )
        raise BadArguments(
            f"--sampling {options.sampling} amplifies a budget: give --epsilon and "
            f"--delta."
        )
    if options.sampling == "none":
        return calibration.for_budget(participation, epsilon, delta)
    return calibration.for_rates(
        options.sampling,
        options.steps,
        options.min_sep,
        participations,
        epsilon,
        delta,
        progress=sys.stderr.isatty(),
    )
