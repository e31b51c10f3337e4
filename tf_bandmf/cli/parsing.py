"""Types of arguments that several commands share, and errors about them."""

from __future__ import annotations

import contextlib
import difflib
import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

import click
from click.shell_completion import CompletionItem

from tf_bandmf import workloads
from tf_bandmf.strategies import registry


class BadArguments(Exception):
    """A message for the user that names the fix; the command ends with exit code 2."""


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Turns the library's refusals of its arguments into `BadArguments`."""
    try:
        yield
    except (ValueError, TypeError, ImportError) as error:
        raise BadArguments(one_line(error)) from error


@contextlib.contextmanager
def in_options(options: Mapping[str, str]) -> Iterator[None]:
    """Lets the library's refusals speak of the command line's options.

    Args:
      options: the option (without "--") for each name of an argument. A name that is also
        a word is replaced only where it is said what it must be or what was found.
    """
    words = "|".join(name for name in options if "_" not in name)
    names = "|".join(name for name in options if "_" in name)
    pattern = re.compile(
        rf"\b(?:({names})\b|({words})(?= =| must\b| is missing|, or ))"
    )
    try:
        yield
    except (ValueError, TypeError) as error:
        text = pattern.sub(lambda found: f"--{options[found[0]]}", str(error))
        raise BadArguments(one_line(text)) from error


def one_line(error: BaseException | str) -> str:
    """The message without line breaks."""
    return " ".join(line.strip() for line in str(error).split("\n"))


def check_folder(option: str, path: str | None) -> None:
    """Raises BadArguments, before anything is computed, if a file could not be written."""
    if path is None:
        return
    folder = pathlib.Path(path).resolve().parent
    if not folder.is_dir():
        raise BadArguments(
            f"{option} {path}: the folder does not exist. Make {folder}."
        )
    if not os.access(folder, os.W_OK):
        raise BadArguments(f"{option} {path}: the folder cannot be written to.")


def did_you_mean(found: str, known: Sequence[str]) -> str:
    """A sentence with the name that is closest to a typo, or nothing."""
    close = difflib.get_close_matches(found, known, n=1)
    return f" Did you mean {close[0]}?" if close else ""


def workload(specification: str, num_steps: int) -> workloads.Workload:
    """The workload of "prefix", "identity" or "sgd:momentum=0.9,decay=0.999".

    Raises:
      BadArguments: for anything else.
    """
    try:
        return workloads.parse(specification, num_steps)
    except ValueError as error:
        message = str(error)
        if message.startswith("workload"):  # the option's name
            message = f"--{message}"
        raise BadArguments(message) from error


class Ratio(click.ParamType):
    """A number, kept exact: "8", "2.5" or "5/2"."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Fraction:
        """The number, as a fraction."""
        try:
            return Fraction(value)
        except (ValueError, ZeroDivisionError):
            self.fail(f"{value!r} is not a number", param, ctx)


class Size(click.ParamType):
    """Bytes of "800MB" or "2GB", powers of 1000."""

    name = "size"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """The number of bytes."""
        if isinstance(value, int):
            return value
        units = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
        digits = value.rstrip("BKMGTbkmgt ")
        try:
            found = float(digits) * units[value[len(digits) :].strip().upper()]
            if not 0.0 <= found < float("inf"):
                raise ValueError
        except (ValueError, KeyError):
            self.fail(f'{value!r} is not a size such as "800MB" or "2GB"', param, ctx)
        return int(found)


class Name(click.Choice):  # type: ignore[type-arg]
    """One of some names; a typo gets a suggestion."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Any:
        """The name."""
        names = [str(choice) for choice in self.choices]
        if value not in names:
            self.fail(
                f"must be one of {', '.join(names)}, found {value!r}."
                + did_you_mean(str(value), names),
                param,
                ctx,
            )
        return value


class Mechanism(click.ParamType):
    """name[:value][:normalized], completed by name; the library checks it."""

    name = "name[:value]"

    def __init__(self, others: tuple[str, ...] = (), several: bool = False) -> None:
        self._others, self._several = others, several

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Names of mechanisms; after a comma those of the next."""
        before, comma, begun = "", "", incomplete
        if self._several:
            before, comma, begun = incomplete.rpartition(",")
        return [
            CompletionItem(f"{before}{comma}{name}")
            for name in [*self._others, *registry.names()]
            if name.startswith(begun)
        ]
