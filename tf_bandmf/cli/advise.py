"""`tf-bandmf advise`: batch size, clip norm and learning rate before the first run."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import click

from tf_bandmf.cli import options, parsing, printing
from tf_bandmf.cli.parsing import BadArguments
from tf_bandmf.cli.progress import calculation
from tf_bandmf.planning import choosing

if TYPE_CHECKING:
    from tf_bandmf.planning.advice import Advice
    from tf_bandmf.planning.gradient_sample import GradientSample
    from tf_bandmf.planning.run_settings import RunSetting

# The library's names of what these options give; the others have the option's own.
_OPTIONS = {
    "num_examples": "examples",
    "num_parameters": "parameters",
    "max_examples_seen": "examples-seen",
    "max_batch_size": "max-batch-size",
    "max_memory_vectors": "memory-vectors",
    "fan_in": "fan-in",
    "public_gradients": "gradients",
    "expected_trials": "trials",
    **{name: name for name in ("epochs", "sampling", "momentum", "epsilon", "delta")},
}
_LESS_IMPORTANT = ("noise-batch ratio", "RMSE", "epochs", "steps")


@click.command("advise", short_help="batch size, clip norm and learning rate to use")
@click.option("--examples", type=int, required=True, help="m, size of the training set")
@click.option(
    "--parameters",
    type=int,
    help="d, number of trainable parameters; not with --gradients",
)
@options.budget(required=True)
@click.option(
    "--epochs",
    type=parsing.Ratio(),
    help="k, the most passes over the training set that the compute allows",
)
@click.option(
    "--examples-seen",
    type=float,
    help="instead of --epochs: the most gradients of examples that can be computed",
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
    "--momentum", type=float, default=0.0, show_default=True, help="of the optimizer"
)
@click.option(
    "--fan-in",
    type=float,
    help="inputs of a unit, added up over the layers; by default a guess from "
    "--parameters",
)
@click.option(
    "--gradients",
    type=options.PATH,
    metavar="FILE",
    help="a NumPy array (.npy) [m, d] of gradients of examples that need no protection, "
    "public or made up",
)
@click.option(
    "--trials",
    type=float,
    help="expected number of private trials, whose price is to be computed",
)
@options.output("print JSON", plot=False)
def command(
    examples: int,
    parameters: int | None,
    epsilon: float,
    delta: float,
    epochs: Fraction | None,
    examples_seen: float | None,
    max_batch_size: int | None,
    sampling: str,
    mechanism: str,
    memory_vectors: int | None,
    momentum: float,
    fan_in: float | None,
    gradients: str | None,
    trials: float | None,
    wide: bool,
    as_json: bool,
) -> None:
    """Advises how to train with a budget, before anything private is touched.

    Compares batch sizes and samplings by the noise that the models would have, lets
    "plan" choose the mechanism for the best, and derives clip norm and learning rate from
    it. With --trials it says what tuning by private trials costs (arXiv:2110.03620).
    """
    with calculation("advise", "comparing batch sizes") as progress:
        if epochs is not None and epochs.denominator != 1:
            raise BadArguments(f"--epochs must be a whole number, found {epochs}.")
        from tf_bandmf.planning.advice import advise  # loads dp-accounting

        with parsing.in_options(_OPTIONS):
            advice = advise(
                num_examples=examples,
                num_parameters=parameters,
                epsilon=epsilon,
                delta=delta,
                epochs=None if epochs is None else int(epochs),
                max_examples_seen=examples_seen,
                max_batch_size=max_batch_size,
                sampling=[name.strip() for name in sampling.split(",")],
                mechanism=mechanism,
                max_memory_vectors=memory_vectors,
                momentum=momentum,
                fan_in=fan_in,
                public_gradients=None if gradients is None else _sample(gradients),
                expected_trials=trials,
                progress=progress,
            )
    if as_json:
        printing.print_json(advice.to_record())
        return
    _print(advice, wide)


def _sample(path: str) -> GradientSample:
    """The gradients in a file.

    Raises:
      BadArguments: if the file cannot be read.
    """
    import numpy as np

    from tf_bandmf.planning.gradient_sample import GradientSample

    try:
        array: Any = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise BadArguments(
            f"--gradients {path} is no NumPy array file (.npy): "
            f"{parsing.one_line(error)}"
        ) from error
    if not isinstance(array, np.ndarray):
        raise BadArguments(f"--gradients {path} has several arrays: save one as .npy.")
    return GradientSample.of_gradients(array)


def _print(advice: Advice, wide: bool) -> None:
    rows = [
        [
            one.sampling,
            one.mechanism,
            str(one.batch_size),
            str(one.num_steps),
            f"{one.rmse:.4g}",
            f"{one.noise_batch_ratio:.3g}",
            f"{one.noise_to_signal:.3g}",
            _remark(one, advice),
        ]
        for one in advice.settings
    ]
    headings = [
        "sampling", "mechanism", "batch size", "steps", "RMSE", "noise-batch ratio",
        "noise to signal", "",
    ]  # fmt: skip
    guarantee = advice.plan.guarantee
    title = (
        f"Batch sizes and the noise of their models, epsilon {guarantee.epsilon:g}, "
        f"delta {guarantee.delta:g}, {advice.setting.epochs} epochs; noise to signal if "
        f"all gradients point the same way"
    )
    printing.Table(title, headings, rows, _LESS_IMPORTANT).print(wide)
    printing.Table(
        "Advice", ["what", "value"], [list(pair) for pair in advice.values()]
    ).print(wide)
    for name, text in advice.reasons:
        printing.say(f"{name[0].upper()}{name[1:]}: {text}")
    if advice.tuning is not None:
        printing.say(f"Private trials: {advice.tuning}")


def _remark(one: RunSetting, advice: Advice) -> str:
    chosen = advice.setting
    if (one.sampling, one.batch_size) == (chosen.sampling, chosen.batch_size):
        return "advised"
    return "few steps" if one.has_few_steps else ""
