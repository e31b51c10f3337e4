"""What the arguments of `plan` say of the data and the budget, checked."""

from __future__ import annotations

import warnings

from tf_bandmf.accounting.checks import (
    LARGEST_EPSILON,
    check_planned_delta,
    check_positive,
)
from tf_bandmf.participation import FixedEpochOrder, Participation
from tf_bandmf.participation.scheme import Scheme


def resolve_scheme(
    sampling: str,
    num_examples: int | None,
    batch_size: int | None,
    epochs: int | None,
    num_steps: int | None,
    participation: Participation | None,
) -> Scheme:
    """The sampling that was named, with the data that it needs.

    Raises:
      ValueError: if a number is missing or invalid, or something contradicts it.
    """
    if participation is not None or num_steps is not None:
        raise ValueError(
            "Give either sampling, with num_examples, batch_size and epochs, or "
            "participation and num_steps."
        )
    if num_examples is None or batch_size is None or epochs is None:
        raise ValueError("sampling needs num_examples, batch_size and epochs.")
    return Scheme(sampling, num_examples, batch_size, epochs)


def resolve_participation(
    num_examples: int | None,
    batch_size: int | None,
    epochs: int | None,
    num_steps: int | None,
    participation: Participation | None,
) -> tuple[Participation, int, float | None]:
    """The participation, its number of steps and the expected batch size.

    Raises:
      ValueError: if a number is missing or contradicts the participation.
    """
    if participation is None:
        missing = [
            name
            for name, value in (
                ("num_examples", num_examples),
                ("batch_size", batch_size),
                ("epochs", epochs),
            )
            if value is None
        ]
        if missing:
            raise ValueError(
                f"{', '.join(missing)} missing: give num_examples, batch_size and "
                f"epochs, or num_steps and participation."
            )
        participation = FixedEpochOrder(num_examples, batch_size, epochs)  # type: ignore[arg-type]
    elif epochs is not None:
        raise ValueError(
            "Give either epochs or participation: a participation says how often an "
            "example takes part."
        )
    own_batch_size = getattr(participation, "batch_size", None)
    if own_batch_size is not None and batch_size not in (None, own_batch_size):
        raise ValueError(
            f"The participation has batch_size = {own_batch_size}, found {batch_size}."
        )
    own_examples = getattr(participation, "num_examples", None)
    if own_examples is not None and num_examples not in (None, own_examples):
        raise ValueError(
            f"The participation has num_examples = {own_examples}, found {num_examples}."
        )
    own_steps = participation.run_steps()
    steps = own_steps if num_steps is None else num_steps
    if steps is None:
        raise ValueError("num_steps is missing: it is never inferred.")
    participation.validate_num_steps(steps)
    if batch_size is not None:
        check_positive("batch_size", batch_size)
    expected_size = participation.expected_batch_size()
    if expected_size is None and batch_size is not None:
        expected_size = float(batch_size)
    return participation, steps, expected_size


def check_budget(
    epsilon: float | None,
    delta: float | None,
    noise_multiplier: float | None,
    num_examples: int | None,
) -> float:
    """Delta, if the budget is complete and not contradictory.

    Raises:
      ValueError: if it is not, or a number is out of range.
    """
    if delta is None:
        raise ValueError("delta is missing: a common choice is below 1 / num_examples.")
    check_planned_delta(delta)
    if (epsilon is None) == (noise_multiplier is None):
        raise ValueError(
            f"Give exactly one of epsilon and noise_multiplier, found epsilon = "
            f"{epsilon}, noise_multiplier = {noise_multiplier}."
        )
    if epsilon is not None:
        check_positive("epsilon", epsilon)
        if epsilon > LARGEST_EPSILON:
            raise ValueError(
                f"epsilon must be <= {LARGEST_EPSILON:g}, found {epsilon}: that gives no "
                f"meaningful privacy."
            )
    else:
        check_positive("noise_multiplier", noise_multiplier)
    if num_examples is not None and delta >= 1.0 / num_examples:
        warnings.warn(
            f"delta = {delta} is not below 1 / num_examples = {1.0 / num_examples:.3g}: "
            f"a mechanism with this delta may publish someone's record outright.",
            stacklevel=3,
        )
    return float(delta)
