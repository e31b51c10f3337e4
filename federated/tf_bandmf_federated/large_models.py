"""Plans whose noise fits into the server's memory.

A banded C keeps `bands - 1` vectors of the model's size: for 64 bands and 10^8 weights 25
GB. Strategies with a banded inverse (`lambda_cgd`, `bisr`, `bandinv`) keep none: their
earlier normals are drawn again.
"""

from __future__ import annotations

import logging
from typing import Any

import tf_bandmf
from tf_bandmf import Plan
from tf_bandmf.accounting.checks import whole_number
from tf_bandmf.files import machine

_LOG = logging.getLogger("tf_bandmf")
_FLOAT_BYTES = 4
_SHARE = 0.5  # of the memory, for the ring buffer: model and sums need some, too


def plan_that_fits(
    num_parameters: int, *, memory_bytes: int | None = None, **options: Any
) -> Plan:
    """The plan with the least error whose ring buffer fits into memory.

    It calls `tf_bandmf.plan` with mechanism "auto" and a `max_memory_vectors` that
    follows from the model's size. The choice, and its cost compared with the choice
    without this limit, goes to the logger "tf_bandmf" (as a warning, if there is a
    cost).

    Formal guarantee: that of the plan.

    Args:
      num_parameters: d, the number of parameters of the model.
      memory_bytes: memory for the ring buffer; by default half of this machine's
        memory.
      options: arguments of `tf_bandmf.plan`: budget, `num_steps`, `participation` and
        so on, but neither `mechanism` nor `max_memory_vectors`.

    Raises:
      TypeError: if `mechanism` or `max_memory_vectors` is given.
      ValueError: if a number is out of range, or the machine's memory is unknown.
    """
    for name in ("mechanism", "max_memory_vectors"):
        if name in options:
            raise TypeError(f"plan_that_fits chooses {name} itself: leave it out.")
    whole_number("num_parameters", num_parameters)
    if memory_bytes is None:
        found = machine.memory_bytes()
        if found is None:
            raise ValueError("This machine does not say its memory: give memory_bytes.")
        memory_bytes = int(_SHARE * found)
    vectors = whole_number("memory_bytes", memory_bytes, least=0) // (
        _FLOAT_BYTES * num_parameters
    )
    best = tf_bandmf.plan("auto", **options)
    if best.strategy.memory_vectors <= vectors:
        _LOG.info("%s: %s", _name(best), best.memory(num_parameters))
        return best
    plan = tf_bandmf.plan("auto", max_memory_vectors=vectors, **options)
    _LOG.warning(
        "%s does not fit into %.3g GB. %s Instead: %s. %s RMSE of the noise %.4g "
        "instead of %.4g (%.1f%% more).",
        _name(best),
        memory_bytes / 1e9,
        best.memory(num_parameters),
        _name(plan),
        plan.memory(num_parameters),
        plan.rmse(),
        best.rmse(),
        100.0 * (plan.rmse() / best.rmse() - 1.0),
    )
    return plan


def _name(plan: Plan) -> str:
    assert plan.choice is not None  # "auto" says what it chose
    return plan.choice.mechanism
