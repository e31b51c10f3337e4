"""Tables that compare mechanisms with their best parameters.

    use = dict(num_examples=60_000, batch_size=512, epochs=10)
    table = compare(["identity", "bisr", "blt"], epsilon=8, delta=1e-5, **use)
    print(table)                  # text
    table.best()                  # the row that plan("auto") chooses
    table.to_records()            # dictionaries of plain values, for JSON

`plan("auto")` and `advise` choose from these tables. The errors measure only the noise,
per coordinate, for `l2_norm_clip = 1`, and do not depend on the absolute learning rate.
With amplification, the required noise depends on more than the strategy's sensitivity,
because strategies with fewer bands (arXiv:2306.08153, Appendix F.4) or a smaller lambda
(arXiv:2601.22334, section 5.1) gain more from amplification. To save time, the noise of
each row is then computed only to within one percent (`is_rough`); a plan recomputes the
noise of the chosen row at full accuracy.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tf_bandmf import workloads
from tf_bandmf.accounting.checks import check_positive, check_word, whole_number
from tf_bandmf.accounting.guarantee import ZERO_OUT
from tf_bandmf.analysis import error
from tf_bandmf.matrices.threads import one_blas_thread
from tf_bandmf.participation import Participation
from tf_bandmf.planning.arguments import DataUse, check_budget, resolve_data
from tf_bandmf.planning.texts import phrase, phrases
from tf_bandmf.strategies import Family, Strategy, registry
from tf_bandmf.strategies.one_parameter import LONG_RUN
from tf_bandmf.workloads import Workload

# The default maximum number of noise vectors that a mechanism may store if the search
# chooses its number of bands or buffers.
MEMORY_VECTORS = 31
_LOG = logging.getLogger("tf_bandmf")
# The cheapest mechanism is chosen among those whose error is within this factor of the
# smallest error.
_AS_GOOD = 1.01
# The time to read a stored noise vector, relative to the time to regenerate it.
_COST_OF_KEPT = 0.05
# Maps each objective to the attribute of `Row` that it minimizes, and to the printed
# name of this error.
_COLUMNS = {"mean": ("rmse", "RMSE"), "max": ("max_se", "MaxSE")}
# The tolerance on log(1 - x) in the search for the best value x of a parameter that is
# below 1, such as lambda.
_COARSE = {"xatol": 0.1}
# Some families have a refinement: a slower family whose error is a few percent smaller.
# "auto" does not try a refinement if the error of the original family exceeds the
# smallest error by more than this factor.
_REFINEMENT = 1.1


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of a comparison: one mechanism with its parameters, errors and costs.

    Attributes:
      mechanism: name of the mechanism for `tf_bandmf.plan`, such as "bisr:4".
      sampling: name of the sampling; None if the caller creates the batches.
      adjacency: definition of neighboring data sets that the noise is calibrated for.
      batch_size: expected number of examples of a step; None if unknown.
      num_steps: n, the number of steps.
      bands: number of bands of the strategy C, or of C^-1 if only the inverse is
        banded; None if neither is banded.
      rmse: root mean squared error over all steps, at `noise_stddev`.
      max_se: the root of the largest squared error of any step, at `noise_stddev`.
      sensitivity: the sensitivity of C under the participation, or an upper bound on
        it.
      sensitivity_is_exact: False if `sensitivity` is an upper bound.
      noise_multiplier: `noise_stddev` divided by `sensitivity`, as in a plan.
      noise_stddev: noise standard deviation for the raw C (not scaled to sensitivity 1)
        and l2_norm_clip = 1.
      is_rough: True if the noise is accurate only to one percent, because exact
        accounting is slow.
      converged: True if the optimizer converged, or the mechanism has a closed form.
      optimality_gap: certified relative difference from the smallest squared error in
        the class `optimal_among`; None without a certificate.
      optimal_among: class of strategies that `optimality_gap` refers to, such as "4
        bands, columns of equal norm"; None without a certificate.
      memory_vectors: number of model-sized vectors that are stored between steps.
      regenerations_per_step: maximum number of earlier noise vectors that a step
        regenerates.
      seconds: time that it took to find the strategy, in seconds.
      strategy: the strategy, optimized just enough to rank the rows; None if the row was
        restored from a file.
    """

    mechanism: str
    sampling: str | None
    adjacency: str
    batch_size: float | None
    num_steps: int
    bands: int | None
    rmse: float
    max_se: float
    sensitivity: float
    sensitivity_is_exact: bool
    noise_multiplier: float
    noise_stddev: float
    is_rough: bool
    converged: bool
    optimality_gap: float | None
    optimal_among: str | None
    memory_vectors: int
    regenerations_per_step: int
    seconds: float
    strategy: Strategy | None = dataclasses.field(
        default=None, repr=False, compare=False
    )

    def error(self, objective: str) -> float:
        """Returns the RMSE for the objective "mean", and the MaxSE for "max"."""
        return float(getattr(self, _COLUMNS[objective][0]))

    @property
    def cost(self) -> float:
        """The time that a step needs for stored and regenerated noise vectors.

        The unit is the time to generate one noise vector.
        """
        return self.regenerations_per_step + _COST_OF_KEPT * self.memory_vectors


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A table with a row for each usable mechanism, and why others are excluded.

    Attributes:
      title: title of the table.
      rows: one row for each usable mechanism, with the chosen values of its parameters.
      excluded: for each mechanism without a row, its name and the reason.
      objective: "mean" if the best row minimizes the RMSE, "max" for the MaxSE.
    """

    title: str
    rows: tuple[Row, ...]
    excluded: Mapping[str, str]
    objective: str = "mean"

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, mechanism: str) -> Row:
        for row in self.rows:
            if row.mechanism == mechanism:
                return row
        names = ", ".join(row.mechanism for row in self.rows)
        raise KeyError(f"mechanism must be one of {names}, found {mechanism!r}.")

    def value(self, row: Row) -> float:
        """Returns the RMSE or the MaxSE of a row, depending on the objective."""
        return row.error(self.objective)

    def best(self) -> Row:
        """Returns the cheapest row whose error is within 1% of the smallest error."""
        least = min(map(self.value, self.rows))
        good = [row for row in self.rows if self.value(row) <= _AS_GOOD * least]
        return min(good, key=lambda row: (row.cost, self.value(row)))

    @property
    def mechanism(self) -> str:
        """The name of the mechanism in the best row."""
        return self.best().mechanism

    @property
    def reason(self) -> str:
        """A sentence with the reason for the choice of the best row."""
        row, least = self.best(), min(self.rows, key=self.value)
        facts = {"row": least, "chosen": row, "best": self._label(row), "second": ""}
        facts |= {"error": _COLUMNS[self.objective][1], "value": self.value(row)}
        facts |= {"other": self._label(least), "least": self.value(least)}
        others = [other for other in self.rows if other not in (row, least)]
        if others:
            second = min(others, key=self.value)
            more = 100.0 * (self.value(second) / self.value(row) - 1.0)
            facts["second"] = f"; {self._label(second)} has {more:.2g}% more"
        more = 100.0 * (self.value(row) / self.value(least) - 1.0)
        kind = "least" if row is least else "cheap"
        return phrase("best row", kind, more=more, **facts)

    def _label(self, row: Row) -> str:
        """Returns a row's mechanism, with its sampling if the rows differ in sampling."""
        is_one = len({other.sampling for other in self.rows}) == 1
        return row.mechanism if is_one else f"{row.mechanism} ({row.sampling})"

    def to_records(self) -> list[dict[str, Any]]:
        """Returns one dictionary per row, with finite values that JSON can store."""
        names = [field.name for field in dataclasses.fields(Row) if field.repr]
        return [{name: getattr(row, name) for name in names} for row in self.rows]

    def to_record(self) -> dict[str, Any]:
        """Returns the comparison as a dictionary of finite values for JSON."""
        chosen = {"mechanism": self.mechanism, "reason": self.reason}
        plain = {"excluded": dict(self.excluded), "rows": self.to_records()}
        return {**vars(self), **plain, **chosen}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Comparison:
        """Restores a comparison from the result of `to_record`."""
        rows = tuple(Row(**row) for row in record["rows"])
        return cls(record["title"], rows, record["excluded"], record["objective"])

    def __str__(self) -> str:
        cells = [_texts(row) for row in self.rows]
        lines = [list(cells[0]), *(list(texts.values()) for texts in cells)]
        excluded = (
            f"Not compared: {name}: {why}" for name, why in self.excluded.items()
        )
        table = plain_table(self.title, lines)
        return "\n".join([table, *excluded, self.reason])


def plain_table(title: str, lines: Sequence[Sequence[str]]) -> str:
    """Returns a text table: a title and aligned columns, the first one left-aligned."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    first, *others = widths
    form = "  ".join([f"{{:<{first}}}", *(f"{{:>{width}}}" for width in others)])
    return "\n".join([title, *(form.format(*line).rstrip() for line in lines)])


def compare(
    mechanisms: Sequence[str | Strategy] | None = None,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    num_examples: int | None = None,
    batch_size: int | None = None,
    epochs: int | None = None,
    num_steps: int | None = None,
    sampling: str | Participation | Sequence[str] | None = None,
    workload: Workload | str | None = None,
    objective: str = "mean",
    max_memory_vectors: int | None = None,
) -> Comparison:
    """Compares mechanisms with their best parameters, for one budget and data set.

    If a name has no parameters ("bisr"), the function chooses them, for example lambda,
    or the number of bands or buffers. With cyclic sampling, it also chooses the number
    of parts. A mechanism that does not fit the sampling, or whose accounting fails, has
    no row, and `Comparison.excluded` contains the reason.

    Args:
      mechanisms: names in the syntax of `registry.parse`, or strategies. None for all
        mechanisms that "auto" compares; these are optimized only as accurately as the
        choice requires.
      epsilon: epsilon of the budget, > 0; requires delta. Without a budget, the noise
        multiplier is 1.
      delta: delta of the budget, in [1e-20, 1).
      num_examples: m, size of the training set.
      batch_size: B, examples per step.
      epochs: k, passes over the data.
      num_steps: n, the number of steps; only with a `Participation`.
      sampling: name or `Participation`, as for `tf_bandmf.plan`; or several names, whose
        rows are in one table. A sampling whose adjacency differs from the first
        sampling's adjacency has no rows, because its numbers are not comparable.
      workload: the linear map by which the optimizer turns noisy gradients into models,
        as for `tf_bandmf.plan`.
      objective: "mean" for the RMSE, "max" for the MaxSE.
      max_memory_vectors: maximum number of model-sized vectors that the noise may store
        between steps. By default, the maximum is 31 if this function chooses the number
        of bands or buffers; if a name specifies this number ("bsr:64"), there is no
        maximum. A step may also regenerate up to max(31, `max_memory_vectors`)
        vectors, which are not stored.

    Raises:
      ValueError: on invalid arguments, or if no mechanism has a row.
      ArithmeticError: if the only mechanism in the list cannot be computed.
    """

    def one(sampling: str | Participation | None) -> Comparison:
        data = resolve_data(num_examples, batch_size, epochs, num_steps, sampling)
        budget = None
        if epsilon is not None or delta is not None:
            budget = epsilon, check_budget(epsilon, delta, None, data.num_examples)
        elif data.participation(1).is_amplified:
            raise ValueError("This sampling needs a budget. Give epsilon and delta.")
        resolved = workloads.resolve(workload, data.num_steps)
        search = Search(resolved, data, budget, objective, max_memory_vectors)  # type: ignore[arg-type]
        return search.table(mechanisms)

    if sampling is None or isinstance(sampling, (str, Participation)):
        return one(sampling)
    if not isinstance(sampling, (list, tuple)) or not sampling:
        raise ValueError(f"sampling needs names such as 'poisson', found {sampling!r}.")
    tables, excluded = _each("sampling", sampling, one)
    adjacency, rows = tables[0].rows[0].adjacency, list[Row]()
    for table in tables:
        name = str(table.rows[0].sampling)
        excluded |= {f"{of}, {name}": why for of, why in table.excluded.items()}
        if table.rows[0].adjacency == adjacency:
            rows += table.rows
        else:
            excluded[name] = "its adjacency differs from that of the first sampling."
    whole = dataclasses.replace(tables[0], rows=tuple(rows), excluded=excluded)
    best = next(table for table in tables if whole.best() in table.rows)
    return dataclasses.replace(whole, title=best.title)


def _each(
    what: str, given: Iterable[Any], make: Callable[[Any], Any]
) -> tuple[list[Any], dict[str, str]]:
    """Calls `make` for each item of `given`, and goes on if a call raises an error.

    Args:
      what: what the items are, for the error message.
      given: the items.
      make: function of one item.

    Returns:
      The results, and a dictionary from the name of each failed item to its error
      message.

    Raises:
      ValueError: if `make` fails for all items.
      ArithmeticError: if `given` has a single item and `make` raises this error for it.
    """
    made, failed = list[Any](), dict[str, Exception]()
    for one in given:
        try:
            made.append(make(one))
        except (ValueError, ArithmeticError) as reason:
            failed[getattr(one, "family", str(one))] = reason
    if not made:
        first, *others = failed.values()
        if not others:
            raise first
        reasons = " ".join(f"{name}: {why}" for name, why in failed.items())
        raise ValueError(f"No {what} can be used. The reasons: {reasons}") from first
    return made, {name: str(why) for name, why in failed.items()}


@dataclasses.dataclass
class Search:
    """The search for the best mechanism and parameters, for one sampling and budget.

    Attributes:
      workload: A, the workload matrix.
      data: how the run uses the data.
      budget: epsilon and delta; None to compare at noise multiplier 1.
      objective: "mean" for the RMSE, "max" for the MaxSE.
      max_memory_vectors: maximum number of model-sized vectors that the noise may store
        between steps; with None, the maximum is 31 and applies only if the search
        chooses the number of bands or buffers.

    Raises:
      ValueError: if an argument is invalid.
    """

    workload: Workload
    data: DataUse
    budget: tuple[float, float] | None
    objective: str = "mean"
    max_memory_vectors: int | None = None
    # True while the mechanisms of "auto" are compared. Then the memory limit applies to
    # all of them. To save time, slow families and long runs are compared by strategies
    # that are not fully optimized (drafts), if the family supports this.
    _is_auto: bool = False
    # The maximum number of vectors to store, from `max_memory_vectors`; 31 by default.
    _limit: int = MEMORY_VECTORS
    _rows: list[Row] = dataclasses.field(default_factory=list)
    # Maps each class of accountants to a ratio: the noise of the last candidate,
    # divided by the `first_noise` of its accountant. The search for the noise of the
    # next candidate starts at this ratio times the `first_noise` of the next
    # accountant.
    _near: dict[type, float] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_word("objective", self.objective, _COLUMNS)
        self.data.sampling.validate_num_steps(self.workload.num_steps)
        if self.max_memory_vectors is not None:
            most = whole_number("max_memory_vectors", self.max_memory_vectors, least=0)
            self._limit = most

    @property
    def _is_searched(self) -> bool:
        """True if the best parameters must be found by a search.

        A search is needed if the noise depends on more than the strategy's sensitivity.
        """
        is_noisy = self.data.is_cyclic or self.data.sampling.is_simulated
        return self.budget is not None and is_noisy

    def table(self, mechanisms: Sequence[str | Strategy] | None = None) -> Comparison:
        """Returns a table of mechanisms, by default of all that "auto" compares.

        Raises:
          ValueError: if the list is empty, if a name is unknown, or if no mechanism has
            a row.
          ArithmeticError: if the only mechanism in the list cannot be computed.
        """
        self._is_auto = mechanisms is None
        if mechanisms is None:
            is_simulated = self.data.sampling.is_simulated
            mechanisms = registry.auto_names(is_simulated and not self.data.is_cyclic)
        is_list = isinstance(mechanisms, (list, tuple)) and len(mechanisms) > 0
        if not is_list or not all(isinstance(n, (str, Strategy)) for n in mechanisms):
            raise ValueError(
                f"mechanisms must be a list of at least one name or strategy, found "
                f"{mechanisms!r}. The names are {', '.join(registry.names())}."
            )
        for name in mechanisms:
            # All names are checked before the first mechanism is built.
            if isinstance(name, str):
                registry.parse(name)
        with one_blas_thread():
            _, excluded = _each("mechanism", mechanisms, self._add)
        table = Comparison("", tuple(self._rows), excluded, self.objective)
        budget = "noise 1 per unit of sensitivity"
        if self.budget is not None:
            budget = "epsilon {:g}, delta {:g}".format(*self.budget)
        name, steps = self.workload.name, self.workload.num_steps
        bands = table.best().strategy.matrix.bands  # type: ignore[union-attr]
        use = self.data.participation(bands).describe()
        title = f"{name} workload, {steps} steps, {budget}. {use}"
        return dataclasses.replace(table, title=title)

    def best(self, mechanisms: Sequence[str] | None) -> Strategy:
        """Returns the best strategy, fully optimized, with the table in its diagnostics."""
        table = self.table(mechanisms)
        strategy = table.best().strategy
        # Only rows that were restored from a file have no strategy.
        assert strategy is not None
        family = registry.family_of(strategy.family)
        if self._is_drafted(family):
            _, options = registry.parse(table.mechanism)
            strategy = self._strategy(family, options, is_draft=False)
        diagnostics = {**strategy.diagnostics, "choice": table.to_record()}
        return dataclasses.replace(strategy, diagnostics=diagnostics)

    def _value(self, row: Row) -> float:
        return row.error(self.objective)

    def _is_drafted(self, family: Family) -> bool:
        """Returns True if the search ranks this family by a draft.

        A draft is a strategy that is not fully optimized. For slow families and long
        runs, "auto" compares drafts to save time.
        """
        is_slow = family.refinement is not None or self.workload.num_steps > LONG_RUN
        return self._is_auto and family.has_drafts and is_slow

    def _add(self, mechanism: str | Strategy) -> None:
        """Adds the row of a mechanism; searches for the omitted parameters."""
        _LOG.info("comparing %s", getattr(mechanism, "family", mechanism))
        if isinstance(mechanism, Strategy):
            self._rows.append(self._row(mechanism, 0.0))
            return
        name, options = registry.parse(mechanism)
        family = registry.family_of(name)
        use = self.data.participation(1)
        is_certain = use.is_amplified and not use.is_simulated
        if (self.data.is_cyclic or is_certain) and family.banded != "C":
            raise ValueError(
                f"Sampling {use.sampling or type(use).__name__} needs a mechanism with "
                f"a banded matrix C, but {name} has none. Use balls-in-bins sampling."
            )
        if self._is_auto and family.refinement is not None:
            options.update(self._refined(family.name, family.refinement.of))
        self._rows.append(self._best(family, options))

    def _best(self, family: Family, options: Mapping[str, Any]) -> Row:
        """Returns the row with the best values of all omitted parameters.

        A parameter below 1, such as lambda, is searched only if the noise depends on
        more than the sensitivity; otherwise the family computes the best value. Only the
        maximum number of bands is tried if additional bands never increase the error.

        Args:
          family: family of the mechanism.
          options: the parameters that the caller specified.
        """
        opened = [one for one in family.numbers if one.name not in options]
        is_whole = len(opened) == len(family.numbers)
        is_fraction = bool(opened) and opened[0].convert is float
        if not opened or not (is_whole or (is_fraction and self._is_searched)):
            return self._candidate(family, options)
        if is_fraction:
            return self._best_fraction(family, opened[0].name, options)
        sizes, name = self._sizes(family), opened[0].name

        @functools.cache
        def row(at: int) -> Row:
            return self._best(family, {**options, name: sizes[at]})

        every = range(len(sizes))
        if not self._is_searched:
            return min(map(row, every), key=self._value)
        # As the number of bands increases, the error first falls and then rises.
        rises = lambda at: self._value(row(at + 1)) > self._value(row(at))  # noqa: E731
        return row(bisect.bisect_left(every[:-1], True, key=rises))

    def _refined(self, name: str, of: str) -> dict[str, Any]:
        """Returns the parameters with which to try `name`, a refinement of `of`.

        A refinement is a slower family with a slightly smaller error. With cyclic
        sampling, it uses as many bands as the row of the family `of`, so the result
        contains this number. Otherwise, the result is empty.

        Raises:
          ValueError: if the error of the family `of` is more than 10% above the
            smallest error of all rows.
        """
        coarse = [row for row in self._rows if row.mechanism.split(":")[0] == of]
        if not coarse or not self.workload.is_toeplitz:
            return {}
        excess = self._value(coarse[0]) / min(map(self._value, self._rows))
        if excess > _REFINEMENT:
            raise ValueError(
                f"{name} was not tried: it has at most a few percent less error than "
                f"{coarse[0].mechanism}, whose error is {100.0 * (excess - 1.0):.3g}% "
                f"above the smallest error. To use {name} anyway, pass {name!r}."
            )
        return {"bands": coarse[0].bands} if self.data.is_cyclic else {}

    def _most_bands(self, family: Family) -> int:
        """Returns the maximum number of bands for which the search builds a strategy.

        It is limited by memory, the number of steps, the sampling and the run time.
        """
        n, limit, sampling = self.workload.num_steps, self._limit, self.data.sampling
        if family.banded == "inverse":
            limit = max(MEMORY_VECTORS, limit)
        most = min(limit + 1, n)
        if self.data.is_cyclic:
            # A part must contain a whole batch. So there cannot be more parts than
            # batches in an epoch.
            most = min(most, sampling.num_examples // sampling.batch_size)  # type: ignore[attr-defined]
        elif family.is_optimized or family.banded != "inverse":
            most = min(most, sampling.separation())
        if family.refinement is not None and self._is_auto:
            most = min(most, int(math.sqrt(family.refinement.largest_work / n)))
        return max(most, 1)

    def _sizes(self, family: Family) -> list[int]:
        """Returns the numbers of bands to try, or the number of buffers.

        For a family without bands, the result contains a single number of buffers.

        Raises:
          ValueError: if no number is possible.
        """
        most = self._most_bands(family) if family.has_bands else 1
        if most < 2 and self._limit < 1:
            raise ValueError("max_memory_vectors must be at least 1, found 0.")
        if not family.has_bands:
            return [min(family.numbers[0].default or 1, self._limit)]
        if most < 2:
            raise ValueError("This run allows only 1 band. Use mechanism 'identity'.")
        sizes = registry.powers_of_two(most)
        if self._is_searched:
            return sizes[1:]
        # More bands never increase the error of an optimized family, or of "bifr" with
        # the best value of its parameter gamma. For "bifr", only the maximum is tried
        # in long runs, where trying a number of bands takes long.
        is_long = self.workload.num_steps > LONG_RUN and len(family.numbers) > 1
        return [most] if family.is_optimized or is_long else sizes

    def _best_fraction(
        self, family: Family, name: str, options: Mapping[str, Any]
    ) -> Row:
        """Returns the row with the best value of a parameter that is below 1.

        The family computes the value x that is best without amplification. With
        amplification, smaller values are better (arXiv:2601.22334, section 5.1), so
        this method searches the values v from 0 to x. The search varies log(1 - v),
        because values close to 1 matter most. It is not precise, because each
        evaluation needs a simulation.

        Args:
          family: family of the mechanism.
          name: name of the parameter, such as "lambda_".
          options: the parameters that are already chosen.
        """
        best = self._strategy(family, options, is_draft=False)
        largest = best.parameters[name.rstrip("_")]
        if not self._is_searched:
            given = {**options, name: _three_digits(largest)}
            return self._candidate(family, given)
        # Importing SciPy's optimizers is slow, so they are imported only if needed.
        from scipy import optimize

        made = list[Row]()

        def log_error(log_rest: float) -> float:
            given = {**options, name: _three_digits(1.0 - math.exp(log_rest))}
            try:
                with np.errstate(all="ignore"):
                    made.append(self._candidate(family, given))
            except (ValueError, ArithmeticError):
                # Some values are impossible. For example, if the gamma of "bifr" is near
                # 1, the matrix C overflows or has negative entries.
                return math.inf
            return math.log(self._value(made[-1]))

        bounds = math.log(1.0 - largest), 0.0
        optimize.minimize_scalar(
            log_error, bounds=bounds, method="bounded", options=_COARSE
        )
        if not made:
            # If no value is possible, this call raises an error that says why.
            return self._candidate(family, {**options, name: 0.0})
        return min(made, key=self._value)

    def _candidate(self, family: Family, options: Mapping[str, Any]) -> Row:
        """Builds a mechanism from values of all its parameters, and returns its row."""
        began = time.perf_counter()
        strategy = self._strategy(family, options, self._is_drafted(family))
        row = self._row(strategy, time.perf_counter() - began)
        kept, is_named = strategy.memory_vectors, not self._is_auto
        if kept > self._limit and not (is_named and self.max_memory_vectors is None):
            raise ValueError(
                f"The strategy must store <= {self._limit} vectors (max_memory_vectors), "
                f"but it stores {kept}. Use fewer bands or buffers, or a strategy with "
                f"a banded inverse."
            )
        return row

    def _strategy(
        self, family: Family, options: Mapping[str, Any], is_draft: bool
    ) -> Strategy:
        """Builds a strategy from values of all its parameters.

        With cyclic sampling, the data has one part per band.

        Args:
          family: family of the mechanism.
          options: the values of its parameters.
          is_draft: True to optimize the strategy just enough to rank it.
        """
        participation = self.data.participation(options.get("bands", 1))
        if self.data.is_cyclic:
            participation.check_accounting(self.workload.num_steps)
        given = dict(options)
        if family.needs_budget and self.budget is not None:
            given.update(zip(("epsilon", "delta"), self.budget))
        if "objective" in family.options:
            given.setdefault("objective", self.objective)
        return registry.build_strategy(
            family.name, self.workload, participation, is_draft, **given
        )

    def _row(self, strategy: Strategy, seconds: float) -> Row:
        """Returns the row of a strategy.

        Raises:
          ValueError: if the strategy does not fit the sampling, or a result is not
            finite.
        """
        participation = self.data.participation(strategy.matrix.bands)
        sensitivity = strategy.sensitivity(participation)
        noise, adjacency = sensitivity.value, ZERO_OUT
        if self.budget is not None:
            accountant = participation.accountant(strategy.matrix)
            first, kind = accountant.first_noise(*self.budget), type(accountant)
            near = first * self._near.get(kind, 1.0)
            noise = accountant.rough_noise_stddev(*self.budget, near)
            self._near[kind] = noise / first
            adjacency = accountant.claims[0][2]
        per_step = strategy.per_step_squared_error(self.workload)
        search = strategy.diagnostics
        gap = search.get("optimality_gap")
        certified = float(gap) if gap is not None and math.isfinite(gap) else None
        row = Row(
            mechanism=registry.specification(strategy),
            sampling=participation.sampling,
            adjacency=adjacency,
            batch_size=self.data.expected_batch_size,
            num_steps=self.workload.num_steps,
            bands=strategy.matrix.stored_bands,
            rmse=error.root_mean_squared_error(per_step) * noise,
            max_se=error.max_error(per_step) * noise,
            sensitivity=sensitivity.value,
            sensitivity_is_exact=sensitivity.is_exact,
            noise_multiplier=noise / sensitivity.value,
            noise_stddev=noise,
            is_rough=self.budget is not None and participation.is_amplified,
            converged=bool(search.get("converged", True)),
            optimality_gap=certified,
            optimal_among=None if certified is None else search.get("optimal_among"),
            memory_vectors=strategy.memory_vectors,
            regenerations_per_step=strategy.regenerations_per_step,
            seconds=seconds,
            strategy=strategy,
        )
        for name in ("rmse", "max_se", "sensitivity", "noise_multiplier"):
            check_positive(f"{name} of {row.mechanism}", getattr(row, name))
        return row


def _three_digits(value: float) -> float:
    """Rounds a value such that `1 - value` has three significant digits.

    The value becomes part of the mechanism's name, which should be short.
    """
    return float(f"{1.0 - float(f'{1.0 - value:.3g}'):.8g}")


def _texts(row: Row) -> dict[str, str]:
    """Returns the table cells of a row; "<=" marks a sensitivity that is a bound."""
    failed = "" if row.converged else "not converged"
    gap = "" if row.optimality_gap is None else f"{row.optimality_gap:.1e}"
    bound = "" if row.sensitivity_is_exact else "<="
    texts = phrases("row", row=row, failed=failed, gap=gap, bound=bound)
    return {name: "" if text == "None" else text for name, text in texts.items()}
