"""`tf-bandmf completion`: the script by which a shell completes commands and options."""

from __future__ import annotations

import click
from click import shell_completion

from tf_bandmf.cli import parsing

_SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_TF_BANDMF_COMPLETE"


_HELP = """Prints the script by which SHELL (bash, zsh or fish) completes commands.

\b
bash: eval "$(tf-bandmf completion bash)"     in ~/.bashrc
zsh:  eval "$(tf-bandmf completion zsh)"      in ~/.zshrc
fish: tf-bandmf completion fish | source      in ~/.config/fish/config.fish
"""


@click.command("completion", help=_HELP, short_help="a script for shell completion")
@click.argument("shell", type=parsing.Name(_SHELLS))
def command(shell: str) -> None:
    """Prints the script."""
    context = click.get_current_context().find_root()
    make = shell_completion.get_completion_class(shell)
    assert make is not None
    # What click would read from the environment; bash is not asked for its version.
    found = make(context.command, {}, context.info_name or "tf-bandmf", _VARIABLE)
    print(found.source_template % found.source_vars())
