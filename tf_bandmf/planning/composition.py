"""The joint privacy guarantee of several runs and other releases on the same data.

    joint = tf_bandmf.compose([
        first_plan,
        second_plan,
        tf_bandmf.Release("query log, 2025", epsilon=0.5, delta=1e-7),
        tf_bandmf.Release("census of devices", rho=0.02),
        tf_bandmf.Release("histogram", event=dp_accounting.LaplaceDpEvent(2.0)),
    ])
    joint.epsilon(1e-5)
    print(joint.statement())

Gaussian mechanisms compose exactly: their composition is one mechanism with
`1 / sigma^2 = sum_i 1 / sigma_i^2` (Dong, Roth, Su, 2019, arXiv:1905.02383, Corollary
3.3). This holds even if later runs depend on the results of earlier runs, as long as
all noise multipliers are fixed in advance.

Every other release is represented by a privacy loss that dominates it (Zhu, Dong, Wang,
2022, arXiv:2106.08567, Theorem 10). The exact privacy loss is used if it is known: for
Gaussian queries on samples, `accounting.tilted` computes it; for an event, it is
computed from dp-accounting's deltas. Otherwise, the privacy loss is that of the worst
mechanism that satisfies all known bounds: a pair (epsilon, delta) (Kairouz, Oh,
Viswanath, 2015, arXiv:1311.0776, Theorem 3.3), a rho, or, for a run, the Gaussian
mechanism without amplification. If several releases have only a rho, the rhos are added
(Bun and Steinke, 2016, arXiv:1605.02065, Lemma 1.7), and the privacy profile of the sum
represents these releases. Basic composition is used if it gives a smaller epsilon.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import dp_accounting
import numpy as np
from dp_accounting import dp_event
from dp_accounting.pld import privacy_loss_distribution

from tf_bandmf.accounting import checks, event_losses, gaussian, profiles, tilted
from tf_bandmf.accounting.cyclic_poisson import ComposedQueries
from tf_bandmf.accounting.event_losses import Loss
from tf_bandmf.accounting.guarantee import KINDS, REPLACE_ONE, ZERO_OUT, Guarantee
from tf_bandmf.planning import statement
from tf_bandmf.planning.plan import Plan
from tf_bandmf.planning.statement import PrivacyStatement
from tf_bandmf.planning.texts import phrase, phrases

REPLACE_ONLY = "Replace-one: one unit is replaced by any other."
# The adjacencies for which a release may state its guarantee. A run's guarantee for
# replace-one adjacency also holds for zero-out, because a unit may be replaced by one
# that contributes zero.
ADJACENCIES = {"zero-out": ZERO_OUT, "replace-one": REPLACE_ONLY, "either": REPLACE_ONE}
GAUSSIAN = "composition of Gaussian mechanisms (exact)"
UNAMPLIFIED = "composition of Gaussian mechanisms, without amplification"
BASIC = "basic composition of the individual guarantees"
LOSSES = "composition of privacy loss distributions (dp-accounting)"
ZCDP = "sum of zCDP rhos"
QUERIES = "composition of Gaussian queries on samples (tilted Fourier transform)"
# An event whose delta at this epsilon is 1 provides no privacy, so it is refused.
_LARGE = 400.0
# `_INTERVAL` is the discretization interval of privacy losses for epsilons up to
# `_FINE`; it is coarser for larger epsilons. For epsilons above `_LARGEST`, privacy
# losses are not composed.
_INTERVAL, _FINE, _LARGEST = 1e-4, 10.0, 400.0
# If releases are composed with dp-accounting's Fourier transforms, the absolute error of
# delta is at most `_ROUNDING`, according to a measurement with 450 queries. These
# transforms are not used for deltas up to `_SMALLEST`.
_ROUNDING, _SMALLEST = 1e-12, 2e-12
# For deltas below this, queries that differ in noise or sampling are composed with
# tilted transforms, whose errors are relative to delta. For larger deltas,
# dp-accounting's transforms are accurate enough, and take a quarter of the time of
# tilted transforms.
_TILTED = 1e-7


@dataclasses.dataclass(frozen=True)
class Release:
    """The known privacy bounds of one run, or of another release on the same data.

    Specify an (epsilon, delta) pair, a rho, or a dp-accounting event. If you specify
    several of them, all must hold for the release.

    Attributes:
      about: description of the release, in one line.
      epsilon: epsilon of (epsilon, delta)-DP, >= 0.
      delta: delta of (epsilon, delta)-DP, in [0, 1); 0 for pure DP, such as the Laplace
        mechanism.
      rho: rho of zero-concentrated DP. For a Gaussian mechanism, specify the event
        instead.
      event: dp-accounting event; its noise multipliers are relative to the contribution
        of one privacy unit or, with "replace-one", to the change that a replacement
        causes. Gaussian events compose exactly.
      noise_multiplier: noise multiplier, relative to the contribution of one privacy
        unit, of a Gaussian mechanism that dominates the release. For a run, this
        mechanism is the run without amplification.
      adjacency: "zero-out" (one privacy unit is added, removed or zeroed out),
        "replace-one" (one is replaced by another, as for sampling without replacement),
        or "either" for runs whose guarantee holds for both. A replacement counts as two
        zero-outs.
      kind: "exact", "bound" or "estimate"; by default "exact" if the event consists of
        Gaussian mechanisms without sampling, else "bound".
      risk: probability that a simulated bound does not hold.
      plan: the plan, if the release is a run.

    Raises:
      TypeError: if the event is not a dp-accounting event.
      ValueError: if a number is out of range, if no bound is specified, if the event
        provides no privacy, or if dp-accounting does not support the event for this
        adjacency.
    """

    about: str = "a release made elsewhere"
    _: dataclasses.KW_ONLY
    epsilon: float | None = None
    delta: float = 0.0
    rho: float | None = None
    event: dp_accounting.DpEvent | None = dataclasses.field(default=None, hash=False)
    noise_multiplier: float | None = None
    adjacency: str = "zero-out"
    kind: str = ""
    risk: float = 0.0
    plan: Plan | None = None

    def __post_init__(self) -> None:
        statement.check_line("about", self.about)
        checks.check_word("adjacency", self.adjacency, ADJACENCIES)
        given = self.epsilon, self.rho, self.event, self.noise_multiplier
        if all(one is None for one in given):
            raise ValueError("A release needs at least one of epsilon, rho and event.")
        if self.epsilon is not None:
            checks.check_nonnegative("epsilon", self.epsilon)
        if not (checks.is_number(self.delta) and 0.0 <= self.delta < 1.0):
            raise ValueError(f"delta must be in [0, 1), found {self.delta!r}.")
        for name in ("rho", "noise_multiplier"):
            if getattr(self, name) is not None:
                checks.check_positive(name, getattr(self, name))
        if self.event is not None and self.plan is None:
            self._check_event()
        least = "exact" if self.is_gaussian else "bound"
        if self.kind not in ("", *KINDS[KINDS.index(least) :]):
            raise ValueError(
                f"kind must be one of {', '.join(KINDS)} ('exact' only for an event of "
                f"Gaussian mechanisms without sampling), but found {self.kind!r}."
            )
        object.__setattr__(self, "kind", self.kind or least)

    def _check_event(self) -> None:
        """Checks that every basic event in `pieces` provides some privacy.

        Raises:
          TypeError: if the event is not a dp-accounting event.
          ValueError: if the event is empty, or not supported by dp-accounting for this
            adjacency, or if a basic event provides no privacy.
        """
        event, replaced = self.event, self.adjacency != "zero-out"
        if not isinstance(event, dp_accounting.DpEvent):
            raise TypeError(f"event must be a dp_accounting.DpEvent, found {event!r}.")
        if not self.pieces:
            raise ValueError(f"event must not be empty, found {event}. Omit event.")
        if self.queries(replaced) is not None:
            return
        try:
            each = [
                event_losses.profile_of(piece, replaced) for piece, _ in self.pieces
            ]
            deltas = [profile(np.array([_LARGE])) for profile in each]
        except (ValueError, ArithmeticError) as error:
            raise ValueError(
                f"event must be supported by dp-accounting, found {event}: {error}"
            ) from error
        if max(deltas) >= 1.0:
            raise ValueError(f"event must provide some privacy, found {event}.")

    @classmethod
    def of_plan(cls, plan: Plan) -> Release:
        """Returns one run of a plan as a release."""
        use, noise = plan.participation, plan.unamplified_noise
        event = None if use.is_simulated else plan.dp_event()
        if not use.is_amplified:
            event = dp_accounting.GaussianDpEvent(noise)
        return cls(
            epsilon=plan.epsilon,
            delta=plan.delta,
            event=event,
            noise_multiplier=noise,
            adjacency="either" if plan.adjacency == REPLACE_ONE else "zero-out",
            kind="" if plan.kind == "exact" else plan.kind,
            risk=0.0 if plan.confidence is None else 1.0 - plan.confidence,
            plan=plan,
        )

    @classmethod
    def gaussian(
        cls, noise: float, delta: float, adjacency: str = "zero-out"
    ) -> Release:
        """Returns a Gaussian mechanism as a release, with its epsilon at delta.

        Raises:
          ValueError: if the mechanism has no meaningful epsilon at delta.
        """
        return cls(
            epsilon=gaussian.gaussian_epsilon(noise, delta),
            delta=delta,
            event=dp_accounting.GaussianDpEvent(noise),
            adjacency=adjacency,
        )

    def describe(self) -> str:
        """Returns a line for privacy statements: the release and its guarantee."""
        if self.plan is not None:
            return phrase("parts", "run", plan=self.plan)
        said = []
        if self.epsilon is not None:
            said.append(phrase("parts", "pair", release=self))
        if self.rho is not None:
            said.append(phrase("parts", "rho", rho=self.rho))
        if self.event is not None:
            said.append(str(self.event))
        return f"{self.about}: {', '.join(said)}."

    # If the argument `replaced` of the following methods is True, their results are for
    # replace-one adjacency, else for zero-out.

    @functools.cached_property
    def pieces(self) -> tuple[tuple[dp_accounting.DpEvent, int], ...]:
        """The basic events that make up the release's event, with their counts."""
        return () if self.event is None else tuple(event_losses.pieces(self.event))

    @functools.cached_property
    def kinds(self) -> list[tilted.Query | None]:
        """The Gaussian query of each of the `pieces`; None for a piece of another kind."""
        return [event_losses.query_of(*piece) for piece in self.pieces]

    @functools.cached_property
    def is_gaussian(self) -> bool:
        """True if the release consists only of Gaussian mechanisms without sampling."""
        return bool(self.pieces) and all(
            isinstance(piece, dp_accounting.GaussianDpEvent) for piece, _ in self.pieces
        )

    def proven(self) -> Release:
        """Returns the release with a guarantee that does not depend on a simulation.

        A run whose epsilon was simulated is replaced by the unamplified Gaussian
        mechanism that bounds it. All other releases are returned unchanged.
        """
        is_certain = self.kind != "estimate" and not self.risk
        if is_certain or self.noise_multiplier is None or self.is_gaussian:
            return self
        event = dp_accounting.GaussianDpEvent(self.noise_multiplier)
        changes: dict[str, Any] = {"epsilon": None, "event": event, "kind": "bound"}
        return dataclasses.replace(self, **changes, risk=0.0)

    def is_doubled(self, replaced: bool) -> bool:
        return replaced and self.adjacency == "zero-out"

    def stated(self, replaced: bool) -> tuple[float, float] | None:
        """Returns the stated (epsilon, delta), or None if the release states none.

        If `replaced` is True, the result holds for replace-one adjacency, else for
        zero-out.
        """
        if self.epsilon is None or not self.is_doubled(replaced):
            return None if self.epsilon is None else (self.epsilon, self.delta)
        # A replacement is two zero-outs, so group privacy applies.
        delta = self.delta * (1.0 + math.exp(min(self.epsilon, 700.0)))
        return 2.0 * self.epsilon, min(delta, 1.0)

    def gaussian_noise(self, replaced: bool) -> float | None:
        """Returns the noise multiplier of a Gaussian mechanism that dominates the release.

        The result is None if no such mechanism is known.
        """
        noise = self.noise_multiplier
        if self.is_gaussian:
            squares = (n / piece.noise_multiplier**2 for piece, n in self.pieces)
            noise = 1.0 / math.sqrt(math.fsum(squares))
        halved = replaced and self.adjacency != "replace-one"
        return noise and noise * (0.5 if halved else 1.0)

    def zcdp(self, replaced: bool) -> float | None:
        """Returns the smallest known zCDP rho without amplification, or None."""
        times = 4.0 if self.is_doubled(replaced) else 1.0
        noise = self.gaussian_noise(replaced)
        rhos = [] if noise is None else [gaussian.zcdp_rho(noise)]
        rhos += [] if self.rho is None else [times * self.rho]
        if self.epsilon is not None and self.delta == 0.0:
            # Pure DP implies zCDP: Bun and Steinke, 2016, arXiv:1605.02065, Proposition
            # 1.4.
            rhos.append(times * 0.5 * self.epsilon**2)
        return min(rhos, default=None)

    @property
    def is_zcdp(self) -> bool:
        """True if rho is the only known bound on the release's privacy."""
        return (self.epsilon, self.event, self.noise_multiplier) == (None, None, None)

    def queries(self, replaced: bool) -> tuple[tilted.Query, ...] | None:
        """Returns the Gaussian queries that the release consists of, or None.

        The queries may be on samples of the data. The result is None if the release has
        other parts, or if its queries do not determine the guarantee for this adjacency.
        """
        queries = self.kinds
        if not queries or None in queries:
            return None
        if self.is_gaussian:
            return (tilted.Query(1.0, self.gaussian_noise(replaced)),)  # type: ignore[arg-type]
        # dp-accounting supports Poisson sampling only for zero-out, and sampling without
        # replacement only for replace-one.
        replaces = self.adjacency != "zero-out"
        fit = all(q.is_replaced == replaces or q.probability == 1.0 for q in queries)  # type: ignore[union-attr]
        return tuple(queries) if fit and not self.is_doubled(replaced) else None  # type: ignore[arg-type]

    def loss(self, replaced: bool, interval: float) -> Loss:
        """Returns a privacy loss that dominates every mechanism with this release's bounds.

        The loss is discretized with the given interval.
        """
        whole = None
        if self.event is not None:
            replaces = self.adjacency != "zero-out"
            whole = event_losses.of_event(self.event, interval, replaces)
            if not self.is_doubled(replaced):
                return whole
        noise, pair = self.gaussian_noise(replaced), self.stated(replaced)
        bounds = list[profiles.Profile]()
        if noise is not None:
            bounds.append(functools.partial(gaussian.gaussian_deltas, noise))
        if pair is not None:
            bounds.append(profiles.pair_profile(*pair))
        if self.rho is not None:
            times = 4.0 if self.is_doubled(replaced) else 1.0
            bounds.append(profiles.zcdp_profile(times * self.rho))
        if whole is not None:
            bounds.append(profiles.twice(whole.get_delta_for_epsilon))
        kinks = () if pair is None else (pair[0],)
        return profiles.dominating_loss(profiles.least(*bounds), interval, kinks)

    # The following methods convert a release to and from plain values for a ledger
    # entry.

    def to_json(self) -> dict[str, Any]:
        """Returns the known values of the release as a dictionary for a ledger."""
        names = ("epsilon", "delta", "rho", "noise_multiplier", "risk")
        record = {name: getattr(self, name) for name in names if getattr(self, name)}
        if self.event is not None:
            plain = lambda number: number.item()  # noqa: E731
            text = json.dumps(self.event.to_named_tuple(), default=plain)
            record["event"] = json.loads(text)
        return {**record, "adjacency": self.adjacency}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Release:
        """Restores a release from the result of `to_json`."""
        fields: dict[str, Any] = {**value, "event": _event_of(value.get("event"))}
        if not fields.keys() & {"epsilon", "rho", "noise_multiplier"}:
            fields["epsilon"] = 0.0
        return cls(**fields)


def _event_of(value: Any) -> Any:
    """Restores a dp-accounting event from nested lists that a JSON file stored."""
    if not isinstance(value, list):
        return value
    module, *parts = map(_event_of, value)
    if module != dp_event.__name__:
        return [module, *parts]
    return getattr(dp_event, parts[0])(*parts[1:])


class Bound(NamedTuple):
    """A joint epsilon, and how it was obtained.

    Attributes:
      epsilon: the joint epsilon.
      accountant: name of the method that computed epsilon.
      kind: "exact", "bound" or "estimate".
      confidence: joint confidence of simulated bounds, or None.
    """

    epsilon: float
    accountant: str
    kind: str
    confidence: float | None


@dataclasses.dataclass(frozen=True, eq=False)
class JointGuarantee:
    """The joint guarantee of several runs and releases on the same data; see `compose`.

    Formal guarantee: the composition of all releases is (epsilon(delta), delta)-DP. The
    releases are made one after another. Each may depend in any way on the outputs of
    earlier ones, but the guarantees of all releases must be fixed in advance.

    Attributes:
      parts: one `Release` for each run and for each other release.
      replaced: True if neighboring data sets differ by the replacement of one privacy
        unit, False if they differ by a zero-out.
    """

    parts: tuple[Release, ...]
    replaced: bool

    @property
    def plans(self) -> tuple[Plan, ...]:
        """The plans of those releases that are runs."""
        return tuple(part.plan for part in self.parts if part.plan is not None)

    @property
    def adjacency(self) -> str:
        """The definition of neighboring data sets that the joint guarantee is for."""
        if not self.replaced:
            return ZERO_OUT
        is_only = any(part.adjacency == "replace-one" for part in self.parts)
        return REPLACE_ONLY if is_only else REPLACE_ONE

    @property
    def zcdp_rho(self) -> float | None:
        """The joint zCDP rho for `adjacency`, without amplification; None if unknown.

        It is the sum of the rhos of all releases (Bun and Steinke, 2016,
        arXiv:1605.02065, Lemma 1.7).
        """
        return _sum(part.zcdp(self.replaced) for part in self.parts)

    def epsilon(self, delta: float) -> float:
        """Returns the joint epsilon at delta.

        Raises:
          ValueError: if delta is not in (0, 1), or no meaningful epsilon is known.
        """
        return self.guarantee_at(delta).epsilon

    def guarantee_at(self, delta: float) -> Guarantee:
        """Returns the joint (epsilon, delta) guarantee, with its kind and confidence.

        The kind is "exact" if all releases are Gaussian mechanisms with exactly known
        sensitivity, "estimate" if epsilon depends on an estimate, and otherwise
        "bound". The probability that all simulated bounds hold is at least one minus
        the sum of their failure probabilities.

        Raises:
          ValueError: if delta is not in (0, 1), or no meaningful epsilon is known.
        """
        best = self.bound_at(delta)
        if best is None:
            raise ValueError(
                f"No meaningful epsilon is known for these {len(self.parts)} releases at "
                f"delta = {delta}. Use a larger delta, or fewer releases."
            )
        if best.epsilon <= 0.0:
            raise ValueError(
                f"delta must be smaller than {delta}: the releases are (0, {delta})-DP"
                f", and epsilon would be 0."
            )
        others = {"adjacency": self.adjacency, "zcdp_rho": self.zcdp_rho}
        return Guarantee(delta=delta, **best._asdict(), **others)  # type: ignore[arg-type]

    def bound_at(self, delta: float) -> Bound | None:
        """Returns the best known epsilon at delta, with its origin, or None.

        This epsilon may be zero or negative.

        Raises:
          ValueError: if delta is not in (0, 1).
        """
        checks.check_delta(delta)
        best = None
        order = lambda bound: (KINDS.index(bound.kind), bound.epsilon)  # noqa: E731
        for bound in sorted(self._bounds(delta), key=order):
            # An estimate is used only if it is over 1% smaller than the best bound.
            worth = 1.0 - 1e-2 * (bound.kind == "estimate")
            if best is None or bound.epsilon < best.epsilon * worth:
                best = bound
        return best if best is not None and math.isfinite(best.epsilon) else None

    def statement(
        self, delta: float | None = None, unit: str | None = None
    ) -> PrivacyStatement:
        """Returns the privacy statement for all releases, with the joint guarantee.

        Args:
          delta: delta of the statement; by default the largest delta that a release
            states.
          unit: the privacy unit, as for `Plan.statement`; by default the unit of the
            plans.

        Raises:
          ValueError: as for `guarantee_at`; if the unit is not one line of text; if
            delta is omitted and no release has a delta; or if the unit is omitted and
            the plans have different units, or there are no plans.
        """
        if delta is None:
            pairs = [part.stated(self.replaced) for part in self.parts]
            delta = max((pair[1] for pair in pairs if pair is not None), default=0.0)
            if delta == 0.0:
                raise ValueError("delta must be given: no release states a delta.")
        units = sorted({plan.unit for plan in self.plans})
        if unit is None and len(units) != 1:
            whose = f"different units: {', '.join(units)}" if units else "no unit"
            raise ValueError(
                f"unit must be given, because the releases state {whose}. Name the "
                f"unit that all of them protect."
            )
        plans, others = self.plans, len(self.parts) - len(self.plans)
        about = "runs and releases" if others else "several runs"
        runs = enumerate((part.describe() for part in self.parts), start=1)
        uses = dict.fromkeys(plan.participation.describe() for plan in plans)
        noise = self.gaussian_noise
        return PrivacyStatement(
            guarantee=self.guarantee_at(delta),
            # Without a joint noise multiplier (for example, if a release has only a
            # rho), there is no mu.
            mu=None if noise is None else 1.0 / noise,
            unit=units[0] if unit is None else unit,
            plans=plans,
            participation=" ".join(uses),
            runs=" ".join(f"({i}) {text}" for i, text in runs),
            remarks=(),
            proviso="",
            **phrases(about, runs=len(plans), others=others),
        )

    @functools.cached_property
    def gaussian_noise(self) -> float | None:
        """The noise multiplier of one Gaussian mechanism that bounds all releases.

        It does not include amplification, and is None if a release has no such bound.
        """
        return _noise_of(self.parts, self.replaced)

    @functools.cached_property
    def stated(self) -> tuple[float, float] | None:
        """The sums of the releases' epsilons and deltas, by basic composition.

        The value is None if a release states no (epsilon, delta).
        """
        pairs = [part.stated(self.replaced) or (None, None) for part in self.parts]
        epsilon, delta = (_sum(column) for column in zip(*pairs))
        return None if epsilon is None or delta is None else (epsilon, delta)

    def _bounds(self, delta: float) -> list[Bound]:
        bounds, noise, rho = list[Bound](), self.gaussian_noise, self.zcdp_rho
        # If one method finds no meaningful epsilon, another method may still find one.
        cannot_tell = contextlib.suppress(ValueError, ArithmeticError, MemoryError)
        if noise is not None:
            exact = all(
                part.is_gaussian and part.kind == "exact" for part in self.parts
            )
            name, kind = (GAUSSIAN, "exact") if exact else (UNAMPLIFIED, "bound")
            with cannot_tell:
                value = gaussian.gaussian_epsilon(noise, delta)
                bounds.append(Bound(value, name, kind, None))
        elif rho is not None:
            # zCDP implies (epsilon, delta)-DP: Bun and Steinke, 2016, arXiv:1605.02065,
            # Proposition 1.3.
            value = rho + 2.0 * math.sqrt(-rho * math.log(delta))
            bounds.append(Bound(value, ZCDP, "bound", None))
        with cannot_tell:
            bounds += self._by_losses(delta)
        if self.stated is not None and self.stated[1] <= delta * (1.0 + 1e-9):
            value = self.stated[0]
            # Basic composition is used only if it gives a smaller epsilon, because the
            # other methods state more precisely whether a value is exact, a bound or an
            # estimate.
            if all(value < (1.0 - 1e-6) * bound.epsilon for bound in bounds):
                bounds.append(Bound(value, BASIC, *_certainty(self.parts)))
        return bounds

    def _expected(self) -> float:
        """Returns a rough estimate of the joint epsilon that is quick to compute."""
        expected = [self.stated[0]] if self.stated is not None else []
        if self.zcdp_rho is not None:
            expected.append(self.zcdp_rho + 8.0 * math.sqrt(self.zcdp_rho))
        # If the joint rho is unknown, the rho of the Gaussian releases alone is a lower
        # limit for the estimate.
        gaussians = [part for part in self.parts if part.is_gaussian]
        noise = _noise_of(gaussians, self.replaced)
        least = gaussian.zcdp_rho(noise) if noise is not None else 0.0
        return max(min(expected, default=_FINE), least, _INTERVAL)

    def _by_losses(self, delta: float) -> Iterator[Bound]:
        if all(part.is_gaussian for part in self.parts):
            return
        queries = [part.queries(self.replaced) for part in self.parts]
        if None not in queries:
            # All releases are Gaussian queries, some of them on samples.
            composed = ComposedQueries(tuple(itertools.chain(*queries)))  # type: ignore[arg-type]
            if len(composed.kinds) == 1 or delta < _TILTED:
                value = composed.epsilon(delta, 1.0)
                yield Bound(value, QUERIES, *_certainty(self.parts))
                return
        if delta <= _SMALLEST or self._expected() > _LARGEST:
            return
        # The discretization interval is `_INTERVAL` times a power of two.
        coarser = max(0, math.ceil(math.log2(self._expected() / _FINE)))
        proven = tuple(part.proven() for part in self.parts)
        # A bound that does not depend on a simulation may be smaller or more certain, so
        # it is computed, too.
        for parts in dict.fromkeys((self.parts, proven)):
            loss = _composed_loss(parts, self.replaced, _INTERVAL * 2.0**coarser)
            value = float(loss.get_epsilon_for_delta(delta - _ROUNDING))
            yield Bound(value, LOSSES, *_certainty(parts))


def compose(
    plans: Iterable[Plan | Release], adjacency: str | None = None
) -> JointGuarantee:
    """Returns the joint guarantee of several runs and other releases on the same data.

    A replacement amounts to two zero-outs. For replace-one adjacency, a guarantee for
    zero-out is therefore converted by group privacy: for example, the accounting uses
    half of a Gaussian noise multiplier, and four times a rho.

    Args:
      plans: one plan for each run (list a plan twice if it was run twice), and a
        `Release` for each other release.
      adjacency: "zero-out" or "replace-one". The default is "replace-one" if a
        guarantee holds only for "replace-one", or if all guarantees hold for both.

    Raises:
      TypeError: if an item of `plans` is neither a plan nor a `Release`.
      ValueError: if `plans` is empty, or if adjacency is "zero-out" and a guarantee
        holds only for "replace-one".
    """
    given = tuple(plans) if isinstance(plans, Iterable) else (None,)
    if not all(isinstance(one, (Plan, Release)) for one in given):
        raise TypeError(
            f"plans must be a list with one tf_bandmf.Plan for each run, and a "
            f"tf_bandmf.Release for each other release, found {plans!r}."
        )
    if not given:
        raise ValueError("plans must contain at least one plan or release, found none.")
    parts = tuple(Release.of_plan(p) if isinstance(p, Plan) else p for p in given)
    stated = {part.adjacency for part in parts}
    is_only = "replace-one" in stated
    if adjacency is None:
        is_either = is_only or "zero-out" not in stated
        adjacency = "replace-one" if is_either else "zero-out"
    allowed = ["replace-one"] + ["zero-out"] * (not is_only)
    checks.check_word("adjacency", adjacency, allowed)
    return JointGuarantee(parts, adjacency == "replace-one")


def _sum(values: Iterable[float | None]) -> float | None:
    """Returns the sum of all values; None if any value is None."""
    terms = list(values)
    return None if None in terms else math.fsum(terms)  # type: ignore[arg-type]


def _noise_of(parts: Iterable[Release], replaced: bool) -> float | None:
    """Returns the noise multiplier of one Gaussian mechanism that bounds all releases.

    It is composed of the noise multipliers from `Release.gaussian_noise`. The result is
    None if one of these is None.
    """
    noises = (part.gaussian_noise(replaced) for part in parts)
    precision = _sum(None if noise is None else noise**-2 for noise in noises)
    return 1.0 / math.sqrt(precision) if precision else None


def _certainty(parts: tuple[Release, ...]) -> tuple[str, float | None]:
    """Returns the kind of a joint epsilon, "bound" or "estimate", and its confidence.

    The confidence is None for an estimate, and if no bound is simulated.
    """
    risk = math.fsum(part.risk for part in parts)
    if any(part.kind == "estimate" for part in parts) or risk > 0.5:
        return "estimate", None
    return "bound", 1.0 - risk if risk else None


@functools.lru_cache(maxsize=8)
def _composed_loss(parts: tuple[Release, ...], replaced: bool, interval: float) -> Loss:
    """Returns a discretized privacy loss that dominates the composed releases."""
    noise = _noise_of((part for part in parts if part.is_gaussian), replaced)
    losses: list[Loss] = [privacy_loss_distribution.identity(interval)]
    if noise:
        event = dp_accounting.GaussianDpEvent(noise)
        losses.append(event_losses.of_event(event, interval))
    rho = _sum(part.zcdp(replaced) for part in parts if part.is_zcdp)
    if rho:
        profile = profiles.zcdp_profile(rho)
        losses.append(profiles.dominating_loss(profile, interval))
    for part, count in Counter(parts).items():
        if not (part.is_gaussian or part.is_zcdp):
            losses.append(_loss_of(part, replaced, interval, count))
    return functools.reduce(lambda total, loss: total.compose(loss), losses)


# The cache saves time because a ledger often composes the same releases again, with
# only one run changed.
@functools.lru_cache(maxsize=64)
def _loss_of(part: Release, replaced: bool, interval: float, count: int) -> Loss:
    """Returns a privacy loss that dominates `count` composed copies of a release."""
    return event_losses.repeated(part.loss(replaced, interval), count, interval)
