"""`tf-bandmf bands`: the best number of bands under cyclic Poisson sampling."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import click

from tf_bandmf.cli import data_use, options, parsing, pictures, printing
from tf_bandmf.cli.parsing import BadArguments
from tf_bandmf.cli.progress import Progress
from tf_bandmf.planning import band_search

_POWERS = "powers-of-two"


@click.command(
    "bands", short_help="the best number of bands under cyclic Poisson sampling"
)
@options.data_use
@options.budget(required=True)
@click.option(
    "--candidates",
    default=_POWERS,
    show_default=True,
    help=f'"{_POWERS}" (up to STEPS / EPOCHS, and STEPS), or numbers of bands '
    f"separated by commas",
)
@click.option(
    "--mechanism",
    type=parsing.Mechanism(),
    help=f'{band_search.searched_families()}, each also with ":normalized" where it has '
    f"a normalized variant; by default banded, and toeplitz:normalized where that would "
    f"take minutes",
)
@options.workload
@options.output(
    'print {"bands": ..., "candidates": [{"bands", "rmse", "noise_multiplier"}, ...]}; '
    "the multiplier is per unit of column norm"
)
def command(
    epsilon: float,
    delta: float,
    candidates: str,
    mechanism: str | None,
    workload: str,
    wide: bool,
    plot: str | None,
    as_json: bool,
    **data: Any,
) -> None:
    """Finds the best number of bands for a budget under cyclic Poisson sampling.

    Its parts are as many as the bands. With STEPS bands the strategy has no limit of
    bands and nothing is amplified. Say how the data are used by --examples, --batch-size
    and --epochs, or by --steps and --min-separation, or --steps and --epochs.
    """
    pictures.check(plot)
    with parsing.refusals(), Progress("searching for bands") as progress:
        use = data_use.of_options(**data)
        if isinstance(use, data_use.Rates) and use.batch_size is not None:
            raise BadArguments("--batch-size goes with --examples and --epochs.")
        participations, steps = use.expected_participations, use.num_steps
        search = band_search.best_bands(
            parsing.workload(workload, steps),
            participations,
            epsilon,
            delta,
            mechanism=mechanism,
            candidates=_candidates(candidates),
            progress=progress,
        )
        if plot is not None:
            pictures.save_bands(search, plot)
    best = search.best
    if as_json:
        records = [dataclasses.asdict(found) for found in search.candidates]
        printing.print_json({"bands": best.bands, "candidates": records})
        if mechanism is None:
            print(f"mechanism: {search.mechanism}", file=sys.stderr)
        pictures.say_saved(plot, as_json)
        return
    headings = ["bands", "RMSE", "noise multiplier", "sampled with", ""]
    body = []
    for found in search.candidates:
        is_unlimited = found.bands == steps
        probability = float(participations * found.bands / steps)
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
        f"{search.mechanism}, {workload} workload, {steps} steps, "
        f"{float(participations):g} participations expected, epsilon {epsilon:g}, delta "
        f"{delta:g}, cyclic Poisson sampling; noise multiplier per unit of column norm; "
        f"{steps} bands: {search.unlimited} strategy without amplification"
    )
    printing.Table(title, headings, body).print(wide)
    pictures.say_saved(plot, as_json)


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
