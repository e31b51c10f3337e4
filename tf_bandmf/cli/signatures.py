"""Turns Python functions into commands, and their arguments into options.

The name, type and default value of an option come from a function's signature, and the
help text comes from the function's docstring. Both are parsed from the source code, so
showing help or completions does not import the library.
"""

from __future__ import annotations

import ast
import inspect
import json
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import click

from tf_bandmf.ledger.errors import DamagedLedgerError, LedgerError

_KINDS = {"str": str, "Any": str, "float": float, "int": int, "bool": bool}
_JSON = click.Option(["--json", "as_json"], is_flag=True, help="as JSON")
_REFUSED = (ValueError, TypeError, ImportError, FileNotFoundError)


class Several(click.ParamType):
    """The type of an option whose value is a comma-separated list of strings."""

    name = "a,b,..."

    def convert(self, value: Any, param: Any, ctx: Any) -> list[str]:
        """Splits the option's value into a list of strings."""
        return [part.strip() for part in value.split(",") if part.strip()]


def command(
    name: str,
    function: Callable[..., Any],
    *sources: str,
    more: tuple[click.Parameter, ...] = (),
    show: Callable[[Any], str | None] = str,
    record: Callable[[Any], Any] | None = None,
) -> click.Command:
    """Returns a command that calls a function and prints the result.

    Args:
      name: name of the command.
      function: function to call with the command's options as keyword arguments.
      *sources: names of functions whose signatures and docstrings define the options,
        such as "ledger.book:Ledger.fits". The help text of the command is the first
        paragraph of the first function's docstring.
      more: additional options.
      show: function that converts the result to text, or returns None to print nothing.
      record: function that converts the result to values for JSON. If it is None, the
        command has no `--json` option.
    """
    nodes = [_source(source) for source in sources]
    options = [option for node in nodes for option in _options(node)] + [*more]
    if record is not None:
        options.append(_JSON)

    def call(as_json: bool = False, **given: Any) -> None:
        given = {k: v for k, v in given.items() if v is not None and v is not False}
        try:
            made = function(**given)
            plain = record(made) if as_json and record is not None else None
            text = show(made) if plain is None else json.dumps(plain, indent=2)
        except DamagedLedgerError:
            raise
        except (*_REFUSED, LedgerError) as error:
            # In error messages, replace the names of arguments with those of options.
            words = {str(option.name): option.opts[0] for option in options}
            named = lambda word: words.get(word[0], word[0])  # noqa: E731
            raise click.UsageError(re.sub(r"\b\w+_\w+\b", named, str(error))) from error
        if text is not None:
            click.echo(text)

    summary = _text(nodes[0]).split("\n\n")[0].replace("`", "")
    return click.Command(name, params=options, callback=call, help=summary)


def _source(where: str) -> Any:
    module, _, path = where.partition(":")
    folder = pathlib.Path(__file__).resolve().parents[1]
    file = folder.joinpath(*module.split(".")).with_suffix(".py")
    node: Any = ast.parse(file.read_text("utf-8"))
    for part in path.split("."):
        node = next(x for x in node.body if getattr(x, "name", None) == part)
    return node


def _text(node: Any) -> str:
    return inspect.cleandoc(ast.get_docstring(node) or "")


def _options(node: Any) -> Iterator[click.Parameter]:
    """Yields a command-line parameter for each function argument with a simple type.

    Positional arguments without a default remain positional; all others become options.
    """
    said = re.findall(r"^  \*?(\w+(?:, \w+)*): (.*(?:\n    .*)*)", _text(node), re.M)
    help_of = {name: text for names, text in said for name in names.split(", ")}
    given = node.args
    required: list[Any] = [None] * (len(given.args) - len(given.defaults))
    arguments = [*given.args, *given.kwonlyargs]
    defaults = [*required, *given.defaults, *given.kw_defaults]
    for each, default in zip(arguments, defaults):
        annotation = ast.unparse(each.annotation) if each.annotation else ""
        words = re.findall(r"\w+", annotation)
        kind: Any = next((_KINDS[word] for word in words if word in _KINDS), None)
        if kind is None or "Callable" in words:
            continue
        kind = Several() if "Sequence" in words else kind
        if default is None and each in given.args:
            yield click.Argument([each.arg], type=kind)
            continue
        value = getattr(default, "value", None)
        shown = "" if value in (None, False) else f" [default: {value!s}]"
        yield click.Option(
            [f"--{each.arg.rstrip('_').replace('_', '-')}", each.arg],
            **({"is_flag": True} if kind is bool else {"type": kind}),
            required=default is None,
            help=" ".join(help_of.get(each.arg, "").split()).replace("`", "") + shown,
        )
    if given.vararg is not None:
        yield click.Argument([given.vararg.arg], nargs=-1)
