"""How a broken mechanism is described: what is broken, and what must notice."""

import dataclasses
import functools
from collections.abc import Callable

import mechanism_checks as checks
import pytest

# In the order of the catalogue.
ALL = []


@dataclasses.dataclass(frozen=True)
class Mutation:
    """One broken mechanism.

    Attributes:
      title: of the row in the report.
      apply: changes the code, by a `pytest.MonkeyPatch`.
      check: raises where it is broken.
      check_name: of `check`.
      message: regular expression, of what `check` says then.
      by: what catches it, in words.
      is_fast: runs in the default suite.
    """

    title: str
    apply: Callable
    check: Callable
    check_name: str
    message: str
    by: str
    invariants: tuple
    is_fast: bool


def broken(title, check, *arguments, says, invariants=(), is_fast=False, **named):
    """Registers the function below it as a mutation that `check(*arguments)` catches."""

    def register(apply):
        name = ", ".join([*arguments, *(f"{k}={v}" for k, v in named.items())])
        name = f"{check.__name__}({name})"
        by = f"`{name}`"
        run = functools.partial(check, *arguments, **named)
        ALL.append(Mutation(title, apply, run, name, says, by, invariants, is_fast))
        return apply

    return register


def suite(path, test, *arguments, says, title, invariants=(), is_fast=False, **named):
    """Registers a mutation that a test of the suite catches."""

    def register(apply):
        def check():
            with pytest.MonkeyPatch.context() as patch:
                function = checks.named_test(path, test)
                if named.get("monkeypatch"):
                    function(patch, *arguments)
                else:
                    function(*arguments)

        name = f"{test}[{'-'.join(map(str, arguments))}]" if arguments else test
        ALL.append(
            Mutation(
                title, apply, check, name, says, f"`tests/{path}`", invariants, is_fast
            )
        )
        return apply

    return register
