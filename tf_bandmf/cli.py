"""The command line: `tf-bandmf compare`.

Built on argparse: it is in every Python of both supported stacks and its exit codes are
what users expect (2 for bad arguments), so that a command line costs no dependency.
Messages are one line on standard error; results go to standard output.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any, Callable, NoReturn, TextIO

from tf_bandmf import comparison, mechanisms, workloads
from tf_bandmf._version import __version__
from tf_bandmf.participation import MinSep
from tf_bandmf.sensitivity import Sensitivity
from tf_bandmf.strategies import Strategy

EXIT_BAD_ARGUMENTS = 2
EXIT_INTERRUPTED = 130

_DEFAULT_MECHANISMS = (
    "identity,bsr:4,bisr:4,lambda_cgd,bandinv:4,toeplitz:16,banded:16,blt"
)


class BadArguments(Exception):
    """A message for the user that names the fix; the command ends with exit code 2."""


class _Parser(argparse.ArgumentParser):
    """Reports an error in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_BAD_ARGUMENTS, f"{self.prog}: error: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
      arguments: without the program's name; by default those of the process.

    Returns:
      The exit code: 0, 2 for bad arguments, 130 if interrupted.
    """
    parser = _Parser(
        prog="tf-bandmf",
        description="Differentially private training with correlated noise.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(
        dest="command", metavar="command", required=True, parser_class=_Parser
    )
    _add_compare(commands)
    try:
        options = parser.parse_args(arguments)
    except SystemExit as stop:
        # argparse has printed help, a version or an error.
        return stop.code if isinstance(stop.code, int) else EXIT_BAD_ARGUMENTS
    try:
        return options.run(options)
    except BadArguments as error:
        print(f"tf-bandmf {options.command}: error: {error}", file=sys.stderr)
        return EXIT_BAD_ARGUMENTS
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def _add_compare(commands: Any) -> None:
    parser = commands.add_parser(
        "compare",
        help="error, sensitivity and cost of many mechanisms",
        description="Error, sensitivity and cost of many mechanisms under "
        "min-separation. Without a budget the noise multiplier is 1 per unit of "
        "sensitivity.",
    )
    parser.add_argument(
        "--steps", type=int, required=True, help="n, the number of training steps"
    )
    parser.add_argument(
        "--min-sep",
        type=int,
        required=True,
        help="b, least number of steps from one participation of an example to the next",
    )
    parser.add_argument(
        "--participations",
        type=int,
        help="k, the most participations of one example; by default ceil(n / b)",
    )
    parser.add_argument(
        "--workload",
        default="prefix",
        help='"prefix" (default), "identity" or "sgd:momentum=0.9,decay=0.999"',
    )
    parser.add_argument(
        "--mechanisms",
        default=_DEFAULT_MECHANISMS,
        help="comma-separated name[:value][:normalized] of "
        f"{', '.join(sorted(mechanisms.MECHANISMS))}; the value is the number of bands, "
        'of buffers ("blt") or lambda ("lambda_cgd")',
    )
    parser.add_argument("--epsilon", type=float, help="of the privacy budget")
    parser.add_argument("--delta", type=float, help="of the privacy budget")
    parser.add_argument(
        "--sampling",
        choices=sorted(_CALIBRATORS),
        default="none",
        help="amplification by sampling",
    )
    parser.add_argument(
        "--json", action="store_true", help="print a JSON array, one object a mechanism"
    )
    parser.set_defaults(run=_compare)


def _compare(options: argparse.Namespace) -> int:
    names = [name.strip() for name in options.mechanisms.split(",") if name.strip()]
    try:
        workload = _workload(options.workload, options.steps)
        participation = MinSep(options.min_sep, options.participations)
        participation.validate_num_steps(options.steps)
        options.participations = participation.participations(options.steps)
        for name in names:
            mechanisms.parse(name)
        calibrator = _CALIBRATORS[options.sampling](options)
        table = comparison.compare(
            workload, participation, names, calibrator, _progress(sys.stderr)
        )
    except (ValueError, ImportError) as error:
        raise BadArguments(_one_line(error)) from error
    if options.json:
        print(json.dumps(table.to_records(), indent=2, allow_nan=False))
    else:
        _print_table(table)
    return 0


def _workload(specification: str, num_steps: int) -> workloads.Workload:
    name, _, values = specification.partition(":")
    if name in ("prefix", "identity") and not values:
        build = workloads.prefix_sum if name == "prefix" else workloads.identity
        return build(num_steps)
    if name != "sgd":
        raise BadArguments(
            f"--workload must be prefix, identity or sgd:momentum=0.9,decay=0.999, "
            f"found {specification!r}."
        )
    settings: dict[str, float] = {}
    for setting in filter(None, values.split(",")):
        key, _, value = setting.partition("=")
        try:
            if key not in ("momentum", "decay") or key in settings:
                raise ValueError
            settings[key] = float(value)
        except ValueError:
            raise BadArguments(
                f"--workload sgd takes momentum=NUMBER and decay=NUMBER, found "
                f"{setting!r}."
            ) from None
    return workloads.momentum_sgd(num_steps, **settings)


def _unamplified(options: argparse.Namespace) -> comparison.Calibrator:
    if options.epsilon is None and options.delta is None:
        return comparison.unamplified()
    if options.epsilon is None or options.delta is None:
        raise BadArguments("--epsilon and --delta belong together: give both or none.")
    # dp-accounting takes a second to import: only for those who have a budget.
    from tf_bandmf.accounting import gaussian

    return comparison.unamplified(
        gaussian.calibrate_noise_multiplier(options.epsilon, options.delta)
    )


def _cyclic_poisson(options: argparse.Namespace) -> comparison.Calibrator:
    """Each mechanism's cycle is its number of bands; see `accounting.cyclic_poisson`."""
    epsilon, delta = _budget(options)
    from tf_bandmf.accounting.cyclic_poisson import CyclicPoissonAccountant

    def calibrate(
        strategy: Strategy, sensitivity: Sensitivity
    ) -> comparison.Calibration:
        num_parts = strategy.matrix.bands
        probability = options.participations * num_parts / options.steps
        if probability > 1.0:
            raise ValueError(
                f"{strategy.family} has {num_parts} bands: a cycle of as many steps does "
                f"not fit {options.participations} times into {options.steps}. Use fewer "
                f"bands, or --sampling balls-in-bins, which needs no banded strategy."
            )
        accountant, norm = CyclicPoissonAccountant.of_strategy(
            strategy.matrix, num_parts, probability
        )
        multiplier = accountant.calibrate_noise_multiplier(epsilon, delta)
        return comparison.Calibration(multiplier, "column_norm", multiplier * norm)

    return calibrate


def _balls_in_bins(options: argparse.Namespace) -> comparison.Calibrator:
    """`--min-sep` is the number of bins; see `accounting.balls_in_bins`."""
    epsilon, delta = _budget(options)
    epochs = -(-options.steps // options.min_sep)
    if options.participations != epochs:
        raise BadArguments(
            f"--participations must be {epochs} under balls-in-bins, found "
            f"{options.participations}: --min-sep is the number of bins."
        )
    from tf_bandmf.accounting.balls_in_bins import BallsInBinsAccountant

    def calibrate(
        strategy: Strategy, sensitivity: Sensitivity
    ) -> comparison.Calibration:
        accountant = BallsInBinsAccountant.of_strategy(
            strategy.matrix, options.min_sep, progress=sys.stderr.isatty()
        )
        stddev = accountant.calibrate_noise_stddev(epsilon, delta).noise_stddev
        norm = float(strategy.matrix.column_norms().max())
        return comparison.Calibration(stddev / norm, "column_norm", stddev)

    return calibrate


def _budget(options: argparse.Namespace) -> tuple[float, float]:
    if options.epsilon is None or options.delta is None:
        raise BadArguments(
            f"--sampling {options.sampling} amplifies a budget: give --epsilon and --delta."
        )
    return options.epsilon, options.delta


# Where the accountant of a sampling scheme is plugged in.
_CALIBRATORS: dict[str, Callable[[argparse.Namespace], comparison.Calibrator]] = {
    "none": _unamplified,
    "cyclic-poisson": _cyclic_poisson,
    "balls-in-bins": _balls_in_bins,
}


def _progress(stream: TextIO) -> Callable[[str], None] | None:
    """Names the mechanism at work, where a person may be waiting for it."""
    if not stream.isatty():
        return None
    return lambda name: print(f"{name} ...", file=stream, flush=True)


def _print_table(table: comparison.Comparison) -> None:
    try:
        import rich.console
        import rich.table
    except ImportError:
        print(table)
        return
    headings, body = table.cells()
    rendered = rich.table.Table(title=table.title, title_justify="left")
    for i, heading in enumerate(headings):
        rendered.add_column(
            heading, justify="left" if i == 0 else "right", no_wrap=True
        )
    for line in body:
        rendered.add_row(*line)
    console = rich.console.Console()
    # A file or a pipe has no width: nothing is cut off there.
    if not console.is_terminal:
        console = rich.console.Console(width=160)
    console.print(rendered)


def _one_line(error: BaseException) -> str:
    lines: list[str] = str(error).split("\n")
    return " ".join(line.strip() for line in lines)


if __name__ == "__main__":
    sys.exit(main())
