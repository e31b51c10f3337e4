"""`tf-bandmf compare`: error, sensitivity and cost of many mechanisms."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from tf_bandmf.cli import data_use, options, parsing, pictures, printing
from tf_bandmf.cli.parsing import BadArguments
from tf_bandmf.cli.progress import Progress
from tf_bandmf.participation import NAMED, MinSep, Participation
from tf_bandmf.participation.scheme import DEFAULT_SAMPLING, samplings
from tf_bandmf.planning import calibration, comparison
from tf_bandmf.strategies import registry

_NONE = "none"


@click.command("compare", short_help="error, sensitivity and cost of many mechanisms")
@options.data_use
@options.budget(required=False)
@click.option(
    "--mechanisms",
    type=parsing.Mechanism(several=True),
    default=",".join(registry.typical_specifications()),
    help=f"separated by commas, name[:value][:normalized] of "
    f"{', '.join(registry.names())}; the value is the number of bands, of buffers "
    f'("blt") or lambda ("lambda_cgd"). By default '
    f"{', '.join(registry.typical_specifications())}",
)
@click.option(
    "--sampling",
    type=parsing.Name((_NONE, *samplings())),
    metavar="NAME",
    default=_NONE,
    show_default=True,
    help=f"how batches are made: one of {', '.join(samplings())}. With --steps: "
    f"{', '.join(calibration.samplings_with_rates())}",
)
@options.workload
@options.output("print a JSON array, one object a mechanism")
def command(
    mechanisms: str,
    sampling: str,
    epsilon: float | None,
    delta: float | None,
    workload: str,
    wide: bool,
    plot: str | None,
    as_json: bool,
    **data: Any,
) -> None:
    """Compares error, sensitivity and cost of many mechanisms.

    Say how the data are used by --examples, --batch-size and --epochs, or by --steps,
    --min-separation and --max-participations. Without a budget the noise multiplier is 1
    per unit of sensitivity.
    """
    pictures.check(plot)
    names = [name.strip() for name in mechanisms.split(",") if name.strip()]
    _check_budget(sampling, epsilon, delta)
    with parsing.refusals(), Progress("comparing mechanisms") as progress:
        use = data_use.of_options(**data)
        if isinstance(use, data_use.Rates) and use.batch_size is not None:
            raise BadArguments("--batch-size goes with --examples and --epochs.")
        model_sum = parsing.workload(workload, use.num_steps)
        for name in names:
            registry.parse(name)
        participation = _participation(use, sampling)
        calibrator = _calibrator(use, participation, sampling, epsilon, delta)
        table = comparison.compare(
            model_sum, participation, names, calibrator, progress
        )
        table = dataclasses.replace(
            table,
            title=_title(model_sum, use, participation, sampling, epsilon, delta),
        )
        if plot is not None:
            pictures.save_comparison(table, plot)
    if as_json:
        printing.print_json(table.to_records())
    else:
        printing.Table.of_comparison(table).print(wide)
    for failure in table.failure_texts():
        printing.say(f"Not compared: {failure}")
    pictures.say_saved(plot, as_json)


def _check_budget(sampling: str, epsilon: float | None, delta: float | None) -> None:
    if epsilon is not None and delta is not None:
        return
    if sampling != _NONE and NAMED[sampling].is_amplified:
        raise BadArguments(
            f"--sampling {sampling} amplifies a budget: give --epsilon and --delta."
        )
    if (epsilon is None) != (delta is None):
        raise BadArguments("--epsilon and --delta belong together: give both or none.")


def _participation(use: data_use.Data | data_use.Rates, sampling: str) -> Participation:
    """What sensitivities are for, and strategies are optimized for."""
    if isinstance(use, data_use.Rates):
        if sampling not in (_NONE, *calibration.samplings_with_rates()):
            raise BadArguments(
                f"--sampling {sampling} needs --examples, --batch-size and --epochs."
            )
        return use.min_sep()
    scheme = use.scheme(DEFAULT_SAMPLING if sampling == _NONE else sampling)
    if scheme.is_cyclic:
        # Each mechanism has its own number of parts; what they share is the separation.
        return MinSep(scheme.num_steps // scheme.epochs, scheme.epochs)
    return scheme.participation()


def _calibrator(
    use: data_use.Data | data_use.Rates,
    participation: Participation,
    sampling: str,
    epsilon: float | None,
    delta: float | None,
) -> calibration.Calibrator:
    if epsilon is None or delta is None:
        return calibration.unamplified()
    if sampling != _NONE and isinstance(use, data_use.Rates):
        return calibration.for_rates(
            sampling,
            use.num_steps,
            use.separation,
            use.expected_participations,
            epsilon,
            delta,
        )
    if sampling != _NONE and isinstance(use, data_use.Data):
        scheme = use.scheme(sampling)
        if scheme.is_cyclic:
            return calibration.for_scheme(scheme, epsilon, delta)
    return calibration.for_budget(participation, epsilon, delta)


def _title(
    model_sum: Any,
    use: data_use.Data | data_use.Rates,
    participation: Participation,
    sampling: str,
    epsilon: float | None,
    delta: float | None,
) -> str:
    noise = (
        "noise multiplier 1"
        if epsilon is None
        else f"epsilon {epsilon:g}, delta {delta:g}"
    )
    how = participation.describe()
    if sampling != _NONE and (
        isinstance(use, data_use.Rates) or NAMED[sampling].is_cyclic
    ):
        parts = ", as many parts as bands" if NAMED[sampling].is_cyclic else ""
        how = f"Sampling {sampling}{parts}."
    return f"{model_sum.name} workload, {model_sum.num_steps} steps, {noise}. {how}"
