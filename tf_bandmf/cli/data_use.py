"""How the data are used: `--examples --batch-size --epochs`, or `--steps` with rates."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

from tf_bandmf.cli.parsing import BadArguments
from tf_bandmf.participation import MinSep
from tf_bandmf.participation.scheme import DEFAULT_SAMPLING, Scheme

_BOTH_WAYS = (
    "--examples, --batch-size and --epochs, or --steps and --min-separation "
    "(and --max-participations)"
)


@dataclasses.dataclass(frozen=True)
class Data:
    """A training set, used in whole epochs.

    Attributes:
      num_examples: m.
      batch_size: B.
      epochs: k.
    """

    num_examples: int
    batch_size: int
    epochs: int

    def scheme(self, sampling: str = DEFAULT_SAMPLING) -> Scheme:
        """The data under a sampling.

        Raises:
          ValueError: if the numbers do not fit.
        """
        return Scheme(sampling, self.num_examples, self.batch_size, self.epochs)

    @property
    def num_steps(self) -> int:
        """The number of training steps."""
        return self.scheme().num_steps

    @property
    def expected_participations(self) -> Fraction:
        """The participations that one example has on average under Poisson sampling."""
        return Fraction(self.num_steps * self.batch_size, self.num_examples)


@dataclasses.dataclass(frozen=True)
class Rates:
    """Steps, and how often one example takes part in them.

    Attributes:
      num_steps: n.
      separation: b.
      expected_participations: k, not above `max_participations`.
      max_participations: a whole number; None for ceil(n / b).
      batch_size: B, or None.
    """

    num_steps: int
    separation: int
    expected_participations: Fraction
    max_participations: int | None
    batch_size: int | None

    def min_sep(self) -> MinSep:
        """The separation, asserted by the caller.

        Raises:
          ValueError: if the numbers do not fit.
        """
        participation = MinSep(self.separation, self.max_participations)
        participation.validate_num_steps(self.num_steps)
        return participation


def of_options(
    examples: int | None,
    batch_size: int | None,
    epochs: Fraction | None,
    steps: int | None,
    min_separation: int | None,
    max_participations: int | None,
) -> Data | Rates:
    """Reads the options of `options.data_use`.

    Raises:
      BadArguments: if some are missing or contradict others.
      ValueError: if a number is out of range.
    """
    if (examples is None) == (steps is None):
        raise BadArguments(f"Say how the data are used in one way: {_BOTH_WAYS}.")
    if examples is not None:
        if min_separation is not None or max_participations is not None:
            raise BadArguments(
                "--min-separation and --max-participations go with --steps: --examples, "
                "--batch-size and --epochs say how often an example takes part."
            )
        if batch_size is None or epochs is None:
            raise BadArguments("--examples needs --batch-size and --epochs, too.")
        if epochs.denominator != 1 or epochs < 1:
            raise BadArguments(
                f"epochs must be a whole number >= 1, found {_text(epochs)}."
            )
        data = Data(examples, batch_size, int(epochs))
        data.scheme()  # checks the numbers
        return data
    assert steps is not None
    if epochs is not None:
        if min_separation is not None or max_participations is not None:
            raise BadArguments(
                "With --steps give either --epochs or --min-separation and "
                "--max-participations."
            )
        if not 0 < epochs <= steps:
            raise BadArguments(
                f"epochs must be > 0 and <= num_steps = {steps}, found {_text(epochs)}."
            )
        separation = max(1, int(steps / epochs))
        return Rates(steps, separation, epochs, math.ceil(epochs), batch_size)
    if min_separation is None:
        raise BadArguments("--steps needs --min-separation, or --epochs.")
    most = MinSep(min_separation, max_participations)
    most.validate_num_steps(steps)
    expected = Fraction(most.participations(steps))
    return Rates(steps, min_separation, expected, max_participations, batch_size)


def _text(value: Fraction) -> str:
    return f"{value.numerator}" if value.denominator == 1 else f"{float(value):g}"
