"""`tf-bandmf show`: what a saved plan promises and needs."""

from __future__ import annotations

import zipfile
from typing import TYPE_CHECKING

import click

from tf_bandmf.cli import options, parsing, pictures, printing
from tf_bandmf.cli.parsing import BadArguments, one_line
from tf_bandmf.cli.progress import Progress

if TYPE_CHECKING:
    from tf_bandmf.planning.plan import Plan


@click.command("show", short_help="statement, epsilon(delta) and costs of a saved plan")
@click.argument("plan", type=click.Path())
@options.output("print JSON")
def command(plan: str, wide: bool, plot: str | None, as_json: bool) -> None:
    """Reads a plan and checks it; prints its statement, epsilon(delta) and costs.

    PLAN is a file that `tf-bandmf plan --out` wrote.
    """
    pictures.check(plot)
    with Progress("reading the plan") as progress:
        read = _load(plan)
        progress("epsilon(delta)")
        from tf_bandmf.planning.curve import privacy_curve

        curve = privacy_curve(read)
        if plot is not None:
            progress("picture")
            with parsing.refusals():
                pictures.save_plan(read, plot)
    if as_json:
        printing.print_json(
            {
                **printing.plan_record(read),
                "curve": [{"delta": d, "epsilon": e} for d, e in curve],
            }
        )
        pictures.say_saved(plot, as_json)
        return
    printing.print_statement(read.statement())
    print()
    printing.print_choice(read, wide)
    body = [[f"{delta:.0e}", f"{epsilon:.4f}"] for delta, epsilon in curve]
    printing.Table("Privacy of the same run", ["delta", "epsilon"], body).print(wide)
    printing.say(
        f"The noise keeps {read.strategy.memory_vectors} vectors of the model's size and "
        f"draws {read.strategy.regenerations_per_step} again at each step."
    )
    pictures.say_saved(plot, as_json)


def _load(path: str) -> Plan:
    from tf_bandmf.planning.plan import Plan  # loads dp-accounting

    try:
        return Plan.load(path)
    except FileNotFoundError as error:
        detail = (
            one_line(error) if error.filename is None else f"{path} does not exist."
        )
        raise BadArguments(detail) from error
    except (
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        IndexError,
        UnicodeError,
        zipfile.BadZipFile,
    ) as error:
        # Anything may be in a file; most of it `load` has words for.
        detail = one_line(error)
        if not detail.startswith(path):
            detail = (
                f"{path} is damaged or is not a plan ({type(error).__name__}: {detail}). "
                f"Make the plan again."
            )
        raise BadArguments(detail) from error
