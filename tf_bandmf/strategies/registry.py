"""The registry of strategy families, with one `Family` record per family.

All code outside a family's module uses the family only through this record. This holds
for plans, tables, the mechanism "auto", the search for the number of bands, the command
line and the contract tests. To add a family, write a module that ends with
`register(Family(...))`, and import it in `strategies/__init__.py`.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
from typing import Any, Callable, Literal

from tf_bandmf.matrices.threads import one_blas_thread
from tf_bandmf.participation import Participation
from tf_bandmf.strategies import cache
from tf_bandmf.strategies.base import Strategy
from tf_bandmf.workloads import Workload

# The maximum number of bands to try if the user does not pass `bands`. More bands may
# need more memory, so the user has to ask for them.
_LARGEST_DEFAULT_BANDS = 32
# Words that may follow the numbers in a specification such as "bisr:4:normalized:max".
# Each comes with the option that it sets, and the option's value. The words are in
# reverse order, because `parse` reads a specification from its end.
_FLAGS: tuple[tuple[str, str, Any], ...] = (
    ("max", "objective", "max"),
    ("normalized", "column_normalized", True),
)
# The options of a family other than the numbers that follow its name in a
# specification.
_OTHERS = ("column_normalized", "objective", "epsilon", "delta")


@dataclasses.dataclass(frozen=True)
class Option:
    """An option whose value follows the name of the family, like the 4 in "bisr:4".

    Attributes:
      name: name of the argument of `Family.build` that gets the value. The argument
        "bands" is a number of diagonals, for which comparisons may try several values.
        Any other integer argument is a number of stored vectors, for which comparisons
        try only the default. A float argument is a fraction in [0, 1).
      convert: type of the value: int or float.
      default: default value of an integer option other than "bands".
    """

    name: str
    convert: Callable[[str], Any] = int
    default: int | None = None

    @property
    def example(self) -> str:
        """A valid value of the option, as a string, for messages and tests."""
        return "0.9" if self.convert is float else "4"


@dataclasses.dataclass(frozen=True)
class Refinement:
    """The relation of a slow family to a fast family with a slightly larger error.

    The fast family's error is at most a few percent above that of the slow family.
    Therefore, on workloads without a learning-rate schedule, the mechanism "auto" first
    tries the fast family. If the fast family's error is far above the smallest error of
    all families tried, "auto" skips the slow family. Otherwise, "auto" also tries the
    slow family. Under cyclic sampling, the slow family then gets as many bands as the
    fast family.

    Attributes:
      of: name of the fast family.
      largest_work: maximum `n * bands^2` for which "auto" tries the slow family,
        where n is the number of steps.
    """

    of: str
    largest_work: int


@dataclasses.dataclass(frozen=True)
class Family:
    """A family of strategies, with its builder, its names and its role in comparisons.

    Attributes:
      name: name by which users request the family; also the `Strategy.family` of its
        strategies.
      build: function of workload, participation and options that returns the strategy.
        Its signature determines which options it takes, from among `numbers`,
        "epsilon", "delta", "column_normalized" and "objective". Every option must be
        optional. If `is_optimized` is True and "bands" is one of `numbers`,
        `build_strategy` always passes "bands".
      numbers: the options whose values follow the name, in order, as in "bifr:4:0.6".
      aliases: other names by which users can request the family.
      auto: rank in the tables of the mechanism "auto" and of `compare`, where a family
        comes after the family that it refines; None if the family is in neither table.
      banded: "C" if the strategy matrix `C` has few bands, so that cyclic sampling
        amplifies privacy. "inverse" if `C^-1` has few bands, so that the noise
        generator regenerates earlier normal variates instead of storing noise vectors.
        None if neither matrix has few bands.
      is_optimized: True if `build` optimizes numerically. Results are then cached, and
        more bands (up to the min separation) never increase the error.
      refinement: relation to a faster family with a slightly larger error, if this
        family takes minutes to optimize. None if there is no such faster family.
    """

    name: str
    build: Callable[..., Strategy]
    numbers: tuple[Option, ...] = ()
    aliases: tuple[str, ...] = ()
    auto: int | None = None
    banded: Literal["C", "inverse"] | None = None
    is_optimized: bool = False
    refinement: Refinement | None = None

    @functools.cached_property
    def options(self) -> tuple[str, ...]:
        """The names of the options that `build` takes."""
        names = [one.name for one in self.numbers] + [*_OTHERS]
        parameters = inspect.signature(self.build).parameters
        return tuple(name for name in parameters if name in names)

    @property
    def has_drafts(self) -> bool:
        """True if `build` takes `is_draft`, which makes an optimization stop early.

        Drafts take less time and are precise enough to compare strategies. The
        mechanism "auto" compares drafts, and optimizes only the best one to full
        precision.
        """
        return "is_draft" in inspect.signature(self.build).parameters

    @property
    def needs_budget(self) -> bool:
        """True if `build` takes a privacy budget, on which the best strategy depends.

        The mechanism "auto" compares such families only if the accountant simulates the
        amplification. Otherwise, the required noise is the product of a norm of the
        matrix and a factor that depends only on the budget. The same strategy is then
        the best for every budget.
        """
        return "epsilon" in self.options

    @property
    def has_bands(self) -> bool:
        """True if the number after the family's name is a number of bands."""
        return bool(self.numbers) and self.numbers[0].name == "bands"

    @property
    def examples(self) -> tuple[str, ...]:
        """Example specifications, without and with normalized columns, for tests."""
        name = ":".join([self.name, *(one.example for one in self.numbers[:1])])
        normalized = "column_normalized" in self.options
        return (name, f"{name}:normalized") if normalized else (name,)


# The families by name, without aliases.
FAMILIES: dict[str, Family] = {}


def register(family: Family) -> Family:
    """Registers a family under its name and its aliases.

    Raises:
      ValueError: if a name is already registered, or if `build` has no argument for one
        of the options in `numbers`.
    """
    for option in family.numbers:
        if option.name not in family.options:
            raise ValueError(
                f"Strategy family {family.name!r} lists {option.name!r} in its "
                f"numbers, but its build function lacks this argument. Add the argument."
            )
    taken = set(names()) & {family.name, *family.aliases}
    if taken:
        raise ValueError(f"Do not reuse the strategy names {', '.join(sorted(taken))}.")
    FAMILIES[family.name] = family
    return family


def names() -> list[str]:
    """Returns all names and aliases of families, sorted."""
    aliases = (alias for family in FAMILIES.values() for alias in family.aliases)
    return sorted([*FAMILIES, *aliases])


def family_of(name: str) -> Family:
    """Returns the family with a name or an alias.

    Raises:
      ValueError: if no family has this name.
    """
    for family in FAMILIES.values():
        if name == family.name or name in family.aliases:
            return family
    close = difflib.get_close_matches(name, names(), n=1)
    raise ValueError(
        f"mechanism must be one of {', '.join(names())}, found {name!r}."
        + (f" Did you mean {close[0]}?" if close else "")
    )


def auto_names(is_simulated: bool = False) -> tuple[str, ...]:
    """Returns the names of the families that the mechanism "auto" compares.

    They are sorted by `Family.auto`, their rank in tables.

    Args:
      is_simulated: True if the accountant simulates the amplification. Only then does
        the result include families whose best strategy depends on the privacy budget.
    """
    ranked = [family for family in FAMILIES.values() if family.auto is not None]
    ranked.sort(key=lambda family: (family.auto, family.name))
    return tuple(one.name for one in ranked if is_simulated or not one.needs_budget)


def build_strategy(
    mechanism: str,
    workload: Workload,
    participation: Participation,
    is_draft: bool = False,
    **options: Any,
) -> Strategy:
    """Builds the strategy of a mechanism for a workload and a participation.

    Optimized strategies are cached; see `strategies.cache`.

    Args:
      mechanism: name of a family.
      workload: the workload, which also determines the number of steps.
      participation: the participation, on which optimized strategies depend.
      is_draft: True to optimize only to the precision that is needed to compare
        strategies. It has no effect on families without drafts.
      **options: those options that the mechanism takes: `bands`, `lambda_`, `gamma`,
        `num_buffers`, `column_normalized`, `objective`, `epsilon`, `delta`. An option
        that is None is ignored.

    Raises:
      ValueError: for an unknown mechanism, or an option that the mechanism does not take.
    """
    family = family_of(mechanism)
    given = {name: value for name, value in options.items() if value is not None}
    unknown = sorted(set(given) - set(family.options))
    if unknown:
        takes = ", ".join(sorted(family.options)) or "no options"
        raise ValueError(f"{mechanism} takes {takes}, found {', '.join(unknown)}.")
    if not family.is_optimized:
        with one_blas_thread():
            return family.build(workload, participation, **given)
    if family.has_bands:
        given.setdefault("bands", default_bands(workload, participation))
    if family.has_drafts:
        given["is_draft"] = is_draft
    key = cache.fingerprint(family.name, workload, participation, given)
    strategy = cache.load(key, workload)
    if strategy is None:
        with one_blas_thread():
            strategy = family.build(workload, participation, **given)
        cache.store(key, strategy)
    return strategy


def parse(specification: str) -> tuple[str, dict[str, Any]]:
    """Reads a mechanism and its options from "name[:value][:normalized][:max]".

    An example is "bisr:4". The value is the number of bands, lambda for "lambda_cgd",
    or the number of buffers for "blt" and "amplified". If it is omitted, the mechanism
    chooses it. "bifr" takes a second value, gamma. The suffix ":normalized" scales the
    columns of `C` to norm 1. For families that optimize an objective, the suffix ":max"
    selects the maximum error over all steps (MaxSE) instead of the mean error (RMSE).

    Returns:
      The name and the options of the mechanism, for `build_strategy`.

    Raises:
      ValueError: if the name is unknown, if a value is not a number, or if the
        mechanism does not take the value or the suffix.
    """
    if not isinstance(specification, str):
        raise ValueError(
            f'mechanism must be a name, such as "bisr:4", or a Strategy, found '
            f"{specification!r}."
        )
    name, *values = specification.strip().split(":")
    family = family_of(name)
    options: dict[str, Any] = {}
    for flag, option_name, option_value in _FLAGS:
        if not values or values[-1] != flag:
            continue
        values.pop()
        options[option_name] = option_value
        if option_name not in family.options:
            raise ValueError(f"Mechanism {name!r} has no suffix ':{flag}'. Omit it.")
    if not values:
        return name, options
    if len(values) > len(family.numbers):
        most = ("no value", "one value", "two values")[len(family.numbers)]
        raise ValueError(f"{name} takes {most}, found {specification!r}.")
    for option, value in zip(family.numbers, values):
        try:
            options[option.name] = option.convert(value)
        except ValueError:
            raise ValueError(
                f"The value of {option.name.strip('_').replace('num_', '')} in "
                f"{specification!r} must be a number, such as {option.example}."
            ) from None
    return name, options


def specification(strategy: Strategy) -> str:
    """Returns a strategy's name for tables, files and statements, such as "bisr:4".

    If the family is registered, `parse` can read this name. Otherwise the name is the
    result of `Strategy.describe()`.
    """
    family = FAMILIES.get(strategy.family)
    if family is None:
        return strategy.describe()
    parameters, name = dict(strategy.parameters), family.name
    for option in family.numbers:
        value = parameters.get(option.name.rstrip("_"))
        if value is None:
            break
        name += f":{value:.8g}" if isinstance(value, float) else f":{value}"
    # A family that always normalizes its columns has no "normalized" variant.
    has_variant = "column_normalized" in family.options
    is_normalized = has_variant and parameters.get("column_normalized")
    return name + (":normalized" if is_normalized else "")


def powers_of_two(largest: int) -> list[int]:
    """Returns 1, 2, 4, ... up to `largest`."""
    return [2**i for i in range(largest.bit_length()) if 2**i <= largest]


def default_bands(workload: Workload, participation: Participation) -> int:
    """Returns the maximum number of bands to try if the user does not pass `bands`."""
    separation = participation.separation()
    return min(_LARGEST_DEFAULT_BANDS, separation, workload.num_steps)


def with_best_bands(build: Callable[..., Strategy]) -> Callable[..., Strategy]:
    """Returns a function that calls `build`, and can choose the number of bands.

    Args:
      build: function of the workload, the number of bands and `column_normalized`. It
        computes a strategy without numerical optimization.

    Returns:
      A function that can be the `build` of a `Family`. If the number of bands is
      omitted, it uses the power of two with the smallest RMSE.
    """

    def best(
        workload: Workload,
        participation: Participation,
        bands: int | None = None,
        column_normalized: bool = False,
    ) -> Strategy:
        if bands is not None:
            return build(workload, bands, column_normalized)
        sizes = powers_of_two(default_bands(workload, participation))
        candidates = [build(workload, size, column_normalized) for size in sizes]
        return min(candidates, key=lambda s: s.rmse(workload, participation))

    return best
