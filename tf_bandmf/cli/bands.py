"""`tf-bandmf bands`: the best number of bands under cyclic Poisson sampling."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from typing import Any

from tf_bandmf.cli import parsing, printing
from tf_bandmf.cli.parsing import BadArguments
from tf_bandmf.planning import band_search

_POWERS = "powers-of-two"


def add_to(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "bands",
        help="the best number of bands under cyclic Poisson sampling",
        description="The best number of bands for a budget under cyclic Poisson "
        "sampling, whose parts are as many as the bands. With STEPS bands the strategy "
        "has no limit of bands and nothing is amplified.",
    )
    parser.add_argument(
        "--steps", type=int, required=True, help="n, the number of training steps"
    )
    parser.add_argument(
        "--epochs",
        type=parsing.ratio,
        required=True,
        help="k, how often an example is expected to take part",
    )
    parser.add_argument("--epsilon", type=float, required=True, help="of the budget")
    parser.add_argument("--delta", type=float, required=True, help="of the budget")
    parser.add_argument(
        "--candidates",
        default=_POWERS,
        help='"powers-of-two" (default: up to STEPS / EPOCHS, and STEPS), or numbers of '
        "bands separated by commas",
    )
    parser.add_argument(
        "--mechanism",
        help=f"{band_search.searched_families()}, each also with "
        '":normalized" where it has a normalized variant; by default banded, and '
        "toeplitz:normalized where that would take minutes",
    )
    parsing.add_workload(parser)
    parser.add_argument(
        "--json",
        action="store_true",
        help='print {"bands": ..., "candidates": [{"bands", "rmse", '
        '"noise_multiplier"}, ...]}; the multiplier is per unit of column norm',
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    with parsing.refusals():
        workload = parsing.workload(options.workload, options.steps)
        search = band_search.best_bands(
            workload,
            options.epochs,
            options.epsilon,
            options.delta,
            mechanism=options.mechanism,
            candidates=_candidates(options.candidates),
            progress=printing.progress(),
        )
    best = search.best
    if options.json:
        candidates = [dataclasses.asdict(found) for found in search.candidates]
        printing.print_json({"bands": best.bands, "candidates": candidates})
        if options.mechanism is None:
            print(f"mechanism: {search.mechanism}", file=sys.stderr)
        return
    headings = ["bands", "RMSE", "noise per column norm", "sampled with", ""]
    body = []
    for found in search.candidates:
        is_unlimited = found.bands == options.steps
        probability = float(options.epochs * found.bands / options.steps)
        body.append(
            [
                str(found.bands),
                f"{found.rmse:.4f}",
                f"{found.noise_multiplier:.4f}",
                "not sampled" if is_unlimited else f"{probability:.4g}",
                "best" if found is best else "",
            ]
        )
    title = (
        f"{search.mechanism}, {options.workload} workload, {options.steps} steps, "
        f"{options.epochs} epochs, epsilon {options.epsilon:g}, delta "
        f"{options.delta:g}, cyclic Poisson sampling; {options.steps} bands: "
        f"{search.unlimited} strategy without amplification"
    )
    printing.print_table(title, headings, body)


def _candidates(text: str) -> list[int] | None:
    if text == _POWERS:
        return None
    try:
        return [int(number) for number in text.split(",") if number.strip()]
    except ValueError:
        raise BadArguments(
            f'--candidates must be "{_POWERS}" or whole numbers separated by commas, '
            f"found {text!r}."
        ) from None
