"""`tf-bandmf plan`: from a budget and the use of the data to a plan."""

from __future__ import annotations

from typing import Any

import click

from tf_bandmf.cli import data_use, options, parsing, pictures, printing
from tf_bandmf.cli.parsing import BadArguments
from tf_bandmf.cli.progress import calculation
from tf_bandmf.participation import scheme
from tf_bandmf.planning import choosing

_FLOAT_BYTES = 4


@click.command("plan", short_help="choose a mechanism for a budget, and plan the run")
@options.data_use
@options.budget(required=True)
@click.option(
    "--mechanism",
    type=parsing.Mechanism(("auto",)),
    default="auto",
    show_default=True,
    help='"auto", or name[:value][:normalized] as in compare; a value that is not given '
    "is chosen",
)
@click.option(
    "--sampling",
    type=parsing.Name(scheme.samplings()),
    metavar="NAME",
    help=f"how batches are made: one of {', '.join(scheme.samplings())}. By default "
    f"{scheme.DEFAULT_SAMPLING}; with --steps the caller makes them",
)
@click.option(
    "--momentum",
    type=float,
    default=0.0,
    show_default=True,
    help="of the optimizer",
)
@click.option(
    "--decay",
    type=float,
    default=1.0,
    show_default=True,
    help="factor of the weights at each step",
)
@click.option(
    "--clip",
    type=float,
    default=1.0,
    show_default=True,
    help="l2 norm clip of each example's gradient",
)
@click.option(
    "--confidence",
    type=float,
    help="of accounting by simulation (balls-in-bins): a bound that holds with this "
    "probability instead of an estimate",
)
@click.option(
    "--memory-vectors",
    type=int,
    help="vectors of the model's size that the noise may keep between steps; by default "
    f"{choosing.DEFAULT_MEMORY_VECTORS}",
)
@click.option(
    "--max-memory",
    type=parsing.Size(),
    help='the same as a size, such as "2GB"; needs --parameters',
)
@click.option(
    "--parameters",
    type=int,
    help="number of trainable parameters, with --max-memory",
)
@click.option(
    "--counts",
    type=float,
    default=0.0,
    help="share of each step's noise budget for private counts of bad, clipped and zero "
    "examples, such as 0.01",
)
@click.option(
    "--metrics",
    type=float,
    default=0.0,
    help="share of the budget for private evaluations, such as 0.1; with --evaluations",
)
@click.option(
    "--evaluations",
    type=int,
    default=0,
    help="how many private evaluations there may be",
)
@click.option(
    "--out",
    type=options.PATH,
    metavar="FILE",
    help="file for the plan (JSON; arrays beside it, .npz)",
)
@options.output("print JSON")
def command(
    epsilon: float,
    delta: float,
    mechanism: str,
    sampling: str | None,
    momentum: float,
    decay: float,
    clip: float,
    confidence: float | None,
    memory_vectors: int | None,
    max_memory: int | None,
    parameters: int | None,
    counts: float,
    metrics: float,
    evaluations: int,
    out: str | None,
    wide: bool,
    plot: str | None,
    as_json: bool,
    **data: Any,
) -> None:
    """Compares mechanisms for a budget, chooses one, and plans the run with it.

    Says why it chose, and prints the privacy statement of the run. Say how the data are
    used by --examples, --batch-size and --epochs, or by --steps, --min-separation and
    --max-participations, which you enforce yourself.
    """
    pictures.check(plot)
    parsing.check_folder("--out", out)
    vectors = _memory_vectors(memory_vectors, max_memory, parameters)
    with calculation("plan", "planning") as progress:
        use = data_use.of_options(**data)
        from tf_bandmf.planning import build  # loads dp-accounting

        plan = build.plan(
            mechanism,
            epsilon=epsilon,
            delta=delta,
            **_use(use, sampling),
            workload=f"sgd:momentum={momentum!r},decay={decay!r}",
            l2_norm_clip=clip,
            max_memory_vectors=vectors,
            confidence=confidence,
            progress=progress,
        )
        if counts or metrics or evaluations:
            progress("reservation")
            plan = plan.reserve(counts=counts, metrics=metrics, evaluations=evaluations)
        if plot is not None:
            progress("picture")
            pictures.save_plan(plan, plot)
    if out is not None:
        plan.save(out)
    if as_json:
        printing.print_json(printing.plan_record(plan))
        pictures.say_saved(plot, as_json)
        return
    printing.print_choice(plan, wide)
    printing.print_statement(plan.statement())
    if out is not None:
        print(f"\nSaved {out}.")
    pictures.say_saved(plot, as_json)


def _use(use: data_use.Data | data_use.Rates, sampling: str | None) -> dict[str, Any]:
    """The arguments of `plan` for a use of the data."""
    if isinstance(use, data_use.Data):
        return {
            "num_examples": use.num_examples,
            "batch_size": use.batch_size,
            "epochs": use.epochs,
            "sampling": sampling or scheme.DEFAULT_SAMPLING,
        }
    if sampling is not None:
        raise BadArguments(
            f"--sampling {sampling} needs --examples, --batch-size and --epochs: with "
            f"--steps the caller makes the batches."
        )
    return {
        "num_steps": use.num_steps,
        "participation": use.min_sep(),
        "batch_size": use.batch_size,
    }


def _memory_vectors(
    vectors: int | None, max_memory: int | None, parameters: int | None
) -> int:
    if max_memory is None:
        return choosing.DEFAULT_MEMORY_VECTORS if vectors is None else vectors
    if vectors is not None:
        raise BadArguments("Give either --memory-vectors or --max-memory.")
    if parameters is None or parameters < 1:
        raise BadArguments(
            "--max-memory needs --parameters, the number of trainable parameters, >= 1."
        )
    return int(max_memory // (_FLOAT_BYTES * parameters))
