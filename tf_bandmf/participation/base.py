"""The base class of participations, and the registry of its subclasses."""

from __future__ import annotations

import abc
import dataclasses
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from tf_bandmf.analysis.sensitivity import sensitivity
from tf_bandmf.matrices import LowerTriangular

if TYPE_CHECKING:
    from tf_bandmf.accounting.base import Accountant
    from tf_bandmf.sampling.samplers import Sampler, Words


class Participation(abc.ABC):
    """A rule for when an example participates, with its sampler and its accountant.

    Each subclass has its own module, and `register` adds it to the registry. Plans,
    tables, strategy="auto", the command line and tests use only the interface of this
    base class.

    Attributes:
      kind: name of the class in saved files.
      sampling: name for `tf_bandmf.plan(sampling=...)` and the command line; None if
        the number of examples, the batch size and the epochs do not determine the
        participation.
      demands: what the sampler requires of the data pipeline, as the end of a sentence
        that starts with "It demands".
      has_fixed_positions: True if all participations of an example are among the steps
        `i, i + b, i + 2b, ...` for one `i < b`, as in a fixed epoch order.
      has_schedule: True if the library composes the batches, False if the caller does.
      has_secret_sampler: True if the sampler's random numbers are secret.
      is_cyclic: True if the examples are split into as many parts as the strategy has
        bands.
      is_amplified: True if the accountant relies on the randomness of the sampler.
      is_simulated: True if the accountant uses a simulation. Its result is then an
        estimate, or a bound if a `confidence` is passed.
      bound_name: name of the default accountant if its guarantee is always only a
        bound; None if the guarantee is exact whenever the sensitivity is exact.
    """

    kind: ClassVar[str]
    sampling: ClassVar[str | None] = None
    demands: ClassVar[str] = "that the caller enforces the separation"
    has_fixed_positions: ClassVar[bool] = False
    has_schedule: ClassVar[bool] = True
    has_secret_sampler: ClassVar[bool] = True
    is_cyclic: ClassVar[bool] = False
    is_amplified: ClassVar[bool] = False
    is_simulated: ClassVar[bool] = False
    bound_name: ClassVar[str | None] = None

    @abc.abstractmethod
    def separation(self) -> int:
        """Returns b: an example's participations are at least b steps apart."""

    def participations(self, num_steps: int) -> int:
        """Returns k, the maximum number of participations of one example in a run.

        This default implementation returns the maximum that the separation permits.
        """
        return -(-num_steps // self.separation())

    @abc.abstractmethod
    def validate_num_steps(self, num_steps: int) -> None:
        """Raises ValueError if the participation does not permit `num_steps` steps."""

    def check_accounting(self, num_steps: int) -> None:  # noqa: B027
        """Raises ValueError if no strategy's accountant permits `num_steps` steps.

        Callers use this check before they build a strategy.
        """

    @abc.abstractmethod
    def describe(self) -> str:
        """Returns a description of the sampler for the privacy statement."""

    def accountant(
        self, matrix: LowerTriangular, confidence: float | None = None
    ) -> Accountant:
        """Returns the accountant of a run with this sampler.

        This default implementation claims no amplification: it analyzes a run as one
        Gaussian mechanism with the strategy's sensitivity under the participation.

        Args:
          matrix: the strategy matrix C.
          confidence: confidence of a simulated bound, or None for an estimate.
            Accountants without simulation ignore this argument.

        Raises:
          ValueError: if the participation is inconsistent with the strategy.
        """
        # The import is lazy because importing dp-accounting takes a second.
        from tf_bandmf.accounting.base import GaussianAccountant

        bound = sensitivity(matrix, self)
        is_exact = bound.is_exact and self.bound_name is None
        return GaussianAccountant(bound.value, is_exact, self.bound_name)

    @classmethod
    @abc.abstractmethod
    def example(cls, num_steps: int) -> Participation:
        """Returns a small instance for tests; `num_steps` is a multiple of 4."""

    def sampler(self, words: Words) -> Sampler:
        """Returns the sampler, which uses secret random words to draw batches.

        Raises:
          TypeError: if this participation leaves the choice of batches to the caller.
        """
        raise TypeError(self.no_schedule())

    def largest_batch_size(self, num_steps: int, overflow: float) -> int:
        """Returns a batch size that probably no batch of a run exceeds.

        The probability that any batch exceeds it is at most `overflow`.

        Raises:
          TypeError: if the caller composes the batches.
        """
        raise TypeError(self.no_schedule())

    def amplification(self) -> str:
        """Returns one sentence about the amplification that the accountant claims."""
        return "No amplification by sampling is claimed."

    @property
    def steps_per_epoch(self) -> int:
        """The number of steps of a pass over the data, exact or on average.

        Raises:
          TypeError: if the caller composes the batches.
        """
        if not self.has_schedule:
            raise TypeError(self.no_schedule())
        # Every participation with a schedule has `num_examples` and `batch_size`.
        use: Any = self
        return -(-use.num_examples // use.batch_size)

    @property
    def num_steps(self) -> int | None:
        """The number of steps of a run, or None if any number is possible."""
        return None

    def expected_batch_size(self) -> float | None:
        """Returns the expected number of examples per step, or None if it is unknown."""
        return None

    @classmethod
    def of_data(
        cls, num_examples: int, batch_size: int, epochs: int, num_parts: int | None
    ) -> Participation:
        """Returns a participation of this class for a data set.

        Args:
          num_examples: number of examples in the data set.
          batch_size: number of examples per step.
          epochs: number of epochs.
          num_parts: number of parts into which the examples are split; None unless the
            class attribute `is_cyclic` is True.

        Raises:
          ValueError: if the arguments are inconsistent.
          TypeError: if the class attribute `sampling` is None.
        """
        raise TypeError(f"{cls.__name__} has no of_data(). Call {cls.__name__}(...).")

    def to_config(self) -> dict[str, Any]:
        """Returns a dictionary of plain values that `from_config` accepts."""
        return {"kind": self.kind, **dataclasses.asdict(self)}  # type: ignore[call-overload]

    def no_schedule(self) -> str:
        """Returns the error message for participations without a batch schedule."""
        return (
            f"{type(self).__name__} has no batch schedule: the caller must compose the "
            f"batches and enforce the separation."
        )


DEFAULT_SAMPLING = "fixed-order"
# The registered classes, keyed by `kind` in PARTICIPATIONS and by `sampling` in NAMED.
PARTICIPATIONS: dict[str, type[Participation]] = {}
NAMED: dict[str, type[Participation]] = {}
_Class = TypeVar("_Class", bound=type[Participation])


def register(cls: _Class) -> _Class:
    """Registers a participation for saved files, plans, the command line and tests.

    Raises:
      TypeError: if the class does not implement an abstract method, or if it claims
        amplification and does not implement `accountant`.
      ValueError: if another class has the same `kind` or `sampling`.
    """
    if inspect.isabstract(cls):
        missing = ", ".join(sorted(cls.__abstractmethods__))
        raise TypeError(f"{cls.__name__} lacks the methods {missing}.")
    if cls.is_amplified and cls.accountant is Participation.accountant:
        raise TypeError(
            f"{cls.__name__} must implement accountant(), because is_amplified is True."
        )
    for table, name in ((PARTICIPATIONS, cls.kind), (NAMED, cls.sampling)):
        if name is not None and table.setdefault(name, cls) is not cls:
            raise ValueError(
                f"{cls.__name__} and {table[name].__name__} share the name {name!r}."
            )
    return cls


def samplings() -> tuple[str, ...]:
    """Returns the names of all samplings, with the default first."""
    others = sorted(set(NAMED) - {DEFAULT_SAMPLING})
    return (DEFAULT_SAMPLING, *others)


def from_config(config: Mapping[str, Any]) -> Participation:
    """Rebuilds a participation from its `to_config` dictionary.

    Raises:
      ValueError: if the kind is unknown or a field is invalid.
    """
    arguments = dict(config)
    kind = arguments.pop("kind", None)
    if kind not in PARTICIPATIONS:
        raise ValueError(f"Participation {kind!r} is unknown. Upgrade tf-bandmf.")
    return PARTICIPATIONS[kind](**arguments)
