"""`--plot FILE`: pictures of what a command found."""

from __future__ import annotations

import importlib.util
import pathlib
import sys
import warnings
from typing import TYPE_CHECKING, Any

from tf_bandmf.cli.parsing import BadArguments, check_folder

if TYPE_CHECKING:
    from tf_bandmf.planning.band_search import BandSearch
    from tf_bandmf.planning.comparison import Comparison
    from tf_bandmf.planning.plan import Plan

_FORMATS = (".png", ".pdf", ".svg")
_DOTS_PER_INCH = 150


def check(path: str | None) -> None:
    """Raises BadArguments, before anything is computed, if a picture cannot be made."""
    if path is None:
        return
    if pathlib.Path(path).suffix.lower() not in _FORMATS:
        raise BadArguments(
            f"--plot must end with one of {', '.join(_FORMATS)}, found {path!r}."
        )
    check_folder("--plot", path)
    if importlib.util.find_spec("matplotlib") is None:
        raise BadArguments('--plot needs matplotlib: pip install "tf-bandmf[plot]".')


def say_saved(path: str | None, as_json: bool) -> None:
    """Names the picture; on standard error where JSON is on standard output."""
    if path is not None:
        print(f"Saved {path}.", file=sys.stderr if as_json else sys.stdout)


def save_comparison(table: Comparison, path: str) -> None:
    """Bars of the errors."""
    from tf_bandmf import plots

    figure = _figure(8.0, 1.6 + 0.55 * len(table))
    plots.comparison_bars(table, axes=figure.subplots())
    _save(figure, path)


def save_bands(search: BandSearch, path: str) -> None:
    """The error against the number of bands."""
    from tf_bandmf import plots

    figure = _figure(7.0, 4.5)
    plots.error_by_bands(search, axes=figure.subplots())
    _save(figure, path)


def save_plan(plan: Plan, path: str) -> None:
    """An overview of a plan, beside DP-SGD with the same batches and budget."""
    import tf_bandmf
    from tf_bandmf import plots
    from tf_bandmf.strategies import registry

    name = registry.specification(plan.strategy)
    plans = {name: plan}
    if plan.strategy.family != "identity":
        with warnings.catch_warnings():
            # What there is to say of the budget was said of the plan.
            warnings.simplefilter("ignore")
            plans["identity (DP-SGD)"] = tf_bandmf.plan(
                "identity",
                epsilon=plan.epsilon,
                delta=plan.delta,
                num_steps=plan.num_steps,
                participation=plan.participation,
                workload=plan.workload,
                confidence=plan.confidence,
            )
    figure = _figure(14.0, 8.0)
    plots.plan_overview(name, plans, figure)
    _save(figure, path)


def _figure(width: float, height: float) -> Any:
    """A figure of no window and of no state of pyplot."""
    from matplotlib import figure

    return figure.Figure(figsize=(width, height), layout="constrained")


def _save(figure: Any, path: str) -> None:
    figure.savefig(path, dpi=_DOTS_PER_INCH)
