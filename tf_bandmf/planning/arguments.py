"""Checks the arguments of `plan` that describe the use of the data and the budget."""

from __future__ import annotations

import dataclasses
import warnings

from tf_bandmf.accounting.checks import (
    LARGEST_EPSILON,
    check_planned_delta,
    check_positive,
    check_word,
    whole_number,
)
from tf_bandmf.matrices import LARGEST_NUM_STEPS
from tf_bandmf.participation import NAMED, FixedEpochOrder, Participation, samplings
from tf_bandmf.participation.base import DEFAULT_SAMPLING

# An epsilon above this triggers a warning, because a membership test that detects half
# of the members may then have a false-positive rate as low as exp(-epsilon) / 2.
_PROMISES_NOTHING = 100.0


@dataclasses.dataclass(frozen=True)
class DataUse:
    """A description of how a run uses the data.

    Attributes:
      sampling: the participation. With cyclic sampling, its `num_parts` is 1 until the
        strategy determines the number of parts.
      num_steps: n, the number of steps.
      num_examples: size of the training set, if known.
      expected_batch_size: the divisor of the noisy sum, if known.
      is_cyclic: True if the data will be divided into as many parts as the strategy has
        bands.
    """

    sampling: Participation
    num_steps: int
    num_examples: int | None
    expected_batch_size: float | None
    is_cyclic: bool = False

    def participation(self, bands: int) -> Participation:
        """Returns the participation for a strategy with this number of bands."""
        if not self.is_cyclic:
            return self.sampling
        return dataclasses.replace(self.sampling, num_parts=bands)  # type: ignore[type-var]


def resolve_data(
    num_examples: int | None,
    batch_size: int | None,
    epochs: int | None,
    num_steps: int | None,
    sampling: str | Participation | None,
) -> DataUse:
    """Builds a `DataUse` from the arguments with which `plan` describes the data.

    Raises:
      ValueError: if an argument is missing or invalid, or if two arguments contradict
        each other.
    """
    if num_steps is not None:
        num_steps = whole_number("num_steps", num_steps)
    given = {"num_examples": num_examples, "batch_size": batch_size, "epochs": epochs}
    wrong = ""
    if not isinstance(sampling, Participation):
        missing = ", ".join(name for name, value in given.items() if value is None)
        wrong = f"Missing: {missing}" if missing else ""
        if sampling is not None and num_steps is not None:
            wrong = "num_steps must be left out"
    elif epochs is not None:
        wrong = "epochs must be left out"
    if wrong:
        raise ValueError(
            f"{wrong}. Pass num_examples, batch_size and epochs, with a name as sampling. "
            f"Or pass num_steps, with a participation as sampling. For example, with "
            f"MinSep(342), steps that use the same example are at least 342 steps apart."
        )
    if isinstance(sampling, Participation):
        made, is_cyclic = sampling, False
    else:
        name = DEFAULT_SAMPLING if sampling is None else sampling
        check_word("sampling", name, samplings())
        # For every sampling, `FixedEpochOrder` checks the arguments and computes the
        # number of steps.
        order = FixedEpochOrder(**given)  # type: ignore[arg-type]
        num_steps = order.num_steps if num_steps is None else num_steps
        made = NAMED[name].of_data(**given, num_parts=None)  # type: ignore[arg-type]
        is_cyclic = made.is_cyclic
    for field in ("batch_size", "num_examples"):
        stated, value = getattr(made, field, None), given[field]
        if stated is not None and value not in (None, stated):
            raise ValueError(
                f"Omit {field}={value}: the argument sampling sets it to {stated}."
            )
    steps = made.num_steps if num_steps is None else num_steps
    if steps is None:
        raise ValueError("num_steps must be given with this participation, found None.")
    made.validate_num_steps(steps)
    expected = made.expected_batch_size()
    if batch_size is not None:
        check_positive("batch_size", batch_size)
        expected = float(batch_size) if expected is None else expected
    if steps > LARGEST_NUM_STEPS:
        size = float(min(steps, 10**300))
        raise ValueError(
            f"num_steps (epochs * num_examples / batch_size) must be <= "
            f"{LARGEST_NUM_STEPS:,}, found {size:g}. The noise keys would take "
            f"{16.0 * size:.3g} bytes. Use larger batches or fewer epochs."
        )
    if not is_cyclic:
        made.check_accounting(steps)
    if num_examples is None:
        num_examples = getattr(made, "num_examples", None)
    return DataUse(made, steps, num_examples, expected, is_cyclic)


def check_budget(
    epsilon: float | None,
    delta: float | None,
    noise_multiplier: float | None,
    num_examples: int | None,
) -> float:
    """Checks a privacy budget and returns its delta.

    Raises:
      ValueError: if the budget is incomplete or contradictory, or a number is out of
        range.
    """
    if delta is None:
        raise ValueError("delta is missing. A common choice is below 1 / num_examples.")
    check_planned_delta(delta)
    if (epsilon is None) == (noise_multiplier is None):
        raise ValueError(
            f"Give exactly one of epsilon and noise_multiplier. Found epsilon = "
            f"{epsilon} and noise_multiplier = {noise_multiplier}."
        )
    if epsilon is not None:
        check_positive("epsilon", epsilon)
        if epsilon > LARGEST_EPSILON:
            raise ValueError(
                f"epsilon must be <= {LARGEST_EPSILON:g}, found {epsilon}, which gives no "
                f"meaningful privacy. Usual values are below 10."
            )
        if epsilon > _PROMISES_NOTHING:
            warnings.warn(
                f"epsilon = {epsilon:g} protects nobody: an attacker may find out almost "
                f"with certainty whether a person's record was used. Usual values are "
                f"below 10.",
                stacklevel=3,
            )
    else:
        check_positive("noise_multiplier", noise_multiplier)
    if num_examples is not None and delta >= 1.0 / num_examples:
        warnings.warn(
            f"delta = {delta} is not below 1 / num_examples = {1.0 / num_examples:.3g}: "
            f"it lets a mechanism publish a person's full record. Use a smaller delta.",
            stacklevel=3,
        )
    return float(delta)
