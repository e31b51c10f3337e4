"""The command line: `tf-bandmf compare | bands | plan | show`, one file per command.

Built on argparse: it is in every Python of both supported stacks and its exit codes are
what users expect, so that a command line costs no dependency. Messages are one line on
standard error; results go to standard output.

| exit code | |
|---|---|
| 0 | done |
| 1 | the computation failed, or a file could not be written |
| 2 | bad arguments or a bad file: the message says what to change |
| 130 | interrupted |
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tf_bandmf._version import __version__
from tf_bandmf.cli import bands, compare, plan, show
from tf_bandmf.cli.parsing import BadArguments, Parser, one_line

EXIT_FAILED = 1
EXIT_BAD_ARGUMENTS = 2
EXIT_INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
      arguments: without the program's name; by default those of the process.

    Returns:
      The exit code; see above.
    """
    parser = Parser(
        prog="tf-bandmf",
        description="Differentially private training with correlated noise.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    commands = parser.add_subparsers(
        dest="command", metavar="command", required=True, parser_class=Parser
    )
    for command in (compare, bands, plan, show):
        command.add_to(commands)
    try:
        options = parser.parse_args(arguments)
    except SystemExit as stop:
        # argparse has printed help, a version or an error.
        return stop.code if isinstance(stop.code, int) else EXIT_BAD_ARGUMENTS
    try:
        options.run(options)
    except BadArguments as error:
        return _report(options.command, error, EXIT_BAD_ARGUMENTS)
    except (ArithmeticError, OSError, MemoryError, RuntimeError) as error:
        return _report(options.command, error, EXIT_FAILED)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    return 0


def _report(command: str, error: BaseException, code: int) -> int:
    text = one_line(error) or type(error).__name__
    print(f"tf-bandmf {command}: error: {text}", file=sys.stderr)
    return code
