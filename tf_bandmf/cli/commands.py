"""The commands `plan`, `compare`, `advise` and `show`."""

from __future__ import annotations

import dataclasses
import functools
import logging
import pathlib
import sys
import time
from typing import Any

import click

from tf_bandmf.cli.signatures import command


class _File(click.Path):
    """The path of an output file, whose folder must exist before the command starts."""

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        if not pathlib.Path(value).resolve().parent.is_dir():
            self.fail(f"The folder of {value} must exist.", param, ctx)
        return super().convert(value, param, ctx)


def _option(name: str, help: str, kind: Any = None) -> click.Option:
    return click.Option([name], type=kind, help=help)


_FILE = _File(dir_okay=False)
_PLOT = _option("--plot", "save a .png, .pdf or .svg; needs tf-bandmf[plot]", _FILE)
_OUT = _option("--out", "save the plan (JSON)", _FILE)
_CARD = _option("--card", "save a privacy card: .md or .json", _FILE)
_MODEL = _option("--model-name", "name of the model, for the card")
_UNIT = _option("--unit", "privacy unit of the statement; by default the plan's")
_SEPARATION = _option("--min-separation", "for MinSep, with --num-steps", int)
_GENERATOR = _option("--generator", "generator of the noise: philox or chacha20", str)
_MOST = _option("--max-participations", "for MinSep, with --num-steps", int)


def tell(record: logging.LogRecord) -> bool:
    """Prints a log message on standard error, unless the program has just started.

    In the first 4 seconds of CPU time, messages are not printed, so that short commands
    print only their results.

    Returns:
      True: the function is a filter of a logger, and does not drop the message.
    """
    if time.process_time() > 4.0:
        print(f"{record.getMessage()} ...", file=sys.stderr, flush=True)
    return True


def _draw(path: str | None, name: str, shown: tuple[Any, ...]) -> None:
    """Saves a picture that a function of `tf_bandmf.plots` draws.

    Args:
      path: path of the picture; None to draw nothing.
      name: name of the function.
      shown: the first arguments of the function.
    """
    if path is not None:
        from matplotlib import figure

        from tf_bandmf import plots

        made = figure.Figure(figsize=(10.0, 6.0), layout="constrained")
        getattr(plots, name)(*shown, made if len(shown) == 2 else made.subplots())
        made.savefig(path, dpi=150)


def _asserted(given: dict[str, Any]) -> dict[str, Any]:
    """Makes a `MinSep` from the arguments for the separation and the participations."""
    from tf_bandmf.participation import MinSep

    b, k = given.pop("min_separation", None), given.pop("max_participations", None)
    return given if b is None else dict(sampling=MinSep(b, k), **given)


def _plan(out: str | None = None, plot: str | None = None, **given: Any) -> Any:
    kept = {k: given.pop(k, 0) for k in ("counts", "metrics", "evaluations")}
    confidence, generator = (given.pop(k, None) for k in ("confidence", "generator"))
    given = _asserted(given)
    from tf_bandmf.planning import build

    plan = build.plan(**given)
    plan = plan if generator is None else dataclasses.replace(plan, generator=generator)
    plan = plan if confidence is None else plan.bounded(confidence=confidence)
    plan = plan.reserve(**kept) if any(kept.values()) else plan
    _draw(plot, "plan_overview", ("the plan", {"the plan": plan}))
    if out is not None:
        plan.save(out)
    return plan


def _text(plan: Any) -> str:
    choice = "" if plan.choice is None else f"{plan.choice}\n\n"
    return f"{choice}{plan.statement()}"


def _record(plan: Any) -> dict[str, Any]:
    """Converts a plan to a dictionary of finite values for JSON."""
    from tf_bandmf.strategies import registry

    names = "num_steps epsilon delta kind confidence accountant adjacency fingerprint "
    names += "noise_multiplier noise_stddev l2_norm_clip"
    return {
        **{name: getattr(plan, name) for name in names.split()},
        "mechanism": registry.specification(plan.strategy),
        "participation": plan.participation.to_config(),
        "measurements": dict(vars(plan.measurements)),
        "memory_vectors": plan.strategy.memory_vectors,
        "rmse": plan.rmse(),
        "statement": dict(plan.statement().points()),
        "choice": None if plan.choice is None else plan.choice.to_record(),
    }


def _call(name: str, plot: str | None = None, **given: Any) -> Any:
    """Imports `tf_bandmf`, and calls one of its functions.

    Args:
      name: name of the function.
      plot: path of a picture of the result; None for no picture.
      **given: arguments of the function.
    """
    given = _asserted(given)
    import tf_bandmf

    made = getattr(tf_bandmf, name)(**given)
    _draw(plot, "comparison_bars", (made,))
    return made


def _show(path: str, card: Any = None, plot: Any = None, **of_card: Any) -> Any:
    pathlib.Path(path).stat()  # Raise FileNotFoundError before the slow imports.
    from tf_bandmf.planning.plan import Plan

    read = Plan.load(path)
    made = read.statement(of_card.pop("unit", None)).card(**of_card)
    if card is not None:
        write = {".md": "to_model_card", ".json": "to_json"}
        suffix = pathlib.Path(card).suffix
        if suffix not in write:
            raise ValueError(f"--card must end in {' or '.join(write)}, found {card}.")
        text = getattr(made, write[suffix])()
        pathlib.Path(card).write_text(text, encoding="utf-8")
    _draw(plot, "plan_overview", ("the plan", {"the plan": read}))
    return read


def _shown(plan: Any) -> str:
    from tf_bandmf.accounting.guarantee import fill

    line = functools.partial(fill, "delta {0.delta:.3g up}: epsilon {0.epsilon:.4f up}")
    return "\n".join([_text(plan), "", *map(line, plan.epsilon_curve())])


_compare, _advise = (functools.partial(_call, of) for of in ("compare", "advise"))
_PLAN, _COMPARE = "planning.plan:Plan", "planning.compare:compare"
_PLANS = ("planning.build:plan", f"{_PLAN}.bounded", f"{_PLAN}.reserve")
_many, _one = lambda table: table.to_records(), lambda one: one.to_record()
_COMPARED = (_SEPARATION, _MOST, _PLOT)
_shows: Any = {"more": (_SEPARATION, _MOST, _GENERATOR, _OUT, _PLOT), "show": _text}
_reads: Any = {"more": (_CARD, _MODEL, _UNIT, _PLOT), "show": _shown}
COMMANDS = (
    command("plan", _plan, *_PLANS, record=_record, **_shows),
    command("compare", _compare, _COMPARE, more=_COMPARED, record=_many),
    command("advise", _advise, "planning.advice:advise", record=_one),
    command("show", _show, f"{_PLAN}.load", record=_record, **_reads),
)
