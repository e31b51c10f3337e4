"""`tf-bandmf show`: what a saved plan promises and needs."""

from __future__ import annotations

import argparse
import zipfile
from typing import TYPE_CHECKING, Any

from tf_bandmf.cli import printing
from tf_bandmf.cli.parsing import BadArguments, one_line
from tf_bandmf.planning.calibration import accountant_for

if TYPE_CHECKING:
    from tf_bandmf.planning.plan import Plan

_DELTAS = tuple(10.0**-i for i in range(3, 11))


def add_to(commands: Any) -> None:
    """Adds the command to the subparsers."""
    parser = commands.add_parser(
        "show",
        help="statement, epsilon(delta) and costs of a saved plan",
        description="Reads a plan, checks it, and prints its privacy statement, epsilon "
        "at other deltas, and what its noise needs.",
    )
    parser.add_argument("plan", help="a file that `tf-bandmf plan --out` wrote")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> None:
    plan = _load(options.plan)
    curve = _curve(plan)
    if options.json:
        printing.print_json(
            {
                **printing.plan_record(plan),
                "curve": [{"delta": d, "epsilon": e} for d, e in curve],
            }
        )
        return
    print(plan.statement())
    print()
    printing.print_choice(plan)
    body = [[f"{delta:.0e}", f"{epsilon:.4f}"] for delta, epsilon in curve]
    printing.print_table("Privacy of the same run", ["delta", "epsilon"], body)
    print(
        f"The noise keeps {plan.strategy.memory_vectors} vectors of the model's size and "
        f"draws {plan.strategy.regenerations_per_step} again at each step."
    )


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
        # Anything may be in a file.
        raise BadArguments(
            f"{path} is damaged or is not a plan ({type(error).__name__}: "
            f"{one_line(error)}). Make the plan again."
        ) from error


def _curve(plan: Plan) -> list[tuple[float, float]]:
    """(delta, epsilon) of the plan's noise; without those deltas that say nothing."""
    accountant = accountant_for(plan.strategy, plan.participation, plan.confidence)
    noise = plan.noise_stddev / plan.l2_norm_clip
    curve = []
    for delta in sorted({*_DELTAS, plan.delta}, reverse=True):
        if delta == plan.delta:
            curve.append((delta, plan.epsilon))
            continue
        try:
            curve.append((delta, accountant.guarantee(noise, delta).epsilon))
        except (ValueError, ArithmeticError):
            continue
    return curve
