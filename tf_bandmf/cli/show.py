"""`tf-bandmf show`: what a saved plan promises and needs."""

from __future__ import annotations

import pathlib
import sys
import zipfile
from typing import TYPE_CHECKING, Callable

import click

from tf_bandmf.cli import options, parsing, pictures, printing
from tf_bandmf.cli.parsing import BadArguments, one_line
from tf_bandmf.cli.progress import Progress

if TYPE_CHECKING:
    from tf_bandmf.planning.card import PrivacyCard
    from tf_bandmf.planning.plan import Plan

# How a card is written, by the end of the file's name.
_CARDS: dict[str, Callable[[PrivacyCard], str]] = {
    ".md": lambda card: card.to_model_card(),
    ".html": lambda card: card.to_html(),
    ".json": lambda card: card.to_json(),
}


@click.command("show", short_help="statement, epsilon(delta) and costs of a saved plan")
@click.argument("plan", type=click.Path())
@click.option(
    "--card",
    type=options.PATH,
    metavar="FILE",
    help="save the privacy part of a model card, in plain words: .md (with the metadata of "
    "Keras and Hugging Face), .html or .json",
)
@click.option("--model-name", help="of the model, for --card")
@click.option("--unit", help="whose presence is hidden; by default what the plan says")
@options.output("print JSON")
def command(
    plan: str,
    card: str | None,
    model_name: str | None,
    unit: str | None,
    wide: bool,
    plot: str | None,
    as_json: bool,
) -> None:
    """Reads a plan and checks it; prints its statement, epsilon(delta) and costs.

    PLAN is a file that `tf-bandmf plan --out` wrote.
    """
    pictures.check(plot)
    _check_card(card, model_name)
    with Progress("reading the plan") as progress:
        read = _load(plan)
        progress("epsilon(delta)")
        from tf_bandmf.planning.curve import privacy_curve

        curve = privacy_curve(read)
        if plot is not None:
            progress("picture")
            with parsing.refusals():
                pictures.save_plan(read, plot)
    with parsing.refusals():
        statement = read.statement(unit)
        made = statement.card(model_name)
    if card is not None:
        text = _CARDS[pathlib.Path(card).suffix](made)
        pathlib.Path(card).write_text(text, encoding="utf-8")
        print(f"Saved {card}.", file=sys.stderr)
    if as_json:
        printing.print_json(
            {
                **printing.plan_record(read),
                "curve": [{"delta": d, "epsilon": e} for d, e in curve],
            }
        )
        pictures.say_saved(plot, as_json)
        return
    printing.print_statement(statement)
    print()
    printing.print_choice(read, wide)
    body = [[f"{delta:.0e}", f"{epsilon:.4f}"] for delta, epsilon in curve]
    printing.Table("Privacy of the same run", ["delta", "epsilon"], body).print(wide)
    printing.say(
        f"The noise keeps {read.strategy.memory_vectors} vectors of the model's size and "
        f"draws {read.strategy.regenerations_per_step} again at each step."
    )
    pictures.say_saved(plot, as_json)


def _check_card(card: str | None, model_name: str | None) -> None:
    """Raises BadArguments for what cannot be saved, before anything is computed."""
    if card is None:
        if model_name is not None:
            raise BadArguments("--model-name needs --card.")
        return
    if pathlib.Path(card).suffix not in _CARDS:
        raise BadArguments(f"--card must end in {', '.join(_CARDS)}, found {card}.")
    parsing.check_folder("--card", card)


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
