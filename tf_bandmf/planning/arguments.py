"""What the arguments of `plan` say of the data and the budget, checked."""

from __future__ import annotations

import dataclasses
import warnings

from tf_bandmf.accounting.checks import (
    LARGEST_EPSILON,
    check_planned_delta,
    check_positive,
)
from tf_bandmf.matrices import LARGEST_NUM_STEPS
from tf_bandmf.participation import Participation
from tf_bandmf.participation.checks import positive_int
from tf_bandmf.participation.scheme import DEFAULT_SAMPLING, Scheme

# A test of power 1/2 has false alarms of at most exp(-epsilon) / 2.
_PROMISES_NOTHING = 100.0


@dataclasses.dataclass(frozen=True)
class DataUse:
    """How a run uses its data.

    Attributes:
      sampling: the participation, or a cyclic sampling, which has as many parts as the
        strategy has bands and becomes a participation with it.
      num_steps: n.
      num_examples: size of the training set, if known.
      expected_batch_size: by which the noisy sum is divided, if known.
    """

    sampling: Participation | Scheme
    num_steps: int
    num_examples: int | None
    expected_batch_size: float | None

    @property
    def is_cyclic(self) -> bool:
        return isinstance(self.sampling, Scheme)

    def participation(self, bands: int) -> Participation:
        """The participation of a strategy with so many bands."""
        if isinstance(self.sampling, Scheme):
            return self.sampling.participation(bands)
        return self.sampling


def resolve_data(
    num_examples: int | None,
    batch_size: int | None,
    epochs: int | None,
    num_steps: int | None,
    sampling: str | Participation | None,
) -> DataUse:
    """How the run uses its data, as the arguments of `plan` say it in one of two ways.

    Raises:
      ValueError: if a number is missing or invalid, or something contradicts it.
    """
    if num_steps is not None:
        num_steps = positive_int("num_steps", num_steps)
    if isinstance(sampling, Participation):
        if epochs is not None:
            raise ValueError(
                "epochs must be left out: a participation says how often an example "
                "takes part."
            )
        use = _checked(sampling, num_steps, num_examples, batch_size)
    else:
        if sampling is not None and num_steps is not None:
            raise ValueError(
                "Give num_steps with a participation as sampling, such as MinSep(342), "
                "and epochs with the name of a sampling."
            )
        given = {"num_examples": num_examples, "batch_size": batch_size}
        given["epochs"] = epochs
        missing = [name for name, value in given.items() if value is None]
        if missing:
            raise ValueError(
                f"{', '.join(missing)} missing: give num_examples, batch_size and "
                f"epochs, or num_steps and a participation as sampling."
            )
        scheme = Scheme(DEFAULT_SAMPLING if sampling is None else sampling, **given)  # type: ignore[arg-type]
        steps, size = scheme.num_steps, float(scheme.batch_size)
        if scheme.is_cyclic:
            use = DataUse(scheme, steps, num_examples, size)
        else:
            use = _checked(
                scheme.participation(), num_steps or steps, num_examples, batch_size
            )
    if use.num_steps > LARGEST_NUM_STEPS:
        size = float(min(use.num_steps, 10**300))
        raise ValueError(
            f"num_steps (epochs * num_examples / batch_size) must be <= "
            f"{LARGEST_NUM_STEPS:,}, found {size:g}: the keys of the steps alone would "
            f"take {16.0 * size:.3g} bytes. Use larger batches or fewer epochs."
        )
    if isinstance(use.sampling, Participation):
        use.sampling.check_accounting(use.num_steps)
    return use


def _checked(
    participation: Participation,
    num_steps: int | None,
    num_examples: int | None,
    batch_size: int | None,
) -> DataUse:
    """A participation with its number of steps and the expected batch size."""
    for name, value in (("batch_size", batch_size), ("num_examples", num_examples)):
        stated = getattr(participation, name, None)
        if stated is not None and value not in (None, stated):
            raise ValueError(f"The participation has {name} = {stated}, found {value}.")
    steps = participation.run_steps() if num_steps is None else num_steps
    if steps is None:
        raise ValueError("num_steps is missing: it is never inferred.")
    participation.validate_num_steps(steps)
    if batch_size is not None:
        check_positive("batch_size", batch_size)
    expected = participation.expected_batch_size()
    if expected is None and batch_size is not None:
        expected = float(batch_size)
    if num_examples is None:
        num_examples = getattr(participation, "num_examples", None)
    return DataUse(participation, steps, num_examples, expected)


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
        if epsilon > _PROMISES_NOTHING:
            warnings.warn(
                f"epsilon = {epsilon:g} promises nothing to a person: an attacker may "
                f"find out nearly for certain whether their record was used. Usual "
                f"values are below 10.",
                stacklevel=3,
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
