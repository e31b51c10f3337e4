"""Arguments of `plan` under the names that they had: still taken, with a warning.

Parameters of a mechanism stand in its name, the optimizer in the workload; `Ledger.bind`
binds a plan to a ledger.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tf_bandmf import workloads
from tf_bandmf.strategies import registry
from tf_bandmf.workloads import Workload

if TYPE_CHECKING:
    from tf_bandmf.planning.plan import Plan

_OF_THE_NAME = ("bands", "lambda_", "gamma", "column_normalized", "objective")
_OF_THE_WORKLOAD = ("momentum", "decay", "learning_rates")
_FLAGS: dict[str, dict[Any, str]] = {
    "column_normalized": {True: "normalized"},
    "objective": {"max": "max"},
}

# What other libraries call arguments of `plan`.
_LIKELY = {
    "strategy": "mechanism",
    "clip_norm": "l2_norm_clip",
    "clipping_norm": "l2_norm_clip",
    "max_grad_norm": "l2_norm_clip",
    "target_epsilon": "epsilon",
    "target_delta": "delta",
    "steps": "num_steps",
    "num_epochs": "epochs",
}


def earlier_binding(
    earlier: dict[str, Any],
) -> tuple[Callable[[Plan], Plan], dict[str, Any]]:
    """What binds a plan to the ledger that is given, and the arguments that are left.

    Args:
      earlier: other arguments of `plan`, by name.

    Raises:
      ValueError: if a ledger is given without a data set, or the reverse.
    """
    left = dict(earlier)
    ledger, dataset = left.pop("ledger", None), left.pop("dataset", None)
    if (ledger is None) != (dataset is None):
        raise ValueError(
            f"Give ledger and dataset together, as in ledger.bind(plan, dataset), found "
            f"ledger = {ledger!r}, dataset = {dataset!r}."
        )
    if ledger is None:
        return lambda plan: plan, left
    warnings.warn(
        "ledger and dataset of tf_bandmf.plan are deprecated: bind the plan, "
        "ledger.bind(tf_bandmf.plan(...), dataset).",
        DeprecationWarning,
        stacklevel=3,
    )
    return lambda plan: ledger.bind(plan, dataset), left


def translated(
    mechanism: Any, workload: Workload | str | None, earlier: dict[str, Any]
) -> tuple[Any, Workload | str | None]:
    """Mechanism and workload, with what was given under earlier names.

    Args:
      mechanism: of `plan`.
      workload: of `plan`.
      earlier: its other arguments, by name.

    Raises:
      TypeError: for a name that `plan` never had.
      ValueError: if something was given twice.
    """
    unknown = sorted(set(earlier) - {*_OF_THE_NAME, *_OF_THE_WORKLOAD})
    if unknown:
        likely = _LIKELY.get(unknown[0])
        raise TypeError(
            f"plan() got an unexpected keyword argument {unknown[0]!r}."
            + (f" Did you mean {likely!r}?" if likely else "")
        )
    given = {name: value for name, value in earlier.items() if value is not None}
    name = {key: given[key] for key in _OF_THE_NAME if key in given}
    settings = {key: given[key] for key in _OF_THE_WORKLOAD if key in given}
    if name:
        mechanism = _with_parameters(mechanism, name)
    if settings:
        if workload is not None:
            raise ValueError(
                f"Give either workload or {', '.join(settings)}: a workload says what the "
                f"optimizer does."
            )
        workload = _workload(settings)
    if given:
        warnings.warn(
            f"{', '.join(given)} of tf_bandmf.plan are deprecated. Name the mechanism with "
            f'its parameters ("{mechanism}"), and the optimizer as the workload '
            f'("sgd:momentum=0.9,decay=0.999", or a tf_bandmf.workloads.Workload).',
            DeprecationWarning,
            stacklevel=3,
        )
    return mechanism, workload


def _with_parameters(mechanism: Any, given: dict[str, Any]) -> str:
    if not isinstance(mechanism, str):
        raise ValueError(
            f"A Strategy has its parameters: leave {', '.join(given)} out."
        )
    if mechanism.partition(":")[0] == "auto":
        numbers: tuple[str, ...] = ()
        twice = [key for key in given if key != "objective"]
        if twice:
            raise ValueError(
                f"auto chooses {', '.join(twice)} itself: name a mechanism to set it."
            )
    else:
        family, parsed = registry.parse(mechanism)
        twice = sorted(set(given) & set(parsed))
        if twice:
            raise ValueError(
                f"Give {', '.join(twice)} in one place, found it in the mechanism's name "
                f"and as an argument."
            )
        numbers = tuple(option.name for option in registry.family_of(family).numbers)
    parts = [mechanism]
    for place, key in enumerate(numbers):
        if key in given:
            if place and numbers[place - 1] not in given and ":" not in mechanism:
                raise ValueError(
                    f"{key} needs {numbers[place - 1]}: name both, as in "
                    f'"{mechanism}:4:{given[key]}".'
                )
            parts.append(str(given[key]))
    left = [key for key in given if key not in numbers and key not in _FLAGS]
    if left:
        raise ValueError(f"{mechanism} does not take {', '.join(left)}.")
    for key, flags in _FLAGS.items():
        if key in given and given[key] in flags:
            parts.append(flags[given[key]])
    return ":".join(parts)


def _workload(settings: dict[str, Any]) -> Workload | str:
    rates = settings.pop("learning_rates", None)
    if rates is not None:
        return workloads.momentum_sgd(len(rates), learning_rates=rates, **settings)
    values = ",".join(f"{key}={float(value)!r}" for key, value in settings.items())
    return f"sgd:{values}"
