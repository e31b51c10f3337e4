"""The command line. Each command calls one function with its options as arguments.

Results go to standard output. Error messages go to standard error, in one line.

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | the computation failed, or a file could not be written |
| 2 | invalid arguments or an invalid input file; the message says what to change |
| 130 | interrupted |
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

import click

from tf_bandmf._version import __version__
from tf_bandmf.cli import budget, commands
from tf_bandmf.cli.native_logs import without_native_logs

PROGRAM = "tf-bandmf"
_GROUP = click.Group(
    PROGRAM,
    {str(each.name): each for each in (*commands.COMMANDS, budget.command)},
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Differentially private training with correlated noise.",
)
click.version_option(__version__, message="%(version)s")(_GROUP)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
      arguments: command-line arguments without the program's name; by default, the
        arguments of this process.

    Returns:
      The exit code; see the module's docstring.
    """
    logger = logging.getLogger("tf_bandmf")
    logger.setLevel(logging.INFO)
    logger.addFilter(commands.tell)
    try:
        with without_native_logs():
            _GROUP.main(arguments, prog_name=PROGRAM, standalone_mode=False)
    except SystemExit as stop:
        # click raises SystemExit after it has printed completions for a shell.
        return stop.code if isinstance(stop.code, int) else 2
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return 2
    except click.ClickException as error:
        return _report(error.format_message(), 2)
    except (click.Abort, KeyboardInterrupt):
        return _report("interrupted", 130)
    except BrokenPipeError:
        # The program that reads the output, for example `head`, has closed the pipe.
        sys.stderr.close()
        return 1
    except (ArithmeticError, OSError, MemoryError, RuntimeError) as error:
        return _report(str(error) or type(error).__name__, 1)
    return 0


def _report(text: str, code: int) -> int:
    print(f"{PROGRAM}: error: {' '.join(text.split())}", file=sys.stderr)
    return code
