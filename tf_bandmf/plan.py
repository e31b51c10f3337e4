"""The plan: the one object that says what a private run does.

A plan fixes strategy, number of steps, participation, noise multiplier and budget.
Everything that trains consumes a plan and may do nothing that the plan does not say.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tf_bandmf import mechanisms, storage, workloads
from tf_bandmf import participation as participation_lib
from tf_bandmf.accounting import gaussian
from tf_bandmf.accounting.dispatch import accountant_for
from tf_bandmf.accounting.guarantee import ZERO_OUT, Guarantee
from tf_bandmf.participation import (
    BallsInBins,
    FixedEpochOrder,
    Participation,
    Shuffled,
)
from tf_bandmf.sampling.batches import BatchSchedule
from tf_bandmf.sampling.sampled import schedule_for
from tf_bandmf.sensitivity import Sensitivity
from tf_bandmf.statement import PrivacyStatement
from tf_bandmf.strategies import Strategy
from tf_bandmf.workloads import Workload

_FORMAT = 1
# Saved numbers are compared with freshly computed ones; other versions of NumPy and
# SciPy round differently.
_RELATIVE_TOLERANCE = 1e-6
_CLIP_RANGE = (1e-10, 1e10)


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """An immutable, serializable description of one private training run.

    Build it with `tf_bandmf.plan`, which calibrates the noise. The constructor
    validates: a plan whose numbers do not fit together does not exist.

    Attributes:
      workload: A, what the models sum.
      strategy: C, for `num_steps` steps.
      participation: at which steps one example may take part.
      l2_norm_clip: zeta, the bound on the l2 norm of each example's gradient.
      noise_multiplier: sigma, noise standard deviation per unit of sensitivity, also
        where the accountant amplifies and has another unit.
      epsilon, delta: the guarantee, with `accountant`.
      expected_batch_size: the public constant by which the noisy sum of clipped
        gradients is divided; None if the consumer of the plan has its own.
      accountant: what computed (epsilon, delta) from noise_multiplier.
      kind: "exact", "bound" or "estimate"; see `accounting.guarantee.Guarantee`.
      adjacency: which data sets count as neighbors.
      confidence: of a simulated bound, else None.
      test_seed: None, or a seed from which noise is generated FOR TESTS ONLY: anyone
        who knows it can remove the noise.
      sensitivity: of the strategy under the participation. Computed; one that is given
        (by a file) must agree with the computed one, and is then used to the last bit.
    """

    workload: Workload
    strategy: Strategy
    participation: Participation
    l2_norm_clip: float
    noise_multiplier: float
    epsilon: float
    delta: float
    expected_batch_size: float | None = None
    accountant: str = gaussian.NAME
    kind: str = "exact"
    adjacency: str = ZERO_OUT
    confidence: float | None = None
    test_seed: int | None = None
    sensitivity: Sensitivity | None = None

    def __post_init__(self) -> None:
        n = self.strategy.num_steps
        if self.workload.num_steps != n:
            raise ValueError(
                f"The workload has {self.workload.num_steps} steps, the strategy {n}."
            )
        self.participation.validate_num_steps(n)
        for name in ("l2_norm_clip", "noise_multiplier", "epsilon"):
            _check_positive(name, getattr(self, name))
        if self.expected_batch_size is not None:
            _check_positive("expected_batch_size", self.expected_batch_size)
        low, high = _CLIP_RANGE
        if not low <= self.l2_norm_clip <= high:
            raise ValueError(
                f"l2_norm_clip must be in [{low:g}, {high:g}], found {self.l2_norm_clip}: "
                f"squares of gradients outside of it are not float32 numbers."
            )
        object.__setattr__(self, "strategy", self.strategy.in_float32())
        computed = self.strategy.sensitivity(self.participation)
        if self.sensitivity is None:
            object.__setattr__(self, "sensitivity", computed)
        elif not math.isclose(
            self.sensitivity.value, computed.value, rel_tol=_RELATIVE_TOLERANCE
        ):
            raise ValueError(
                f"The plan states {self.sensitivity}, but found {computed}: it was "
                f"damaged. Make the plan again."
            )
        accountant = accountant_for(self.strategy, self.participation, self.confidence)
        accountant.validate(self.noise_stddev / self.l2_norm_clip, self.guarantee)

    @property
    def num_steps(self) -> int:
        """n, the horizon: a step past it raises."""
        return self.strategy.num_steps

    @property
    def noise_stddev(self) -> float:
        """Standard deviation of each entry of `Z`, the noise before `C^-1`.

        `noise_multiplier * sensitivity * l2_norm_clip`: on the *sum* of clipped
        gradients.
        """
        assert self.sensitivity is not None  # set by __post_init__
        return self.noise_multiplier * self.sensitivity.value * self.l2_norm_clip

    @property
    def zcdp_rho(self) -> float:
        """Rho of zCDP of the whole run; without amplification, whatever is accounted."""
        return gaussian.zcdp_rho(self.noise_multiplier)

    @property
    def guarantee(self) -> Guarantee:
        """(epsilon, delta)-DP, and what the numbers are worth."""
        return Guarantee(
            epsilon=self.epsilon,
            delta=self.delta,
            kind=self.kind,
            accountant=self.accountant,
            adjacency=self.adjacency,
            confidence=self.confidence,
            zcdp_rho=self.zcdp_rho,
        )

    @property
    def fingerprint(self) -> str:
        """SHA-256 over every privacy-relevant field, as 64 hexadecimal digits."""
        content = self.to_config()
        del content["strategy"]["diagnostics"]
        return hashlib.sha256(storage.canonical_bytes(content)).hexdigest()

    @property
    def plan_id(self) -> int:
        """The first 63 bits of the fingerprint, to travel with batches."""
        return int(self.fingerprint[:16], 16) >> 1

    def rmse(self) -> float:
        """RMSE of the noisy models per coordinate, at this noise multiplier.

        In units of l2_norm_clip: `||A C^-1||_F / sqrt(n) * sens(C) * sigma`.
        """
        return self.noise_multiplier * self.strategy.rmse(
            self.workload, self.participation
        )

    def batches(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        sampler_seed: bytes | None = None,
    ) -> BatchSchedule:
        """The batches of the run, sampled as the accountant assumes.

        Args:
          x: array or nested structure of arrays, first dimension `num_examples`.
          y: targets, or None.
          sample_weight: shape [num_examples], or None.
          sampler_seed: of a random sampler: None for a fresh one, or `secret_seed()` of
            the schedule of an interrupted run that is to be continued.

        Raises:
          TypeError: if the plan's participation is asserted by the caller and has no
            schedule of its own.
          ValueError: if the number of examples is not the plan's.
        """
        return schedule_for(
            self.participation,
            self.num_steps,
            self.plan_id,
            x,
            y,
            sample_weight,
            sampler_seed,
        )

    def statement(self) -> PrivacyStatement:
        """The privacy statement of a run of this plan."""
        return PrivacyStatement(
            epsilon=self.epsilon,
            delta=self.delta,
            zcdp_rho=self.zcdp_rho,
            accountant=self.accountant,
            accounting=self.guarantee.describe_kind(),
            adjacency=self.adjacency,
            sampling=self.participation.amplification(),
            participation=self.participation.describe(),
            mechanism=_describe_mechanism(self.strategy),
            num_steps=self.num_steps,
            noise_multiplier=self.noise_multiplier,
            sensitivity=str(self.sensitivity),
            l2_norm_clip=self.l2_norm_clip,
            fingerprint=self.fingerprint,
            test_only=self.test_seed is not None,
        )

    def to_config(self) -> dict[str, Any]:
        """Plain values and arrays; `from_config` rebuilds the plan."""
        return {
            "format": _FORMAT,
            "workload": self.workload.to_config(),
            "strategy": self.strategy.to_config(),
            "participation": self.participation.to_config(),
            "l2_norm_clip": self.l2_norm_clip,
            "noise_multiplier": self.noise_multiplier,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "expected_batch_size": self.expected_batch_size,
            "accountant": self.accountant,
            "kind": self.kind,
            "adjacency": self.adjacency,
            "confidence": self.confidence,
            "test_seed": self.test_seed,
            "sensitivity": dataclasses.asdict(self.sensitivity),  # type: ignore[arg-type]
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Plan:
        """Rebuilds a plan and validates it anew.

        Raises:
          ValueError: if the format is not known or the numbers do not fit together.
        """
        fields = dict(config)
        found = fields.pop("format", None)
        if found != _FORMAT:
            raise ValueError(
                f"The plan has format {found!r}; this version of tf-bandmf reads format "
                f"{_FORMAT}."
            )
        return cls(
            workload=Workload.from_config(fields.pop("workload")),
            strategy=Strategy.from_config(fields.pop("strategy")),
            participation=participation_lib.from_config(fields.pop("participation")),
            sensitivity=Sensitivity(**fields.pop("sensitivity")),
            **fields,
        )

    def save(self, path: str) -> None:
        """Writes `path` (JSON) and beside it, with suffix .npz, the arrays.

        A plan holds no secret: it can be published with the model.
        """
        storage.save(path, {"plan": self.to_config(), "fingerprint": self.fingerprint})

    @classmethod
    def load(cls, path: str) -> Plan:
        """Reads a saved plan; recomputes sensitivity and budget.

        Raises:
          ValueError: if the file was changed: its fingerprint does not fit.
        """
        content = storage.load(path)
        plan = cls.from_config(content["plan"])
        if plan.fingerprint != content["fingerprint"]:
            raise ValueError(
                f"{path} does not have the fingerprint that it states: it was changed "
                f"or damaged after it was saved. Make the plan again."
            )
        return plan

    def __repr__(self) -> str:
        return (
            f"Plan({_describe_mechanism(self.strategy)}, num_steps={self.num_steps}, "
            f"epsilon={self.epsilon:g}, delta={self.delta:g}, "
            f"noise_multiplier={self.noise_multiplier:.4g}, "
            f"fingerprint={self.fingerprint[:12]}"
            + (", FOR TESTS ONLY)" if self.test_seed is not None else ")")
        )


def plan(
    mechanism: str | Strategy,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    noise_multiplier: float | None = None,
    num_examples: int | None = None,
    batch_size: int | None = None,
    epochs: int | None = None,
    num_steps: int | None = None,
    participation: Participation | None = None,
    workload: Workload | None = None,
    momentum: float = 0.0,
    decay: float = 1.0,
    learning_rates: Sequence[float] | None = None,
    l2_norm_clip: float = 1.0,
    bands: int | None = None,
    lambda_: float | None = None,
    column_normalized: bool | None = None,
    objective: str | None = None,
    confidence: float | None = None,
    progress: bool = False,
    test_seed: int | None = None,
) -> Plan:
    """Plans a private run: from a budget to a strategy and its noise.

    Say how the data are used in one of two ways: `num_examples`, `batch_size` and
    `epochs` (a fixed epoch order, which `Plan.batches` enforces), or `participation`
    and, where it does not say so itself, `num_steps`. The participation decides who
    accounts: amplification by sampling is claimed for those only whose sampler is ours
    (`CyclicPoisson`, `Poisson`, `CyclicFixedSize`, `BallsInBins`).

    Formal guarantee: a run of the plan's training step over at most `num_steps` steps,
    on batches that respect the participation, is (epsilon, delta)-DP under the adjacency
    that the plan states, in ideal real arithmetic, with a secret noise key and secret
    random numbers of the sampler. If `Plan.kind` is "estimate", epsilon is one.

    Args:
      mechanism: "identity" (DP-SGD), "lambda_cgd", "bsr", "bisr", or a `Strategy`.
      epsilon: budget, > 0; together with delta.
      delta: budget, in (0, 1); warned about if it is not below 1 / num_examples.
      noise_multiplier: instead of epsilon: noise standard deviation per unit of
        sensitivity; epsilon is then computed at delta.
      num_examples: size of the training set.
      batch_size: examples per step (with a participation: the expected number by which
        the noisy sum is divided).
      epochs: passes over the data.
      num_steps: n, with `participation`.
      participation: for example `MinSep(min_separation=342, max_participations=6)` or
        `BallsInBins(num_examples=60_000, batch_size=512, epochs=10)`.
      workload: what the released models sum; by default SGD with the given `momentum`,
        `decay` and `learning_rates`.
      momentum: of the SGD optimizer that consumes the noisy gradients, in [0, 1).
      decay: factor by which a step shrinks the weights, in (0, 1].
      learning_rates: relative learning rate of each step, shape [n]; None: constant.
      l2_norm_clip: zeta > 0.
      bands: of "bsr" and "bisr"; by default the best power of two up to 32 and b.
      lambda_: of "lambda_cgd"; by default the one with the smallest RMSE.
      column_normalized: scale the columns of C to norm 1; default False.
      objective: "mean" or "max", of "lambda_cgd" without a given lambda.
      confidence: of accounting by simulation (`BallsInBins`): None for an estimate, or
        for example `1 - 1e-6` for a bound.
      progress: show progress on accounting that takes longer than 2 seconds.
      test_seed: for tests only: noise from a known seed. The statement says so.

    Returns:
      A `Plan`.

    Raises:
      ValueError: if the budget is missing, contradictory, invalid or infeasible, or the
        use of the data is missing, contradictory or invalid.
    """
    participation, steps, expected_batch_size = _resolve_participation(
        num_examples, batch_size, epochs, num_steps, participation
    )
    if num_examples is None:
        num_examples = getattr(participation, "num_examples", None)
    delta = _check_budget(epsilon, delta, noise_multiplier, num_examples)
    _check_positive("l2_norm_clip", l2_norm_clip)
    if workload is None:
        workload = workloads.momentum_sgd(steps, momentum, decay, learning_rates)
    elif momentum != 0.0 or decay != 1.0 or learning_rates is not None:
        raise ValueError(
            "Give either workload or momentum, decay and learning_rates: a workload "
            "contains them."
        )
    options = {
        "bands": bands,
        "lambda_": lambda_,
        "column_normalized": column_normalized,
        "objective": objective,
    }
    if isinstance(mechanism, Strategy):
        given = [name for name, value in options.items() if value is not None]
        if given:
            raise ValueError(
                f"The strategy is built already: {', '.join(given)} cannot change it."
            )
        strategy = mechanism
    else:
        strategy = mechanisms.build_strategy(
            mechanism, workload, participation, **options
        )
    strategy = strategy.in_float32()
    noise_multiplier, guarantee = _account(
        strategy, participation, epsilon, delta, noise_multiplier, confidence, progress
    )
    return Plan(
        workload=workload,
        strategy=strategy,
        participation=participation,
        l2_norm_clip=float(l2_norm_clip),
        noise_multiplier=noise_multiplier,
        epsilon=guarantee.epsilon,
        delta=delta,
        expected_batch_size=expected_batch_size,
        accountant=guarantee.accountant,
        kind=guarantee.kind,
        adjacency=guarantee.adjacency,
        confidence=guarantee.confidence,
        test_seed=test_seed,
    )


def _resolve_participation(
    num_examples: int | None,
    batch_size: int | None,
    epochs: int | None,
    num_steps: int | None,
    participation: Participation | None,
) -> tuple[Participation, int, float | None]:
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
    if isinstance(participation, (FixedEpochOrder, BallsInBins, Shuffled)):
        steps = participation.num_steps if num_steps is None else num_steps
        participation.validate_num_steps(steps)
        expected = participation.num_examples / participation.steps_per_epoch
        return participation, steps, expected
    if num_steps is None:
        raise ValueError("num_steps is missing: it is never inferred.")
    participation.validate_num_steps(num_steps)
    expected_size = batch_size if own_batch_size is None else own_batch_size
    return (
        participation,
        num_steps,
        None if expected_size is None else float(expected_size),
    )


def _check_budget(
    epsilon: float | None,
    delta: float | None,
    noise_multiplier: float | None,
    num_examples: int | None,
) -> float:
    """Delta, if the budget is complete and not contradictory."""
    if delta is None:
        raise ValueError("delta is missing: a common choice is below 1 / num_examples.")
    gaussian.check_delta(delta)
    if (epsilon is None) == (noise_multiplier is None):
        raise ValueError(
            f"Give exactly one of epsilon and noise_multiplier, found epsilon = "
            f"{epsilon}, noise_multiplier = {noise_multiplier}."
        )
    if epsilon is not None:
        _check_positive("epsilon", epsilon)
    else:
        _check_positive("noise_multiplier", noise_multiplier)
    if num_examples is not None and delta >= 1.0 / num_examples:
        warnings.warn(
            f"delta = {delta} is not below 1 / num_examples = {1.0 / num_examples:.3g}: "
            f"such a delta permits to publish somebody's data.",
            stacklevel=3,
        )
    return float(delta)


def _account(
    strategy: Strategy,
    participation: Participation,
    epsilon: float | None,
    delta: float,
    noise_multiplier: float | None,
    confidence: float | None,
    progress: bool,
) -> tuple[float, Guarantee]:
    """The noise per unit of sensitivity, and the guarantee."""
    accountant = accountant_for(strategy, participation, confidence, progress=progress)
    sensitivity = strategy.sensitivity(participation).value
    if epsilon is None:
        assert noise_multiplier is not None
        guarantee = accountant.guarantee(noise_multiplier * sensitivity, delta)
        return float(noise_multiplier), guarantee
    found = accountant.calibrate(float(epsilon), delta)
    if found.normalization == "sensitivity":
        return found.noise_multiplier, found.guarantee
    # Rounded up: the product with the sensitivity must not be smaller.
    return found.noise_stddev / sensitivity * (1.0 + 1e-12), found.guarantee


def _describe_mechanism(strategy: Strategy) -> str:
    values = (
        f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in strategy.parameters.items()
    )
    inside = ", ".join(values)
    return f"{strategy.family}({inside})" if inside else strategy.family


def _check_positive(name: str, value: Any) -> None:
    number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not number or not (math.isfinite(value) and value > 0.0):
        raise ValueError(f"{name} must be finite and > 0, found {value!r}.")
