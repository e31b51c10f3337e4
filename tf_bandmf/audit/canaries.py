"""The white-box audit of a correlated-noise mechanism: gradients as canaries."""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy import special

from tf_bandmf.audit.evaluation import AuditResult, best_threshold, evaluate
from tf_bandmf.matrices import LowerTriangular
from tf_bandmf.participation import BallsInBins, Participation
from tf_bandmf.planning.plan import Plan

# Seed of the run in which a threshold is chosen.
_REHEARSAL = 2**62
# Entries of an intermediate array held at once.
_CHUNK = 8_000_000


@dataclasses.dataclass(frozen=True, eq=False)
class GradientCanaries:
    """Gradients of norm `l2_norm_clip`, each in the run or not by a fair coin.

    Whoever sees the noisy sums `y = g + noise_stddev C^-1 z` of all steps, and knows C,
    whitens them: `C y / noise_stddev` has independent standard normal noise, in which
    canary j, with gradient `zeta x_j[i] v_j` at step i, is the signal
    `zeta C x_j (x) v_j / noise_stddev`. The optimal statistic is the matched filter,
    the inner product of the two (Neyman and Pearson): no other test of the same
    released values is better. If the participation is amplified, the steps of a canary
    are secret: the plan's own sampler draws them, and the statistic is the likelihood
    ratio of the mixture over them.

    Attributes:
      plan: whose mechanism is audited.
      num_parameters: d.
      patterns: x, float64, shape [m, n]: what each canary adds along its direction.
      included: bool, shape [m].
      directions: v, shape [m, d], orthonormal rows; None if canary j is coordinate j.
    """

    plan: Plan
    num_parameters: int
    patterns: np.ndarray
    included: np.ndarray
    directions: np.ndarray | None = None

    @classmethod
    def for_plan(
        cls,
        plan: Plan,
        num_parameters: int,
        *,
        seed: int,
        num_canaries: int | None = None,
        directions: np.ndarray | None = None,
    ) -> GradientCanaries:
        """Canaries that use the plan's participation to the full.

        Args:
          plan: of the run.
          num_parameters: d, of the released vectors.
          seed: of coins and sampler.
          num_canaries: m <= d; None for one per direction.
          directions: see the class; other directions reveal other faults.

        Raises:
          ValueError: if there are more canaries than orthogonal directions, or the
            directions are not orthonormal.
        """
        most = num_parameters if directions is None else len(directions)
        m = most if num_canaries is None else num_canaries
        if not 2 <= m <= min(most, num_parameters):
            raise ValueError(
                f"num_canaries must be in [2, {min(most, num_parameters)}], the number "
                f"of orthogonal directions, found {m}."
            )
        if directions is not None:
            directions = np.asarray(directions, np.float64)[:m]
            gram = directions @ directions.T
            if directions.shape[1] != num_parameters or not np.allclose(
                gram, np.eye(m), atol=1e-6
            ):
                raise ValueError(
                    f"directions must be orthonormal rows of length {num_parameters}."
                )
        rng = np.random.default_rng(seed)
        n = plan.num_steps
        if plan.participation.is_amplified:
            patterns = sampled_patterns(plan.participation, n, m, rng)
        else:
            worst = worst_pattern(plan.strategy.matrix, plan.participation)
            patterns = np.broadcast_to(worst, (m, n))
        included = rng.random(m) < 0.5
        return cls(plan, num_parameters, patterns, included, directions)

    def sums(self) -> np.ndarray:
        """The sums that the participating canaries add, shape [n, d]."""
        amounts = self.plan.l2_norm_clip * self.patterns * self.included[:, None]
        if self.directions is not None:
            return amounts.T @ self.directions
        sums = np.zeros((self.plan.num_steps, self.num_parameters))
        sums[:, : len(amounts)] = amounts.T
        return sums

    @property
    def signals(self) -> np.ndarray:
        """`zeta |C x_j| / noise_stddev`, shape [m]: mu of each canary's own test."""
        return np.sqrt(np.sum(self._moved() ** 2, axis=0))

    def _moved(self) -> np.ndarray:
        """`zeta C x_j / noise_stddev`, shape [n, m]."""
        scale = self.plan.l2_norm_clip / self.plan.noise_stddev
        return scale * self.plan.strategy.matrix.matmul(np.array(self.patterns.T))

    def scores(self, released: np.ndarray) -> np.ndarray:
        """The logarithm of the likelihood ratio of each canary, shape [m].

        At 0, both hypotheses are equally likely.

        Args:
          released: noisy *sums*, shape [n, d], of the canaries alone; what other
            examples added must be subtracted, because the auditor knows them.

        Raises:
          ValueError: if the shape is another one.
        """
        n, d = self.plan.num_steps, self.num_parameters
        released = np.asarray(released, np.float64)
        if released.shape != (n, d):
            raise ValueError(
                f"released must have the shape {(n, d)}, found {released.shape}."
            )
        along = self._along(released) / self.plan.noise_stddev
        whitened = self.plan.strategy.matrix.matmul(along)
        scale = self.plan.l2_norm_clip / self.plan.noise_stddev
        if not self.plan.participation.is_amplified:
            moved = self._moved()
            return np.sum(moved * (whitened - 0.5 * moved), axis=0)
        if isinstance(self.plan.participation, BallsInBins):
            return self._bins(whitened, scale)
        return self._steps(whitened, scale)

    def _along(self, released: np.ndarray) -> np.ndarray:
        """The released values along each canary's direction, shape [n, m]."""
        if self.directions is None:
            return released[:, : len(self.patterns)]
        return released @ self.directions.T

    def _bins(self, whitened: np.ndarray, scale: float) -> np.ndarray:
        """Log of the mean over the bins of the likelihood ratio of each."""
        bins = self.plan.participation.separation()
        steps = np.arange(self.plan.num_steps)
        in_bin = (steps[:, None] % bins == np.arange(bins)).astype(np.float64)
        means = scale * self.plan.strategy.matrix.matmul(in_bin)
        logs = means.T @ whitened - 0.5 * np.sum(means**2, axis=0)[:, None]
        return special.logsumexp(logs, axis=0) - np.log(bins)

    def _steps(self, whitened: np.ndarray, scale: float) -> np.ndarray:
        """The sum over steps of log(1 - q + q likelihood ratio), q the rate of each step.

        Optimal for cyclic Poisson sampling, where the columns of C at one example's steps
        are orthogonal; for other samplers of single steps a good statistic.
        """
        participation, n = self.plan.participation, self.plan.num_steps
        parts = participation.separation()
        size = participation.num_examples  # type: ignore[attr-defined]
        columns = scale * self.plan.strategy.matrix.matmul(np.eye(n))
        logs = columns.T @ whitened - 0.5 * np.sum(columns**2, axis=0)[:, None]
        rate = participation.expected_batch_size() / size  # type: ignore[operator]
        if participation.has_fixed_positions:
            numbers = np.arange(len(self.patterns)) % size
            turn = np.arange(n)[:, None] % parts == numbers % parts
            rates = np.where(turn, min(1.0, rate * parts), 0.0)
        else:
            rates = np.full((n, len(self.patterns)), rate)
        with np.errstate(divide="ignore"):
            logs = np.logaddexp(np.log1p(-rates), np.log(rates) + logs)
        return np.sum(logs, axis=0)

    def simulated(self, seed: int) -> np.ndarray:
        """Noisy sums as a correct mechanism releases them, shape [n, d], by NumPy.

        Args:
          seed: of the noise.
        """
        shape = (self.plan.num_steps, self.num_parameters)
        normals = np.random.default_rng(seed).standard_normal(shape)
        noise = self.plan.strategy.matrix.solve(normals)
        return self.sums() + self.plan.noise_stddev * noise

    def _rehearsed_threshold(self, confidence: float) -> float:
        """The best threshold in a simulated run with other coins."""
        other = GradientCanaries.for_plan(
            self.plan,
            self.num_parameters,
            seed=_REHEARSAL,
            num_canaries=len(self.included),
            directions=self.directions,
        )
        scores = other.scores(other.simulated(_REHEARSAL + 1))
        return best_threshold(scores, other.included, self.plan.delta, confidence)

    def audit(
        self,
        released: np.ndarray,
        *,
        confidence: float = 0.95,
        num_guesses: int | None = None,
    ) -> AuditResult:
        """Lower bounds on epsilon from the released noisy sums of one run.

        The bounds from guesses assume nothing. Those from rates treat the canaries as
        independent trials, which they are if the noise is what the plan says;
        correlated canaries contradict the plan, too, by fewer or by more right guesses.

        Args:
          released: see `scores`.
          confidence: of all bounds together.
          num_guesses: see `evaluate`.

        Raises:
          ValueError: as `scores` and `evaluate`.
        """
        is_amplified, threshold = self.plan.participation.is_amplified, 0.0
        if is_amplified:
            threshold = self._rehearsed_threshold(confidence)
        return evaluate(
            self.scores(released),
            self.included,
            delta=self.plan.delta,
            confidence=confidence,
            signal=float(np.mean(self.signals)),
            is_gaussian=not is_amplified,
            are_independent=True,
            threshold=threshold,
            num_guesses=num_guesses,
            claimed_epsilon=self.plan.epsilon,
        )


def worst_pattern(matrix: LowerTriangular, participation: Participation) -> np.ndarray:
    """The signs and zeros of what one example adds at each step to move `C x` most.

    Among all patterns `i, i + b, i + 2b, ...` of at most k steps, with signs that add
    up. For the strategies and participations of this library, the norm of `C x` is the
    sensitivity where that is exact for such patterns; otherwise it is smaller, and the
    audit is less sharp.

    Args:
      matrix: C.
      participation: b and k; without amplification.

    Returns:
      x, float64, shape [n], entries -1, 0 and 1.
    """
    n = matrix.num_rows
    b, k = participation.separation(), participation.participations(n)
    last = min(b, n) if participation.has_fixed_positions else n
    largest, worst = -1.0, np.zeros(n)
    chunk = max(1, _CHUNK // n)
    for start in range(0, last, chunk):
        starts = np.arange(start, min(start + chunk, last))
        patterns = np.zeros((n, starts.size))
        moved = np.zeros((n, starts.size))
        for number in range(k):
            steps = starts + number * b
            exists = steps < n
            if not exists.any():
                break
            one = np.zeros_like(patterns)
            one[steps[exists], np.flatnonzero(exists)] = 1.0
            column = matrix.matmul(one)
            signs = np.where(np.sum(column * moved, axis=0) < 0.0, -1.0, 1.0)
            patterns += signs * one
            moved += signs * column
        norms = np.sum(moved**2, axis=0)
        if norms.max() > largest:
            largest, worst = float(norms.max()), patterns[:, int(norms.argmax())]
    return worst


def sampled_patterns(
    participation: Participation,
    num_steps: int,
    num_canaries: int,
    rng: np.random.Generator,
) -> np.ndarray:
    """The steps at which the sampler of a participation takes each canary: 0 and 1.

    The canaries are the first examples of the data set; if there are more of them than
    examples, of several data sets.

    Returns:
      Float64, shape [num_canaries, num_steps].

    Raises:
      TypeError: if the caller makes the batches.
    """
    size = participation.num_examples  # type: ignore[attr-defined]
    parts = []
    for first in range(0, num_canaries, size):
        seeds: dict[int, int] = {}

        def words(step: int, count: int, seeds: dict[int, int] = seeds) -> np.ndarray:
            seed = seeds.setdefault(step, int(rng.integers(2**63)))
            drawn = np.random.default_rng(seed)
            return drawn.integers(0, 2**64, count, dtype=np.uint64)

        sampler = participation.sampler(words)
        taken = np.zeros((size, num_steps))
        for step in range(num_steps):
            taken[sampler.example_indices(step), step] = 1.0
        parts.append(taken[: num_canaries - first])
    return np.concatenate(parts)
