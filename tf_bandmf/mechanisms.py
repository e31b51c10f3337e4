"""Mechanisms by name: from "bsr" and its options to a strategy.

The one place that knows which names exist; plans, tables and the command line ask here.
"""

from __future__ import annotations

import inspect
from typing import Any, Callable

from tf_bandmf import strategies
from tf_bandmf.participation import Participation
from tf_bandmf.strategies import Strategy
from tf_bandmf.workloads import Workload

# Bands that a mechanism tries when none are given: more memory is a user's decision.
_LARGEST_DEFAULT_BANDS = 32


def build_strategy(
    mechanism: str, workload: Workload, participation: Participation, **options: Any
) -> Strategy:
    """Builds the strategy of a mechanism for a workload and a participation.

    Args:
      mechanism: a key of `MECHANISMS`.
      workload: A; gives the number of steps.
      participation: for the mechanisms that optimize their sensitivity.
      **options: `bands`, `lambda_`, `buffers`, `column_normalized`, `objective`: those
        that the mechanism takes. An option that is None counts as not given.

    Raises:
      ValueError: for an unknown mechanism or an option that it does not take.
    """
    if mechanism not in MECHANISMS:
        raise ValueError(
            f"mechanism must be one of {', '.join(sorted(MECHANISMS))}, found "
            f"{mechanism!r}."
        )
    builder = MECHANISMS[mechanism]
    given = {name: value for name, value in options.items() if value is not None}
    accepted = set(inspect.signature(builder).parameters) - {
        "workload",
        "participation",
    }
    unknown = sorted(set(given) - accepted)
    if unknown:
        takes = ", ".join(sorted(accepted)) or "no options"
        raise ValueError(f"{mechanism} takes {takes}, found {', '.join(unknown)}.")
    return builder(workload, participation, **given)


def parse(specification: str) -> tuple[str, dict[str, Any]]:
    """A mechanism and its options from "name[:value][:normalized]", as "bisr:4".

    The value is the number of bands, lambda of "lambda_cgd", or the number of buffers of
    "blt"; without one the mechanism chooses. ":normalized" scales the columns of `C` to
    norm 1.

    Returns:
      The name and the options of `build_strategy`.

    Raises:
      ValueError: for an unknown name, a value that is not a number, or a mechanism that
        takes no value.
    """
    if not isinstance(specification, str):
        raise ValueError(
            f'mechanism must be a name, such as "bisr:4", or a Strategy, found '
            f"{specification!r}."
        )
    name, *values = specification.strip().split(":")
    if name not in MECHANISMS:
        raise ValueError(
            f"mechanism must be one of {', '.join(sorted(MECHANISMS))}, found {name!r}."
        )
    options: dict[str, Any] = {}
    if values and values[-1] == "normalized":
        values.pop()
        options["column_normalized"] = True
        if "column_normalized" not in inspect.signature(MECHANISMS[name]).parameters:
            raise ValueError(
                f"{name} has no normalized variant, found {specification!r}."
            )
    if not values:
        return name, options
    if name not in MAIN_OPTION or len(values) > 1:
        raise ValueError(f"{name} takes no value, found {specification!r}.")
    option, convert = MAIN_OPTION[name]
    try:
        options[option] = convert(values[0])
    except ValueError:
        raise ValueError(
            f"{name} takes {option.rstrip('_')} as its value, for instance "
            f'"{name}:{"0.9" if convert is float else "4"}", found {specification!r}.'
        ) from None
    return name, options


def _identity(workload: Workload, participation: Participation) -> Strategy:
    return strategies.identity(workload.num_steps)


def _lambda_cgd(
    workload: Workload,
    participation: Participation,
    lambda_: float | None = None,
    column_normalized: bool = False,
    objective: str = "mean",
) -> Strategy:
    if lambda_ is not None:
        return strategies.lambda_cgd(workload.num_steps, lambda_, column_normalized)
    return strategies.optimized_lambda_cgd(
        workload, participation, objective, column_normalized
    )


def _with_best_bands(
    family: Callable[[Workload, int, bool], Strategy],
    workload: Workload,
    participation: Participation,
    bands: int | None,
    column_normalized: bool,
) -> Strategy:
    if bands is not None:
        return family(workload, bands, column_normalized)
    limit = min(_LARGEST_DEFAULT_BANDS, participation.separation(), workload.num_steps)
    powers = [2**i for i in range(limit.bit_length()) if 2**i <= limit]
    candidates = [family(workload, power, column_normalized) for power in powers]
    return min(candidates, key=lambda s: s.rmse(workload, participation))


def _bsr(
    workload: Workload,
    participation: Participation,
    bands: int | None = None,
    column_normalized: bool = False,
) -> Strategy:
    return _with_best_bands(
        strategies.bsr, workload, participation, bands, column_normalized
    )


def _bisr(
    workload: Workload,
    participation: Participation,
    bands: int | None = None,
    column_normalized: bool = False,
) -> Strategy:
    return _with_best_bands(
        strategies.bisr, workload, participation, bands, column_normalized
    )


def _default_bands(workload: Workload, participation: Participation) -> int:
    """Optimized families do not get worse with bands up to the separation."""
    return min(_LARGEST_DEFAULT_BANDS, participation.separation(), workload.num_steps)


def _banded(
    workload: Workload,
    participation: Participation,
    bands: int | None = None,
    objective: str = "mean",
) -> Strategy:
    # TensorFlow optimizes these three: imported when wanted.
    from tf_bandmf.strategies.banded import optimized_banded

    bands = _default_bands(workload, participation) if bands is None else bands
    return optimized_banded(workload, bands, objective=objective)


def _toeplitz(
    workload: Workload,
    participation: Participation,
    bands: int | None = None,
    column_normalized: bool = False,
    objective: str = "mean",
) -> Strategy:
    from tf_bandmf.strategies.toeplitz import optimized_toeplitz

    bands = _default_bands(workload, participation) if bands is None else bands
    return optimized_toeplitz(
        workload,
        participation,
        bands,
        objective=objective,
        column_normalized=column_normalized,
    )


def _bandinv(
    workload: Workload,
    participation: Participation,
    bands: int | None = None,
    column_normalized: bool = False,
    objective: str = "mean",
) -> Strategy:
    from tf_bandmf.strategies.banded_inverse import optimized_banded_inverse

    bands = _default_bands(workload, participation) if bands is None else bands
    return optimized_banded_inverse(
        workload,
        participation,
        bands,
        objective=objective,
        column_normalized=column_normalized,
    )


def _blt(
    workload: Workload,
    participation: Participation,
    buffers: int = 4,
    objective: str = "mean",
) -> Strategy:
    return strategies.blt(workload, participation, buffers, objective)


def _tree(workload: Workload, participation: Participation) -> Strategy:
    return strategies.binary_tree(workload.num_steps)


def _dense(workload: Workload, participation: Participation) -> Strategy:
    return strategies.dense(workload, participation)


MECHANISMS: dict[str, Callable[..., Strategy]] = {
    "identity": _identity,
    "dp_sgd": _identity,
    "lambda_cgd": _lambda_cgd,
    "bsr": _bsr,
    "bisr": _bisr,
    "banded": _banded,
    "toeplitz": _toeplitz,
    "bandinv": _bandinv,
    "blt": _blt,
    "tree": _tree,
    "dense": _dense,
}

# What the value in "name:value" is.
MAIN_OPTION: dict[str, tuple[str, Callable[[str], Any]]] = {
    "lambda_cgd": ("lambda_", float),
    "bsr": ("bands", int),
    "bisr": ("bands", int),
    "banded": ("bands", int),
    "toeplitz": ("bands", int),
    "bandinv": ("bands", int),
    "blt": ("buffers", int),
}
