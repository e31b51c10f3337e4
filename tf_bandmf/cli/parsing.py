"""Arguments that several commands share, and errors about them."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from fractions import Fraction
from typing import NoReturn

from tf_bandmf import workloads


class BadArguments(Exception):
    """A message for the user that names the fix; the command ends with exit code 2."""


class Parser(argparse.ArgumentParser):
    """Reports an error in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message}\n")


@contextlib.contextmanager
def refusals() -> Iterator[None]:
    """Turns the library's refusals of its arguments into `BadArguments`."""
    try:
        yield
    except (ValueError, TypeError, ImportError) as error:
        raise BadArguments(one_line(error)) from error


def one_line(error: BaseException) -> str:
    """The message without line breaks."""
    lines: list[str] = str(error).split("\n")
    return " ".join(line.strip() for line in lines)


def workload(specification: str, num_steps: int) -> workloads.Workload:
    """The workload of "prefix", "identity" or "sgd:momentum=0.9,decay=0.999".

    Raises:
      BadArguments: for anything else.
    """
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


def ratio(text: str) -> Fraction:
    """A positive number, kept exact: "8", "2.5" or "5/2"; a type for argparse.

    Raises:
      ArgumentTypeError: for anything else.
    """
    try:
        value = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if value <= 0:
        raise argparse.ArgumentTypeError(f"must be > 0, found {text}")
    return value


def size(text: str) -> int:
    """Bytes of "800MB" or "2GB" (powers of 1000); a type for argparse.

    Raises:
      ArgumentTypeError: for anything else.
    """
    units = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
    digits = text.rstrip("BKMGTbkmgt ")
    try:
        value = float(digits) * units[text[len(digits) :].strip().upper()]
        if not 0.0 <= value < float("inf"):
            raise ValueError
    except (ValueError, KeyError):
        raise argparse.ArgumentTypeError(
            f'{text!r} is not a size such as "800MB" or "2GB"'
        ) from None
    return int(value)


def add_workload(parser: argparse.ArgumentParser) -> None:
    """Adds `--workload`; see `workload`."""
    parser.add_argument(
        "--workload",
        default="prefix",
        help='"prefix" (default), "identity" or "sgd:momentum=0.9,decay=0.999"',
    )
