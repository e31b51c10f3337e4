"""`tf-bandmf advise`: batch size, clip norm and learning rate before the first run."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import click

from tf_bandmf.cli import options, parsing, printing
from tf_bandmf.cli.parsing import BadArguments
from tf_bandmf.cli.progress import calculation
from tf_bandmf.planning import choosing

if TYPE_CHECKING:
    from tf_bandmf.planning.advice import Advice

# The library's names of what these options give; the others have the option's own.
_OPTIONS = {
    "num_examples": "examples",
    "num_parameters": "parameters",
    "max_batch_size": "max-batch-size",
    "max_memory_vectors": "memory-vectors",
    "expected_trials": "trials",
    **{
        name: name
        for name in ("epochs", "optimizer", "loss", "sampling", "epsilon", "delta")
    },
}
_LESS_IMPORTANT = ("noise", "steps")


@click.command("advise", short_help="batch size, clip norm and learning rate to use")
@click.option("--examples", type=int, required=True, help="m, size of the training set")
@click.option(
    "--parameters", type=int, required=True, help="d, number of trainable parameters"
)
@options.budget(required=True)
@click.option(
    "--epochs",
    type=parsing.Ratio(),
    required=True,
    help="k, the most passes over the training set that the compute allows",
)
@click.option(
    "--optimizer",
    type=click.Choice(["sgd", "adam"]),
    default="sgd",
    show_default=True,
    help="of Keras; SGD has momentum 0.9",
)
@click.option(
    "--loss", help="name of the model's Keras loss: poisson needs another clip norm"
)
@click.option(
    "--max-batch-size",
    type=int,
    help="B, the largest batch; by default any: batches are clipped in parts",
)
@click.option(
    "--sampling",
    metavar="NAMES",
    default="fixed-order,poisson",
    show_default=True,
    help="how batches may be made, separated by commas",
)
@click.option(
    "--mechanism",
    type=parsing.Mechanism(("auto",)),
    default="auto",
    show_default=True,
    help='as for "plan": "auto", or a name with or without its value',
)
@click.option(
    "--memory-vectors",
    type=int,
    help="vectors of the model's size that the noise may keep between steps; by default "
    f"{choosing.DEFAULT_MEMORY_VECTORS}",
)
@click.option(
    "--trials",
    type=float,
    help="expected number of private trials, whose price is to be computed",
)
@options.output("print JSON", plot=False)
def command(
    examples: int,
    parameters: int,
    epsilon: float,
    delta: float,
    epochs: Fraction,
    optimizer: str,
    loss: str | None,
    max_batch_size: int | None,
    sampling: str,
    mechanism: str,
    memory_vectors: int | None,
    trials: float | None,
    wide: bool,
    as_json: bool,
) -> None:
    """Advises how to train with a budget, before anything private is touched.

    Compares batch sizes and samplings by how far the weights can move at the rate that
    their noise allows, lets "plan" choose the mechanism for the best, and says what to
    expect. With --trials it says what tuning by private trials costs (arXiv:2110.03620).
    """
    with calculation("advise", "comparing batch sizes") as progress:
        if epochs.denominator != 1:
            raise BadArguments(f"--epochs must be a whole number, found {epochs}.")
        from tf_bandmf.planning.advice import advise  # loads dp-accounting

        with parsing.in_options(_OPTIONS):
            advice = advise(
                num_examples=examples,
                num_parameters=parameters,
                epsilon=epsilon,
                delta=delta,
                epochs=int(epochs),
                optimizer=optimizer,
                loss=loss,
                max_batch_size=max_batch_size,
                sampling=[name.strip() for name in sampling.split(",")],
                mechanism=mechanism,
                max_memory_vectors=memory_vectors,
                expected_trials=trials,
                progress=progress,
            )
    if as_json:
        printing.print_json(advice.to_record())
        return
    _print(advice, wide)


def _print(advice: Advice, wide: bool) -> None:
    chosen = advice.setting
    rows = [
        [
            one.sampling,
            one.mechanism,
            str(one.batch_size),
            str(one.num_steps),
            f"{one.noise:.3g}",
            f"{one.learning_rate:.3g}",
            f"{one.progress:.3g}",
            "advised" if one is chosen else "",
        ]
        for one in advice.settings
    ]
    headings = [
        "sampling", "mechanism", "batch size", "steps", "noise", "rate", "progress", "",
    ]  # fmt: skip
    guarantee = advice.plan.guarantee
    title = (
        f"Batch sizes, epsilon {guarantee.epsilon:g}, delta {guarantee.delta:g}, "
        f"{chosen.epochs} epochs: noise in the models, learning rate at clip norm 1, and "
        f"how far the weights can move"
    )
    printing.Table(title, headings, rows, _LESS_IMPORTANT).print(wide)
    printing.Table(
        "Advice", ["what", "value"], [list(pair) for pair in advice.values()]
    ).print(wide)
    for name, text in advice.reasons:
        printing.say(f"{name[0].upper()}{name[1:]}: {text}")
    if advice.tuning is not None:
        printing.say(f"Private trials: {advice.tuning}")
