"""Options that commands share: the same words and the same meaning everywhere."""

from __future__ import annotations

from typing import Any, Callable

import click

from tf_bandmf.cli import parsing

_Command = Callable[..., Any]
PATH = click.Path(dir_okay=False)


class Renamed(click.Option):
    """An option that is still known by an older name, which help does not show."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """The record without the older names."""
        names, self.opts = self.opts, self.opts[:1]
        try:
            return super().get_help_record(ctx)
        finally:
            self.opts = names


def data_use(command: _Command) -> _Command:
    """How the data are used; `data_use.DataUse` reads these options."""
    return _all(
        command,
        click.option("--examples", type=int, help="m, size of the training set"),
        click.option("--batch-size", type=int, help="B, examples per step"),
        click.option(
            "--epochs",
            type=parsing.Ratio(),
            help="k, passes over the training set; with --steps how often an example is "
            "expected to take part",
        ),
        click.option(
            "--steps",
            type=int,
            help="n, training steps, instead of --examples; with --min-separation, or "
            "--epochs",
        ),
        click.option(
            "--min-separation",
            "--min-sep",
            "min_separation",
            cls=Renamed,
            type=int,
            help="b, least number of steps from one participation of an example to the "
            "next; under balls-in-bins the number of bins",
        ),
        click.option(
            "--max-participations",
            "--participations",
            "max_participations",
            cls=Renamed,
            type=int,
            help="k, the most participations of one example; by default ceil(n / b); "
            "under sampling by rates the expected number",
        ),
    )


def budget(required: bool) -> Callable[[_Command], _Command]:
    """Epsilon and delta."""

    def add(command: _Command) -> _Command:
        return _all(
            command,
            click.option(
                "--epsilon",
                type=float,
                required=required,
                help="of the privacy budget",
            ),
            click.option(
                "--delta",
                type=float,
                required=required,
                help="of the privacy budget; below 1 / m",
            ),
        )

    return add


def workload(command: _Command) -> _Command:
    """What the models sum; `parsing.workload` reads it."""
    return click.option(
        "--workload",
        default="prefix",
        show_default=True,
        help='"prefix", "identity" or "sgd:momentum=0.9,decay=0.999"',
    )(command)


def output(json_help: str, plot: bool = True) -> Callable[[_Command], _Command]:
    """`--wide` and `--json`, and `--plot` of commands that have a picture."""
    picture = click.option(
        "--plot",
        type=PATH,
        metavar="FILE",
        help="save a picture (.png, .pdf, .svg); needs tf-bandmf[plot]",
    )

    def add(command: _Command) -> _Command:
        return _all(
            command,
            click.option(
                "--wide", is_flag=True, help="all columns, however wide the terminal is"
            ),
            *([picture] if plot else []),
            click.option("--json", "as_json", is_flag=True, help=json_help),
        )

    return add


def _all(command: _Command, *decorators: Callable[[_Command], _Command]) -> _Command:
    for decorate in reversed(decorators):
        command = decorate(command)
    return command
