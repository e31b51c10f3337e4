"""Accountants of dp-accounting's own, or of anybody's, for the events of a run.

The library's accountant is the one that `plan` uses and states. These functions give
second opinions, and noise for those who insist on another accountant.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Protocol

import dp_accounting
import scipy.optimize

from tf_bandmf.accounting import root_finding
from tf_bandmf.accounting.checks import check_delta, check_positive

_LARGEST_LOG_NOISE = 20.0
_TOLERANCE = 1e-6


class _Strategy(Protocol):
    """What is asked of a `tf_bandmf.Strategy`."""

    @property
    def num_steps(self) -> int: ...
    @property
    def matrix(self) -> Any: ...
    def in_float32(self) -> Any: ...
    def sensitivity(self, participation: Any) -> Any: ...


class _Participation(Protocol):
    """What is asked of a `tf_bandmf.Participation`."""

    def validate_num_steps(self, num_steps: int) -> None: ...
    def accountant(self, matrix: Any) -> Any: ...


def epsilon_by(
    accountant: dp_accounting.PrivacyAccountant,
    event: dp_accounting.DpEvent,
    delta: float,
) -> float:
    """Epsilon of one event at delta, by a fresh accountant.

    Args:
      accountant: one that has composed nothing yet, for example
        `dp_accounting.rdp.RdpAccountant()`. Sampling without replacement is accounted
        for under `NeighboringRelation.REPLACE_ONE` only.
      event: of a run, such as `Plan.dp_event()`.
      delta: in (0, 1).

    Raises:
      ValueError: if the accountant has composed something, cannot handle the event, or
        finds no finite epsilon.
    """
    check_delta(delta)
    if not isinstance(accountant.ledger, dp_accounting.NoOpDpEvent):
        raise ValueError(
            "The accountant has composed something already: give a fresh one."
        )
    try:
        accountant.compose(event)
    except dp_accounting.UnsupportedEventError as error:
        raise ValueError(
            f"{type(accountant).__name__} cannot handle {event}: {error} Use another "
            f"accountant or neighboring relation."
        ) from error
    epsilon = float(accountant.get_epsilon(delta))
    if not (math.isfinite(epsilon) and epsilon >= 0.0):
        raise ValueError(
            f"{type(accountant).__name__} found epsilon = {epsilon} at delta = {delta}."
        )
    return epsilon


def calibrate_by(
    make_accountant: Callable[[], dp_accounting.PrivacyAccountant],
    strategy: _Strategy,
    participation: _Participation,
    epsilon: float,
    delta: float,
) -> float:
    """The noise multiplier of a plan for a budget by an accountant of the caller's choice.

        noise = calibrate_by(dp_accounting.rdp.RdpAccountant, strategy, sampler, 2.0, 1e-5)
        plan = tf_bandmf.plan(strategy, noise_multiplier=noise, delta=1e-5,
                              participation=sampler, num_steps=n)

    The plan states the epsilon of the library's accountant for this noise;
    `plan.epsilon_by` gives that of the other accountant.

    Args:
      make_accountant: returns a fresh accountant at each call.
      strategy: C.
      participation: what the sampler does; must have an event.
      epsilon: > 0.
      delta: in (0, 1).

    Returns:
      The noise multiplier as in `Plan`, noise standard deviation per unit of
      sensitivity, rounded up and checked with the accountant.

    Raises:
      ValueError: on invalid input, if the participation has no event, or if no
        practical noise level meets the budget.
    """
    check_positive("epsilon", epsilon)
    check_delta(delta)
    # As plans have it.
    strategy = strategy.in_float32()
    participation.validate_num_steps(strategy.num_steps)
    accountant = participation.accountant(strategy.matrix)
    sensitivity = strategy.sensitivity(participation).value

    def found(noise: float) -> float:
        event = accountant.event(noise * sensitivity)
        return epsilon_by(make_accountant(), event, delta)

    lower = upper = 0.0
    while found(math.exp(upper)) > epsilon:
        lower, upper = upper, upper + 1.0
        if upper > _LARGEST_LOG_NOISE:
            raise ValueError(
                f"No useful noise gives epsilon = {epsilon}, delta = {delta} by this "
                f"accountant. Use a larger budget."
            )
    while lower == upper or found(math.exp(lower)) <= epsilon:
        lower, upper = lower - 1.0, min(lower, upper)
        if lower < -_LARGEST_LOG_NOISE:
            raise ValueError(
                f"epsilon = {epsilon} gives no meaningful privacy; choose a smaller one."
            )
    root = scipy.optimize.brentq(
        lambda x: found(math.exp(x)) - epsilon, lower, upper, xtol=_TOLERANCE
    )
    return root_finding.to_safe_side(
        math.exp(root + _TOLERANCE), lambda noise: found(noise) <= epsilon
    )
