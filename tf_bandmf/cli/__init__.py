"""The command line: advise, compare, bands, plan, show and budget, a file each.

Built on click, which brings suggestions for typos and shell completion and nothing else.
Messages are one line on standard error; results go to standard output.

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

import click

from tf_bandmf._version import __version__
from tf_bandmf.cli import advise, bands, budget, compare, completion, plan, show
from tf_bandmf.cli.help import Context
from tf_bandmf.cli.native_logs import without_native_logs
from tf_bandmf.cli.parsing import BadArguments, one_line

PROGRAM = "tf-bandmf"
EXIT_FAILED = 1
EXIT_BAD_ARGUMENTS = 2
EXIT_INTERRUPTED = 130


@click.group(
    PROGRAM,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
    },
    no_args_is_help=False,
    epilog=f"Completion of commands and options: {PROGRAM} completion --help.",
)
@click.version_option(__version__, message="%(version)s")
def _group() -> None:
    """Differentially private training with correlated noise."""


_group.context_class = Context
for _module in (advise, compare, bands, plan, show, budget, completion):
    _module.command.context_class = Context
    _group.add_command(_module.command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
      arguments: without the program's name; by default those of the process.

    Returns:
      The exit code; see above.
    """
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        with without_native_logs():
            _group.main(given, prog_name=PROGRAM, standalone_mode=False)
    except SystemExit as stop:
        # click has answered a shell that asks for completions.
        return stop.code if isinstance(stop.code, int) else EXIT_BAD_ARGUMENTS
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        path = PROGRAM if context is None else context.command_path
        return _report(path, error.format_message(), EXIT_BAD_ARGUMENTS)
    except BadArguments as error:
        return _report(_named(given), error, EXIT_BAD_ARGUMENTS)
    except (click.Abort, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader, `head` for instance, has seen enough.
        sys.stderr.close()
        return EXIT_FAILED
    except (ArithmeticError, OSError, MemoryError, RuntimeError) as error:
        return _report(_named(given), error, EXIT_FAILED)
    return 0


def _named(arguments: Sequence[str]) -> str:
    """The program with its command."""
    known = [name for name in arguments if name in _group.commands]
    return f"{PROGRAM} {known[0]}" if known else PROGRAM


def _report(path: str, error: BaseException | str, code: int) -> int:
    text = one_line(error) or type(error).__name__
    print(f"{path}: error: {text}", file=sys.stderr)
    return code
