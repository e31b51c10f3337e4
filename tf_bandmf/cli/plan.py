"""`tf-bandmf plan`: from a budget and the use of the data to a plan."""

from __future__ import annotations

import argparse
import sys
import warnings
from typing import Any

from tf_bandmf.cli import parsing, printing
from tf_bandmf.cli.parsing import BadArguments
from tf_bandmf.participation import scheme
from tf_bandmf.planning import choosing

_FLOAT_BYTES = 4


def add_to(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "plan",
        help="choose a mechanism for a budget, and plan the run",
        description="Compares mechanisms for a budget, says which one it chose and why, "
        "and prints the privacy statement of a run with it.",
    )
    parser.add_argument("--epsilon", type=float, required=True, help="of the budget")
    parser.add_argument("--delta", type=float, required=True, help="of the budget")
    parser.add_argument(
        "--examples", type=int, required=True, help="size of the training set"
    )
    parser.add_argument(
        "--batch-size", type=int, required=True, help="examples per step"
    )
    parser.add_argument(
        "--epochs", type=int, required=True, help="passes over the training set"
    )
    parser.add_argument(
        "--mechanism",
        default="auto",
        help='"auto" (default), or name[:value][:normalized] as in compare; a value that '
        "is not given is chosen",
    )
    parser.add_argument(
        "--sampling",
        choices=scheme.samplings(),
        default=scheme.DEFAULT_SAMPLING,
        help="how batches are made; only the sampler named here may be used",
    )
    parser.add_argument("--momentum", type=float, default=0.0, help="of the optimizer")
    parser.add_argument(
        "--decay", type=float, default=1.0, help="factor of the weights at each step"
    )
    parser.add_argument(
        "--clip",
        type=float,
        default=1.0,
        help="l2 norm clip of each example's gradient",
    )
    parser.add_argument(
        "--confidence",
        type=float,
        help="of accounting by simulation (balls-in-bins): a bound that holds with this "
        "probability instead of an estimate",
    )
    memory = parser.add_mutually_exclusive_group()
    memory.add_argument(
        "--memory-vectors",
        type=int,
        default=choosing.DEFAULT_MEMORY_VECTORS,
        help="vectors of the model's size that the noise may keep between steps; by "
        f"default {choosing.DEFAULT_MEMORY_VECTORS}",
    )
    memory.add_argument(
        "--max-memory",
        type=parsing.size,
        help='the same as a size, such as "2GB"; needs --parameters',
    )
    parser.add_argument(
        "--parameters",
        type=int,
        help="number of trainable parameters, with --max-memory",
    )
    parser.add_argument(
        "--out", help="file for the plan (JSON; arrays beside it, .npz)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    from tf_bandmf.planning import build  # loads dp-accounting

    with parsing.refusals(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.filterwarnings("always", "delta = ", UserWarning)
        plan = build.plan(
            options.mechanism,
            epsilon=options.epsilon,
            delta=options.delta,
            num_examples=options.examples,
            batch_size=options.batch_size,
            epochs=options.epochs,
            sampling=options.sampling,
            momentum=options.momentum,
            decay=options.decay,
            l2_norm_clip=options.clip,
            max_memory_vectors=_memory_vectors(options),
            confidence=options.confidence,
            progress=printing.progress(),
        )
    for warning in caught:
        print(f"tf-bandmf plan: warning: {warning.message}", file=sys.stderr)
    if options.out is not None:
        plan.save(options.out)
    if options.json:
        printing.print_json(printing.plan_record(plan))
        return
    printing.print_choice(plan)
    print(plan.statement())
    if options.out is not None:
        print(f"\nSaved {options.out}.")


def _memory_vectors(options: argparse.Namespace) -> int | None:
    if options.max_memory is None:
        return options.memory_vectors
    if options.parameters is None or options.parameters < 1:
        raise BadArguments(
            "--max-memory needs --parameters, the number of trainable parameters, >= 1."
        )
    return int(options.max_memory // (_FLOAT_BYTES * options.parameters))
