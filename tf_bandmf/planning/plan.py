"""The class `Plan`, which determines everything that a private run does.

A plan fixes the strategy, the number of steps, the participation, the noise multiplier
and the privacy budget. All training code takes a plan and must not deviate from it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Callable

import numpy as np

from tf_bandmf import matrices
from tf_bandmf import participation as participation_lib
from tf_bandmf.accounting import checks, gaussian
from tf_bandmf.accounting.base import Accountant, EpsilonIsZero
from tf_bandmf.accounting.guarantee import REPLACE_ONE, ZERO_OUT, Guarantee
from tf_bandmf.analysis.sensitivity import Sensitivity
from tf_bandmf.files import configs
from tf_bandmf.participation import Participation
from tf_bandmf.planning import learning_rates, statement
from tf_bandmf.planning.account import Account
from tf_bandmf.planning.compare import Comparison
from tf_bandmf.planning.measurements import Measurements
from tf_bandmf.planning.memory import STEP_BYTES, NoiseMemory
from tf_bandmf.planning.statement import ONE_EXAMPLE, PrivacyStatement
from tf_bandmf.planning.texts import phrase, phrases
from tf_bandmf.strategies import Strategy, registry
from tf_bandmf.workloads import Workload

if TYPE_CHECKING:
    import dp_accounting

    from tf_bandmf.sampling import BatchSchedule

_FORMAT = 1
# The relative amount by which a calibrated noise multiplier is rounded up.
_ROUNDING = 5e-10
# The tolerance for differences between saved and recomputed numbers. Such differences
# occur because versions of NumPy and SciPy differ in rounding.
_RELATIVE_TOLERANCE = 1e-6
_CLIP_RANGE = (1e-10, 1e10)
# The fields of a plan that are objects, with the functions that restore them from a
# configuration.
_PARTS: dict[str, Callable[[Any], Any]] = {
    "account": lambda config: Account(**config),
    "measurements": lambda config: Measurements(**config),
    "sensitivity": lambda config: Sensitivity(**config),
    "workload": lambda config: Workload(**config),
    "strategy": Strategy.from_config,
    "participation": participation_lib.from_config,
}
_DELTAS = {10.0**-i for i in range(3, 11)}


# The fields of a plan that state its guarantee, except delta.
_STATED = ("epsilon", "accountant", "kind", "adjacency", "confidence")


def stated(guarantee: Guarantee) -> dict[str, Any]:
    """Returns a guarantee's values for the fields of a plan named in `_STATED`."""
    return {name: getattr(guarantee, name) for name in _STATED}


def multiplier_of(noise_stddev: float, sensitivity: float) -> float:
    """Divides a calibrated noise level by the sensitivity to get the noise multiplier.

    The multiplier is rounded up by a relative 5e-10. Therefore an epsilon that is later
    computed from the multiplier does not exceed the budget, although computed epsilons
    are rounded up, too (by a relative 1e-10).
    """
    return noise_stddev / sensitivity * (1.0 + _ROUNDING)


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """An immutable, serializable description of one private training run.

    Create a plan with `tf_bandmf.plan`, which calibrates the noise. The constructor
    raises an error if the numbers of a plan are inconsistent.

    Attributes:
      workload: A, the linear map from the noisy gradients of all steps to the models.
      strategy: the strategy, with a matrix C for `num_steps` steps.
      participation: the steps at which one example may take part.
      l2_norm_clip: zeta, the bound on the l2 norm of each example's gradient.
      noise_multiplier: sigma, the noise standard deviation at l2_norm_clip = 1, divided
        by `sensitivity`. This definition also holds for accountants with amplification,
        which do not compute epsilon from the sensitivity.
      epsilon, delta: the guarantee, computed by `accountant`.
      expected_batch_size: the public constant that divides the noisy sum of clipped
        gradients; None if the code that uses the plan has its own divisor.
      accountant: name of the accountant that computed (epsilon, delta) from
        noise_multiplier.
      kind: how certain epsilon is: "exact", "bound" or "estimate".
      adjacency: definition of neighboring data sets.
      confidence: confidence of a simulated bound, or None.
      test_seed: None, or a seed from which noise is generated FOR TESTS ONLY: anyone
        who knows it can remove the noise.
      sensitivity: sensitivity of the strategy under the participation. The constructor
        computes it; if the caller passes a value (from a file), the value must agree
        with the computed one and is then used unchanged.
      unit: the privacy unit, in one line of text. The sampler draws such units, and the
        guarantee hides the presence of each one.
      generator: generator of the noise, "philox" or "chacha20".
      account: the account in a ledger in which a run reserves its privacy cost before
        it starts, or None.
      measurements: private counts and metrics that a run may release in addition to
        its models; see `reserve`.
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
    unit: str = ONE_EXAMPLE
    generator: str = "philox"
    account: Account | None = None
    measurements: Measurements = dataclasses.field(default_factory=Measurements)

    def __post_init__(self) -> None:
        n = self.strategy.num_steps
        if self.workload.num_steps != n:
            raise ValueError(
                f"workload must have {n} steps, found {self.workload.num_steps}."
            )
        self.participation.validate_num_steps(n)
        for name in ("l2_norm_clip", "noise_multiplier", "epsilon"):
            checks.check_positive(name, getattr(self, name))
        checks.check_planned_delta(self.delta)
        seed = self.test_seed
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise ValueError(f"test_seed must be an int or None, found {seed!r}.")
        if self.expected_batch_size is not None:
            checks.check_positive("expected_batch_size", self.expected_batch_size)
        statement.check_unit(self.unit)
        checks.check_word("generator", self.generator, statement.GENERATORS)
        low, high = _CLIP_RANGE
        if not low <= self.l2_norm_clip <= high:
            raise ValueError(
                f"l2_norm_clip must be in [{low:g}, {high:g}], found "
                f"{self.l2_norm_clip}: squares of gradients must fit in float32."
            )
        object.__setattr__(self, "strategy", self.strategy.in_float32())
        computed = self.strategy.sensitivity(self.participation)
        if self.sensitivity is None:
            object.__setattr__(self, "sensitivity", computed)
        elif not math.isclose(
            self.sensitivity.value, computed.value, rel_tol=_RELATIVE_TOLERANCE
        ):
            raise ValueError(
                f"The plan was damaged: its sensitivity is {computed}, but the plan "
                f"states {self.sensitivity}. Make the plan again."
            )
        self.accounting().validate(self.unit_noise_stddev, self.guarantee)

    @property
    def num_steps(self) -> int:
        """The number n of steps of the run; any further step raises an error."""
        return self.strategy.num_steps

    @property
    def batch_size(self) -> float | None:
        """The planned batch size; None if the plan does not fix a batch size.

        The actual sizes of batches may differ from it. The noisy sum is divided by
        the constant `expected_batch_size`.
        """
        return getattr(self.participation, "batch_size", self.expected_batch_size)

    @property
    def epochs(self) -> int:
        """The number of epochs after which `fit` has made all steps of the plan.

        Raises:
          TypeError: if the library has no schedule for the plan's participation, so the
            caller must make the batches.
        """
        return -(-self.num_steps // self.participation.steps_per_epoch)

    @property
    def mechanism(self) -> str:
        """A description of the strategy: its name in tables, and its parameters."""
        name = registry.specification(self.strategy)
        described = self.strategy.describe()
        parameters = described.removeprefix(self.strategy.family)
        return name if name == described else f"{name} {parameters}".strip()

    @property
    def noise_stddev(self) -> float:
        """The standard deviation of the independent normals Z; the noise is `C^-1 Z`.

        Here C is the matrix of the strategy, and the noise is added to the *sum* of
        clipped gradients. The value is `noise_multiplier * sensitivity * l2_norm_clip`.
        With private counts, a bound on the norm of the vector of gradient and counts
        replaces l2_norm_clip. The value is rounded up to float32, the precision of
        training, because rounding to nearest could reduce the noise. The larger of
        l2_norm_clip and its float32 value is used.
        """
        clip = max(self.l2_norm_clip, float(np.float32(self.l2_norm_clip)))
        wanted = self.unit_noise_stddev * clip * self.measurements.norm
        single = np.float32(min(wanted, float(np.finfo(np.float32).max)))
        if float(single) < wanted:
            single = np.nextafter(single, np.float32(np.inf))
        if not np.isfinite(single):
            raise ValueError(
                f"The noise standard deviation must be below 3e38, found {wanted:g}. "
                f"Use a smaller l2_norm_clip."
            )
        return float(single)

    @property
    def unit_noise_stddev(self) -> float:
        """The noise standard deviation divided by the clip norm.

        It is the noise multiplier times the sensitivity. For "identity" (C = I), TF
        Privacy and Opacus call this value the noise multiplier.
        """
        # `__post_init__` has computed the sensitivity if the caller passed none.
        assert self.sensitivity is not None
        return self.noise_multiplier * self.sensitivity.value

    @property
    def zcdp_rho(self) -> float:
        """The zCDP rho of the whole run, computed without amplification by sampling.

        The value holds for the plan's adjacency. Replacing a privacy unit by another
        one can change a step's sum of clipped gradients twice as much as zeroing the
        unit out. Therefore rho for replace-one is 4 times the rho for zero-out: rho
        grows with the square of the sensitivity (Bun and Steinke, 2016,
        arXiv:1605.02065, Proposition 1.6).
        """
        rho = gaussian.zcdp_rho(self.unamplified_noise)
        return 4.0 * rho if self.adjacency == REPLACE_ONE else rho

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the run: epsilon, delta, and how certain epsilon is."""
        fields = {name: getattr(self, name) for name in ("delta", *_STATED)}
        return Guarantee(**fields, zcdp_rho=self.zcdp_rho)

    @property
    def unamplified_noise(self) -> float:
        """The noise multiplier of one Gaussian mechanism that is as private as the run.

        The value is for zero-out adjacency, without amplification by sampling. It
        covers the steps and the reserved private evaluations.
        """
        if not self.measurements.evaluations:
            return self.noise_multiplier
        return 1.0 / math.hypot(1.0 / self.noise_multiplier, self.measurements.mu)

    def reserve(
        self, *, counts: float = 0.0, metrics: float = 0.0, evaluations: int = 0
    ) -> Plan:
        """Returns a plan with the same guarantee and with budget for measurements.

            plan = tf_bandmf.plan("bisr", epsilon=2, ...).reserve(
                counts=0.01, metrics=0.1, evaluations=10
            )

        The steps get more noise, so that (epsilon, delta) covers the composition of
        steps, counts and evaluations; see `planning.measurements`. For sampling without
        replacement, and for sampling whose accounting needs a simulation, the epsilons
        of steps and evaluations are added, and `metrics` is a share of epsilon.

        Args:
          counts: share of each step's noise budget, in [0, 0.5], for private counts of
            examples that were clipped, had no gradient, or were invalid; the noise of
            gradients grows by `1 / sqrt(1 - counts)`.
          metrics: share of the budget (measured as zCDP rho) for private evaluations;
            without amplification, the noise of the steps grows by
            `1 / sqrt(1 - metrics)`.
          evaluations: maximum number of private evaluations.

        Raises:
          ValueError: if a number is out of range, if nothing is reserved, if the plan
            already has a reservation, or if no budget is left for the steps.
        """
        if self.measurements != Measurements():
            raise ValueError(
                "The plan already has a reservation. Call reserve(...) once, with all "
                "arguments, on a plan without a reservation."
            )
        if not (counts or metrics or evaluations):
            raise ValueError(
                "Nothing is reserved. Pass, for example, counts=0.01, or metrics=0.1 "
                "and evaluations=10."
            )
        evaluations = checks.whole_number("evaluations", evaluations, least=0)
        if (metrics == 0.0) != (evaluations == 0):
            raise ValueError(
                f"Pass both metrics (a share of the budget) and evaluations (a number), or "
                f"neither. This call has metrics={metrics}, evaluations={evaluations}."
            )
        if not 0.0 <= metrics < 1.0:
            raise ValueError(f"metrics must be in [0, 1), found {metrics!r}.")
        if not evaluations:
            return dataclasses.replace(self, measurements=Measurements(float(counts)))
        base = self.accounting()
        # `unit` is the noise multiplier sigma of one Gaussian mechanism that spends the
        # whole budget. All evaluations together get the share `metrics` of
        # `1 / sigma^2`, which is proportional to the zCDP rho.
        unit = gaussian.calibrate_noise_stddev(self.epsilon, self.delta)
        noise = base.moved_by * unit * math.sqrt(evaluations / metrics)
        kept = Measurements(float(counts), evaluations, noise)
        return self._with_noise_of(kept.with_evaluations(base), measurements=kept)

    def bounded(self, *, confidence: float = 0.999999) -> Plan:
        """Returns a plan whose noise is calibrated to a simulated bound on epsilon.

        This method is for plans whose accounting needs a simulation ("balls-in-bins",
        "b-min-sep"), and whose epsilon is otherwise an estimate. If a bound would take
        too many draws (at a very small delta), the noise is calibrated without
        amplification; a warning and the privacy statement say so.

        Args:
          confidence: confidence of the simulated bound, in (0, 1).

        Raises:
          ValueError: if confidence is out of range, if the accounting needs no
            simulation, or if the plan has a reservation (call `bounded` before
            `reserve`).
        """
        if not self.participation.is_simulated:
            raise ValueError(
                f"bounded(confidence={confidence!r}) needs simulated accounting, which "
                f"only BallsInBins and BMinSepSampling have. Use this plan as it is."
            )
        if self.measurements != Measurements():
            raise ValueError("Call bounded() before reserve(), not after reserve().")
        return self._with_noise_of(self.accounting(confidence))

    def _with_noise_of(self, accountant: Accountant, **changes: Any) -> Plan:
        """Returns this plan with the noise that `accountant` needs for the budget.

        The `changes` are values of other fields of the new plan.
        """
        assert self.sensitivity is not None
        made = accountant.calibrate(self.epsilon, self.delta)
        noise = multiplier_of(made.noise_stddev, self.sensitivity.value)
        changes |= stated(made.guarantee)
        return dataclasses.replace(self, noise_multiplier=noise, **changes)

    def guarantee_at(self, delta: float, confidence: float | None = None) -> Guarantee:
        """Returns the run's guarantee at another delta, from the plan's accountant.

        Args:
          delta: in (0, 1).
          confidence: confidence of a simulated bound, for this delta only; by default
            the plan's confidence.

        Raises:
          ValueError: if delta is not in (0, 1), or so large that epsilon would be 0.
        """
        accountant = self.accounting(confidence)
        return accountant.guarantee(self.unit_noise_stddev, delta)

    def epsilon_after(self, steps: int, delta: float | None = None) -> float:
        """Returns the epsilon of a run that stops after the first `steps` steps.

        WARNING: the value holds only if the number of steps does not depend on the
        private run, for example because it was fixed in advance or by a clock. A run
        that is stopped because of its models' quality, for example by `EarlyStopping`,
        has the epsilon of the whole plan.

        Args:
          steps: number of steps, in [0, num_steps].
          delta: delta at which epsilon is computed; by default the plan's delta.

        Returns:
          Epsilon >= 0, computed by the plan's accountant; at most the epsilon of the
          whole run, and of the same kind (exact, bound or estimate).

        Raises:
          ValueError: if the plan has fewer than `steps` steps, or delta is not in (0, 1).
        """
        given = self.delta if delta is None else delta
        checks.check_delta(given)
        steps = checks.whole_number("steps", steps, 0, self.num_steps, "num_steps")
        if steps == 0:
            return 0.0
        if self.participation.is_simulated:
            # The simulation covers only whole epochs. Rounding up to whole epochs is
            # safe, because more steps spend more budget.
            epoch = self.participation.separation()
            steps = min(-(-steps // epoch) * epoch, self.num_steps)

        def reached(first: int) -> float:
            accountant = self.accounting(steps=first)
            try:
                return accountant.guarantee(self.unit_noise_stddev, given).epsilon
            except EpsilonIsZero:
                return 0.0

        # The first steps are part of the whole run, so their epsilon is at most that of
        # the whole run, even if the bound computed for the first steps is larger.
        whole = self.epsilon if given == self.delta else reached(self.num_steps)
        return whole if steps == self.num_steps else min(reached(steps), whole)

    @property
    def choice(self) -> Comparison | None:
        """The table from which the mechanism was chosen; None if the caller named one."""
        record = self.strategy.diagnostics.get("choice")
        return None if record is None else Comparison.from_record(record)

    def epsilon_curve(self, deltas: Sequence[float] | None = None) -> list[Guarantee]:
        """Returns the run's guarantees at several deltas, in order of decreasing delta.

        Args:
          deltas: values in (0, 1); by default 1e-3 to 1e-10 and the plan's delta, except
            those for which epsilon would be 0 or cannot be computed.
        """
        accountant, noise = self.accounting(), self.unit_noise_stddev
        if deltas is not None:
            return [accountant.guarantee(noise, float(delta)) for delta in deltas]
        curve = [self.guarantee]
        for delta in _DELTAS - {self.delta}:
            with contextlib.suppress(ValueError, ArithmeticError):
                curve.append(accountant.guarantee(noise, delta))
        return sorted(curve, key=lambda one: -one.delta)

    def dp_event(self) -> dp_accounting.DpEvent:
        """Returns the whole run as a dp-accounting event, to compose with other releases.

        The accountants of dp-accounting accept the event, for example to check epsilon
        independently:
        `rdp.RdpAccountant().compose(plan.dp_event()).get_epsilon(delta)`.

        A run with a fixed order of examples is one `GaussianDpEvent`. Cyclic Poisson
        sampling, with n steps and b parts of the data, is `ceil(n / b)` Poisson-sampled
        Gaussian events. Cyclic sampling without replacement is `ceil(n / b)` sampled
        Gaussian events, for replace-one adjacency. For a shuffled order, the method
        returns the event of a fixed order, because shuffling is at least as private.

        Raises:
          ValueError: if dp-accounting has no event for the participation, as for
            `BallsInBins` and `BMinSepSampling`.
        """
        return self.accounting().event(self.unit_noise_stddev)

    def accounting(
        self, confidence: float | None = None, steps: int | None = None
    ) -> Accountant:
        """Returns the accountant of a run, or of its first `steps` steps.

        In both cases, the accountant covers all reserved private evaluations.
        """
        confidence = self.confidence if confidence is None else confidence
        rows = self.num_steps if steps is None else steps
        matrix = matrices.leading_block(self.strategy.matrix, rows)
        base = self.participation.accountant(matrix, confidence)
        return self.measurements.with_evaluations(base)

    @functools.cached_property
    def fingerprint(self) -> str:
        """The SHA-256 of all privacy-relevant fields, as 64 hexadecimal digits."""
        content = self.to_config()
        del content["strategy"]["diagnostics"]
        return hashlib.sha256(configs.canonical_bytes(content)).hexdigest()

    @property
    def plan_id(self) -> int:
        """The first 63 bits of the fingerprint. Each batch contains this number."""
        return int(self.fingerprint[:16], 16) >> 1

    def rmse(self) -> float:
        """The RMSE per coordinate of the noisy models, at the plan's noise multiplier.

        The value is for l2_norm_clip = 1. It is the noise multiplier times
        `Strategy.rmse` times `measurements.norm`, which is above 1 if there are private
        counts.
        """
        unit = self.strategy.rmse(self.workload, self.participation)
        return self.noise_multiplier * unit * self.measurements.norm

    def optimizer_arguments(
        self, num_parameters: int, optimizer: str = "sgd", loss: Any = None
    ) -> dict[str, Any]:
        """Returns Keras optimizer arguments: learning rate, momentum, weight averaging.

            keras.optimizers.SGD(**plan.optimizer_arguments(model.count_params()))

        The learning rate follows the rule in `planning.learning_rates`. The momentum is
        that of the plan's workload.

        Args:
          num_parameters: d, the number of trainable weights of the model.
          optimizer: "sgd", or "adam", which is meant for plans with independent noise
            ("identity").
          loss: Keras loss of the model, or its name; None for classification.

        Raises:
          ValueError: if the optimizer is neither "sgd" nor "adam"; or, for "sgd", if
            the plan has no expected batch size, or its workload has a schedule of
            learning rates.
        """
        checks.check_word("optimizer", optimizer, ("sgd", "adam"))
        inner: dict[str, Any] = {"learning_rate": learning_rates.RATE_OF_ADAM}
        if optimizer == "sgd":
            size = checks.whole_number("num_parameters", num_parameters)
            rate = learning_rates.rate_of(self, size, loss)
            inner = {"learning_rate": float(f"{rate:.3g}")}
            if self.workload.momentum:
                inner["momentum"] = self.workload.momentum
        average = learning_rates.ema_momentum(self.num_steps)
        return {**inner, "use_ema": True, "ema_momentum": average}

    def batches(
        self,
        x: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        padded: bool = False,
        map: Callable[..., Any] | None = None,
        views: int = 1,
        users: Any = None,
        rows_per_user: int | None = None,
        ranges: Mapping[str, Any] | None = None,
    ) -> BatchSchedule:
        """Returns the batches of a run, with the sampling that the accountant assumes.

        Random sampling needs a secret seed for each run. In Keras, `fit` or
        `model.begin_run(batches)` draws it; elsewhere, call
        `batches.join(key.sampler_seed())` with a `NoiseKey`.

        Args:
          x: array or nested structure of arrays with first dimension `num_examples`; or
            TFRecord files, as `sampling.TFRecordExamples`; or any object with a length
            and with items `x[i]`, each an example with its targets. Only with
            `sampling="fixed-order"`, x may also be a data set that yields examples with
            their targets and is read in its own order: a `tf.data.Dataset`, a
            `keras.utils.PyDataset`, or a function that returns an iterator.
          y: targets, or None.
          sample_weight: shape [num_examples], or None.
          padded: True to pad all batches to one constant size, with zeros of sample
            weight 0. Otherwise, batch sizes may differ.
          map: augmentation: a random function that is applied to single examples, or a
            Keras layer; see `sampling.mapped.Mapped`. The function's random numbers
            differ at each step and are reproduced in a resumed run.
          views: augmentation multiplicity (De et al., 2022, arXiv:2204.13650): each
            example is read this many times, `map` makes each view different, and the
            example's loss is the mean of the views' losses; its gradient is clipped
            once. This costs computation, but no privacy.
          users: the user of each row of x, shape [rows], integers or strings, if the
            plan's unit is one user. Then the plan's `num_examples` is the number of
            users, and its `batch_size` is the number of users per step. The loss of a
            user is the mean loss of the user's rows in a step; its gradient is clipped
            once.
          rows_per_user: maximum number of rows of one user that a step uses; if a user
            has more rows, that many are chosen at random. Required with `users`.
          ranges: ranges that the values are declared to have, as in
            `{"x": (0, 255), "y": (0, 9)}`. An example with a value outside its range
            contributes nothing, and `fit` rejects a model that does not match the
            ranges. See `sampling.changes.Ranges`.

        Raises:
          TypeError: if the library has no schedule for the plan's participation, so the
            caller must make the batches; or if `map` is neither a function of one
            example nor a layer.
          ValueError: if the number of examples differs from the plan's number, or if
            examples are overlapping windows of one time series and the plan's unit is
            one training example.
        """
        from tf_bandmf.sampling import BatchSchedule
        from tf_bandmf.sampling.changes import warn_of_example_weights
        from tf_bandmf.sampling.examples import Examples

        if users is None:
            warn_of_example_weights(sample_weight)
        elif self.unit == ONE_EXAMPLE:
            raise ValueError(
                "With users, the plan's unit must not be one training example. Pass "
                "unit='one user' to tf_bandmf.plan, the number of users as "
                "num_examples, and the number of users per step as batch_size."
            )
        use: Any = self.participation
        if not use.has_schedule:
            raise TypeError(use.no_schedule())
        examples = Examples(
            use.num_examples,
            x,
            y,
            sample_weight,
            may_overlap=self.unit != ONE_EXAMPLE,
            map=map,
            views=views,
            users=users,
            rows_per_user=rows_per_user,
            ranges=ranges,
        )
        if users is None and self.unit != ONE_EXAMPLE:
            examples.remarks += (
                f"Each row was treated as all data of {self.unit}. This was not checked, "
                f"because plan.batches received no users.",
            )
        return BatchSchedule(use, self.num_steps, self.plan_id, examples, padded)

    def memory(self, num_parameters: int, keep_normals: bool = False) -> NoiseMemory:
        """Returns the memory that the noise needs for a model.

        Args:
          num_parameters: d, the number of trainable parameters.
          keep_normals: whether strategies with a banded inverse store earlier noise
            vectors instead of regenerating them; see `NoiseGenerator`.

        Raises:
          ValueError: if an argument is < 1.
        """
        size = checks.whole_number("num_parameters", num_parameters)
        strategy = self.strategy
        vectors, again = strategy.memory_vectors, strategy.regenerations_per_step
        if keep_normals and strategy.is_inverse_banded:
            vectors, again = again, 0
        keys = STEP_BYTES[self.generator] * self.num_steps
        return NoiseMemory(size, vectors, again, keys)

    def statement(self, unit: str | None = None) -> PrivacyStatement:
        """Returns the privacy statement of a run of this plan.

        Args:
          unit: the privacy unit, such as "one device"; by default the plan's unit. The
            caller asserts that one example of the plan is one such unit, because for a
            unit with several examples, only group privacy holds.

        Raises:
          ValueError: if the unit is not one line of text.
        """
        guarantee, use = self.guarantee, self.participation
        participation, sampling = use.describe(), use.amplification()
        if guarantee.is_unamplified:
            guarantee = dataclasses.replace(guarantee, confidence=None)
            sampling = "No amplification by sampling is claimed."
        if self.unit != ONE_EXAMPLE:
            participation += f" {phrase('parts', 'unit', plan=self)}"
        clips = self.noise_stddev / self.l2_norm_clip
        return PrivacyStatement(
            guarantee=guarantee,
            mu=math.sqrt(2.0 * self.zcdp_rho),
            unit=self.unit if unit is None else unit,
            plans=(self,),
            sampling=sampling,
            participation=participation,
            remarks=tuple(filter(None, [str(self.measurements)])),
            proviso="",
            **phrases("one run", plan=self, clips=clips),
        )

    def to_config(self) -> dict[str, Any]:
        """Returns a dictionary from which `from_config` restores the plan."""
        config: dict[str, Any] = {"format": _FORMAT}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if hasattr(value, "to_config"):
                value = value.to_config()
            elif dataclasses.is_dataclass(value):
                value = dataclasses.asdict(value)  # type: ignore[arg-type]
            config[field.name] = value
        return config

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Plan:
        """Restores a plan from the result of `to_config`, and validates it.

        Raises:
          ValueError: if the format is unknown or the numbers are inconsistent.
        """
        fields = dict(config)
        written = fields.pop("format", None)
        if written != _FORMAT:
            raise ValueError(
                f"The plan's format must be {_FORMAT} for this version of tf-bandmf, "
                f"found {written!r}. Make the plan again with this version."
            )
        for name, made_from in _PARTS.items():
            if fields[name] is not None:
                fields[name] = made_from(fields[name])
        return cls(**fields)

    def save(self, path: str) -> None:
        """Writes the plan to a JSON file.

        A plan contains no secrets, so it can be published with the model.
        """
        content = {"plan": self.to_config(), "fingerprint": self.fingerprint}
        text = configs.dumps(content, indent=2)
        pathlib.Path(path).write_text(text + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str) -> Plan:
        """Reads a saved plan; validates it by recomputing sensitivity and epsilon.

        Raises:
          OSError: if the file does not exist or cannot be read.
          ValueError: if the file is not a plan, or if its fingerprint does not match
            because the file was changed.
        """
        written = pathlib.Path(path).read_bytes()
        try:
            content = configs.loads(written.decode("utf-8"))
            plan = cls.from_config(content["plan"])
            actual, stated = plan.fingerprint, content["fingerprint"]
        except Exception as error:  # An invalid file may cause any error.
            detail = str(error).removeprefix(f"{path} ").rstrip(".")
            raise ValueError(
                f"{path} is damaged or is not a plan ({type(error).__name__}: {detail}). "
                f"Make the plan again."
            ) from error
        if actual != stated:
            raise ValueError(
                f"The fingerprint in {path} does not match the plan: the file was changed "
                f"or damaged after it was saved. Make the plan again."
            )
        return plan

    def __repr__(self) -> str:
        return (
            f"Plan({self.strategy.describe()}, num_steps={self.num_steps}, "
            f"epsilon={self.epsilon:g}, delta={self.delta:g}, "
            f"noise={self.unit_noise_stddev:.4g} clip norms, "
            f"fingerprint={self.fingerprint[:12]}"
            + (", FOR TESTS ONLY)" if self.test_seed is not None else ")")
        )
