"""Compares many mechanisms for one workload, one participation and one budget.

    table = compare(workloads.prefix_sum(3910), MinSep(391), ["identity", "bisr:4", "blt"])
    print(table)                  # text
    table.to_records()            # dictionaries of plain values, for JSON

Errors are those of the noise alone, per coordinate, for `l2_norm_clip = 1`, and without
the absolute size of the learning rate.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any, Callable

from tf_bandmf import workloads
from tf_bandmf.analysis import error
from tf_bandmf.participation import NAMED, MinSep, Participation
from tf_bandmf.participation.scheme import Scheme
from tf_bandmf.planning.calibration import (
    Calibrator,
    for_budget,
    for_scheme,
    unamplified,
)
from tf_bandmf.strategies import Strategy, registry
from tf_bandmf.workloads import Workload, check_workload


@dataclasses.dataclass(frozen=True)
class Row:
    """One mechanism in a comparison.

    Attributes:
      mechanism: as asked for, "bisr:4".
      bands: bands of C, or of its inverse if that is the banded one; None if neither.
      rmse: sqrt of the mean over steps of the squared error, times `noise_stddev`.
      max_se: the same for the step with the largest error.
      sensitivity: sens(C) under the participation, or an upper bound on it.
      sensitivity_is_exact: False for a bound.
      sensitivity_method: the theorem or algorithm that the value rests on.
      noise_multiplier: `noise_stddev` in units of `normalization`.
      normalization: "sensitivity" (sens(C)), or "column_norm" where an accountant
        amplifies.
      noise_stddev: noise standard deviation on the raw C, for l2_norm_clip = 1.
      converged: whether the optimizer converged; True for closed forms, which need none.
      optimality_gap: certified relative gap of the squared error, in the class
        `optimal_among`; None without one.
      optimal_among: the class, such as "4 bands, columns of equal norm"; None without a
        gap.
      memory_vectors: vectors of the model's size kept between steps.
      regenerations_per_step: the most earlier noise vectors that a step draws again.
      seconds: time that it took to find the strategy.
    """

    mechanism: str
    bands: int | None
    rmse: float
    max_se: float
    sensitivity: float
    sensitivity_is_exact: bool
    sensitivity_method: str
    noise_multiplier: float
    normalization: str
    noise_stddev: float
    converged: bool
    optimality_gap: float | None
    optimal_among: str | None
    memory_vectors: int
    regenerations_per_step: int
    seconds: float


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Rows in the order in which the mechanisms were given.

    Attributes:
      title: title of the table.
      rows: one for each mechanism that has numbers.
      failures: the other mechanisms, and why each has no numbers.
    """

    title: str
    rows: tuple[Row, ...]
    failures: tuple[tuple[str, str], ...] = ()

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, mechanism: str) -> Row:
        for row in self.rows:
            if row.mechanism == mechanism:
                return row
        known = ", ".join(row.mechanism for row in self.rows)
        raise KeyError(f"mechanism must be one of {known}, found {mechanism!r}.")

    def best(self) -> Row:
        """The row with the smallest RMSE."""
        return min(self.rows, key=lambda row: row.rmse)

    def to_records(self) -> list[dict[str, Any]]:
        """One dictionary of plain finite values per row, ready for JSON."""
        return [dataclasses.asdict(row) for row in self.rows]

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Headings and texts of a table; sensitivities that are bounds have a <=.

        Headings are readable forms of the names of `Row`.
        """
        headings = [
            "mechanism",
            "bands",
            "RMSE",
            "max SE",
            "sensitivity",
            "noise stddev",
            "optimality gap",
            "optimal among",
            "memory vectors",
            "regenerations per step",
            "seconds",
        ]
        return headings, [_texts(row) for row in self.rows]

    def failure_texts(self) -> list[str]:
        """One line for each mechanism without numbers."""
        return [f"{name}: {reason}" for name, reason in self.failures]

    def __str__(self) -> str:
        table = plain_table(self.title, *self.cells())
        return "\n".join([table, *self.failure_texts()])


def plain_table(
    title: str, headings: Sequence[str], body: Sequence[Sequence[str]]
) -> str:
    """A title and columns of equal width, the first one to the left."""
    lines = [headings, *body]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headings))]
    texts = [
        "  ".join(
            text.ljust(width) if i == 0 else text.rjust(width)
            for i, (text, width) in enumerate(zip(line, widths))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([title, *texts])


def compare(
    workload: Workload,
    participation: Participation,
    mechanism_names: Sequence[str | Strategy],
    calibrator: Calibrator | None = None,
    progress: Callable[[str], None] | None = None,
) -> Comparison:
    """Builds every mechanism and evaluates it on the workload.

    A mechanism without numbers, because its accountant fails or it contradicts the
    participation, does not end the comparison: `Comparison.failures` says why.

    Args:
      workload: A, which determines the number of steps.
      participation: determines the sensitivities; some mechanisms optimize for it.
      mechanism_names: as `registry.parse` reads them, or existing strategies.
      calibrator: how much noise a strategy gets; by default noise multiplier 1 per unit
        of sensitivity.
      progress: called with each mechanism's name before it is built.

    Raises:
      TypeError: if an argument has another type.
      ValueError: if there is no mechanism, one is unknown or has an invalid value, or
        the participation contradicts the number of steps; the first mechanism's error,
        if none has numbers.
      ArithmeticError: likewise.
    """
    check_workload(workload)
    if not isinstance(participation, Participation):
        raise TypeError(
            f"participation must be a Participation, such as MinSep(342), found "
            f"{participation!r}."
        )
    participation.validate_num_steps(workload.num_steps)
    if not isinstance(mechanism_names, (list, tuple)) or not all(
        isinstance(name, (str, Strategy)) for name in mechanism_names
    ):
        raise TypeError(
            f"mechanism_names must be a list of names or strategies, found "
            f"{mechanism_names!r}."
        )
    if not mechanism_names:
        known = ", ".join(registry.names())
        raise ValueError(f"Give at least one mechanism of {known}.")
    calibrator = calibrator or unamplified()
    for name in mechanism_names:
        # All names are checked before the first one is built.
        if isinstance(name, str):
            registry.parse(name)
    rows = []
    failures: list[tuple[str, Exception]] = []
    for name in mechanism_names:
        label = name if isinstance(name, str) else name.family
        if progress is not None:
            progress(label)
        try:
            rows.append(build_row(name, workload, participation, calibrator))
        except (ValueError, ArithmeticError) as error:
            failures.append((label, error))
    if not rows:
        raise failures[0][1]
    title = (
        f"{workload.name} workload, {workload.num_steps} steps. "
        f"{participation.describe()}"
    )
    reasons = tuple((label, str(error)) for label, error in failures)
    return Comparison(title, tuple(rows), reasons)


def build_row(
    mechanism: str | Strategy,
    workload: Workload,
    participation: Participation,
    calibrator: Calibrator,
) -> Row:
    """Builds one mechanism, unless it is a strategy already, and evaluates it.

    Raises:
      ValueError: as `compare`.
    """
    if not isinstance(mechanism, str):
        label = mechanism.family
        return row(label, mechanism, workload, participation, calibrator, 0.0)
    start = time.perf_counter()
    family, options = registry.parse(mechanism)
    if registry.family_of(family).needs_budget:
        options.update(getattr(calibrator, "budget", {}))
    strategy = registry.build_strategy(family, workload, participation, **options)
    seconds = time.perf_counter() - start
    return row(mechanism, strategy, workload, participation, calibrator, seconds)


def row(
    label: str,
    strategy: Strategy,
    workload: Workload,
    participation: Participation,
    calibrator: Calibrator,
    seconds: float,
) -> Row:
    """Evaluates one strategy; see `Row`.

    Raises:
      ValueError: if a result is not finite.
    """
    sensitivity = strategy.sensitivity(participation)
    found = calibrator(strategy, sensitivity)
    unit = sensitivity.value
    if found.is_amplified:
        unit = float(strategy.matrix.column_norms().max())
    per_step = strategy.per_step_squared_error(workload)
    diagnostics = strategy.diagnostics
    gap = diagnostics.get("optimality_gap")
    certified = float(gap) if gap is not None and math.isfinite(gap) else None
    made = Row(
        mechanism=label,
        bands=strategy.matrix.stored_bands,
        rmse=error.root_mean_squared_error(per_step) * found.noise_stddev,
        max_se=error.max_error(per_step) * found.noise_stddev,
        sensitivity=sensitivity.value,
        sensitivity_is_exact=sensitivity.is_exact,
        sensitivity_method=sensitivity.method,
        noise_multiplier=found.noise_stddev / unit,
        normalization="column_norm" if found.is_amplified else "sensitivity",
        noise_stddev=found.noise_stddev,
        converged=bool(diagnostics.get("converged", True)),
        optimality_gap=certified,
        optimal_among=diagnostics.get("optimal_among")
        if certified is not None
        else None,
        memory_vectors=strategy.memory_vectors,
        regenerations_per_step=strategy.regenerations_per_step,
        seconds=seconds,
    )
    for name in ("rmse", "max_se", "sensitivity", "noise_multiplier", "noise_stddev"):
        value = getattr(made, name)
        if not (math.isfinite(value) and value > 0.0):
            raise ValueError(
                f"{name} of {label} must be finite and > 0, found {value}."
            )
    return made


def _texts(row: Row) -> list[str]:
    relation = "" if row.sensitivity_is_exact else "<= "
    gap = "" if row.optimality_gap is None else f"{row.optimality_gap:.1e}"
    if not row.converged:
        gap = f"{gap} not converged".strip()
    return [
        row.mechanism,
        "" if row.bands is None else str(row.bands),
        f"{row.rmse:.4f}",
        f"{row.max_se:.4f}",
        f"{relation}{row.sensitivity:.4f}",
        f"{row.noise_stddev:.4f}",
        gap,
        row.optimal_among or "",
        str(row.memory_vectors),
        str(row.regenerations_per_step),
        f"{row.seconds:.2f}",
    ]


def compare_uses(
    *,
    mechanisms: Sequence[str] = (),
    num_examples: int | None = None,
    batch_size: int | None = None,
    epochs: int | None = None,
    num_steps: int | None = None,
    min_separation: int | None = None,
    max_participations: int | None = None,
    sampling: str = "fixed-order",
    epsilon: float | None = None,
    delta: float | None = None,
    workload: str = "prefix",
    progress: Callable[[str], None] | None = None,
) -> Comparison:
    """Compares error, sensitivity and cost of many mechanisms for one use of the data.

    Args:
      mechanisms: names such as "bsr:4"; by default one of each family.
      num_examples: m, size of the training set.
      batch_size: B, examples per step.
      epochs: k, passes over the training set.
      num_steps: n, instead of these three, with `min_separation`.
      min_separation: b, steps from one participation of an example to the next, at least.
      max_participations: k, the most participations of one example.
      sampling: how batches are made, as for `tf_bandmf.plan`.
      epsilon: of the budget; without one the noise multiplier is 1.
      delta: of the budget.
      workload: "prefix", "identity" or "sgd:momentum=0.9,decay=0.999".
      progress: called with each mechanism's name before it is built.

    Raises:
      ValueError: if an argument is missing, contradictory or out of range.
    """
    if (epsilon is None) != (delta is None):
        raise ValueError("Give epsilon and delta, or none of them.")
    scheme: Scheme | None = None
    participation: Participation
    if num_steps is not None and min_separation is not None:
        participation = MinSep(min_separation, max_participations)
    elif num_examples is not None and batch_size is not None and epochs is not None:
        scheme = Scheme(sampling, num_examples, batch_size, epochs)
        num_steps = scheme.num_steps
        if scheme.is_cyclic:  # each mechanism has its own number of parts
            participation = MinSep(num_steps // epochs, epochs)
        else:
            participation = scheme.participation()
    else:
        raise ValueError(
            "Give num_examples, batch_size and epochs, or num_steps and min_separation."
        )
    sums, how = workloads.parse(workload, num_steps), participation.describe()
    calibrator, noise = unamplified(), "noise multiplier 1"
    if epsilon is not None and delta is not None:
        noise = f"epsilon {epsilon:g}, delta {delta:g}"
        calibrator = for_budget(participation, epsilon, delta)
        if scheme is not None and scheme.is_cyclic:
            calibrator = for_scheme(scheme, epsilon, delta)
            how = f"Sampling {sampling}, as many parts as bands."
    elif scheme is not None and NAMED[sampling].is_amplified:
        raise ValueError(f"Sampling {sampling} amplifies: give epsilon and delta.")
    names = [*mechanisms] or [*registry.typical_specifications()]
    found = compare(sums, participation, names, calibrator, progress)
    title = f"{sums.name} workload, {num_steps} steps, {noise}. {how}"
    return dataclasses.replace(found, title=title)
