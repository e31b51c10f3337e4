"""White-box audits of mechanisms with correlated noise; canaries are gradients."""

from __future__ import annotations

import dataclasses

import numpy as np
from scipy import special

from tf_bandmf.accounting.checks import whole_number
from tf_bandmf.audit.evaluation import AuditResult, best_threshold, evaluate
from tf_bandmf.matrices import LowerTriangular
from tf_bandmf.participation import BallsInBins, Participation
from tf_bandmf.planning.plan import Plan

# The seed of the simulated run with which an audit chooses the threshold of its test.
_REHEARSAL = 2**62
# The maximum number of entries in an intermediate array.
_CHUNK = 8_000_000


@dataclasses.dataclass(frozen=True, eq=False)
class GradientCanaries:
    """Canary gradients of norm `l2_norm_clip`, each included with probability 1/2.

    An auditor sees the noisy sums `y = g + noise_stddev C^-1 z` of all steps, where g
    are the sums of clipped gradients, C is the strategy's matrix, and z is standard
    normal. An auditor who knows C can whiten the sums: `C y / noise_stddev` has
    independent standard normal noise. Canary j has the gradient `zeta x_j[i] v_j` at
    step i, where `zeta` is the l2 norm clip. The canary adds its signal, the
    outer product of `zeta C x_j / noise_stddev` and `v_j`, to the whitened sums. The
    optimal statistic is the matched filter, the inner product of signal and whitened
    sums: by the Neyman-Pearson lemma, no other test of the released values is better.
    If the sampling amplifies privacy, the plan's sampler draws the steps of each
    canary, and the auditor does not know them. The statistic is then the likelihood
    ratio of the mixture over the possible steps.

    Attributes:
      plan: the plan whose mechanism is audited.
      num_parameters: d, the length of the released vectors.
      patterns: x, float64, shape [m, n]: the coefficient of each of the m canaries
        along its direction at each of the n steps.
      included: mask of the canaries that are included in the run, bool, shape [m].
      directions: v, shape [m, d], with orthonormal rows `v_j`. None means that `v_j` is
        the unit vector of coordinate j.
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
        """Returns canaries for an audit of a plan.

        If the plan is amplified by sampling, its sampler draws each canary's steps.
        Otherwise, all canaries have the participation pattern of `worst_pattern`.

        Args:
          plan: plan of the run.
          num_parameters: d, the length of the released vectors.
          seed: seed of the sampler, and of the coins that decide which canaries are
            included.
          num_canaries: m, the number of canaries, 2 <= m <= d; None for one canary per
            direction.
          directions: orthonormal directions of the canaries' gradients, one per row;
            None for the unit vectors of the coordinates. Different directions may
            reveal different faults.

        Raises:
          ValueError: if `num_canaries` is less than 2 or more than the number of
            directions, or if the directions are not orthonormal.
        """
        most = num_parameters if directions is None else len(directions)
        m = most if num_canaries is None else num_canaries
        most, most_is = min(most, num_parameters), "the number of orthogonal directions"
        m = whole_number("num_canaries", m, 2, most, most_is)
        if directions is not None:
            directions = np.asarray(directions, np.float64)[:m]
            gram = directions @ directions.T
            if directions.shape[1] != num_parameters or not np.allclose(
                gram, np.eye(m), atol=1e-6
            ):
                raise ValueError(
                    f"directions must have orthonormal rows of length {num_parameters}."
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
        """Returns each step's sum of the included canaries' gradients, shape [n, d]."""
        amounts = self.plan.l2_norm_clip * self.patterns * self.included[:, None]
        if self.directions is not None:
            return amounts.T @ self.directions
        sums = np.zeros((self.plan.num_steps, self.num_parameters))
        sums[:, : len(amounts)] = amounts.T
        return sums

    @property
    def signals(self) -> np.ndarray:
        """The mu-GDP parameter of each canary, the norm of its signal, shape [m]."""
        return np.sqrt(np.sum(self._moved() ** 2, axis=0))

    def _moved(self) -> np.ndarray:
        """Returns the signal of each canary along its direction, shape [n, m]."""
        scale = self.plan.l2_norm_clip / self.plan.noise_stddev
        return scale * self.plan.strategy.matrix.matmul(np.array(self.patterns.T))

    def scores(self, released: np.ndarray) -> np.ndarray:
        """Returns each canary's log likelihood ratio (included vs. not), shape [m].

        A score of 0 means that the released values fit both hypotheses equally well.

        Args:
          released: noisy *sums* of only the canaries' gradients, shape [n, d]. The
            auditor is assumed to know the gradients of all other examples: subtract
            them from the released sums first.

        Raises:
          ValueError: if `released` has another shape.
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
        """Returns the projections of `released` onto the directions, shape [n, m]."""
        if self.directions is None:
            return released[:, : len(self.patterns)]
        return released @ self.directions.T

    def _bins(self, whitened: np.ndarray, scale: float) -> np.ndarray:
        """Returns each canary's score under balls in bins, shape [m].

        The score is the log of the mean of the likelihood ratios for all bins to which
        the canary may be assigned.

        Args:
          whitened: whitened sums along each canary's direction, shape [n, m].
          scale: l2 norm clip, in standard deviations of the noise.
        """
        bins = self.plan.participation.separation()
        steps = np.arange(self.plan.num_steps)
        in_bin = (steps[:, None] % bins == np.arange(bins)).astype(np.float64)
        means = scale * self.plan.strategy.matrix.matmul(in_bin)
        logs = means.T @ whitened - 0.5 * np.sum(means**2, axis=0)[:, None]
        return special.logsumexp(logs, axis=0) - np.log(bins)

    def _steps(self, whitened: np.ndarray, scale: float) -> np.ndarray:
        """Returns each canary's sum of log(1 - q + q * ratio) over all steps, shape [m].

        At each step, q is the sampling probability, and `ratio` compares the
        likelihoods of the whitened sums with and without a participation at this step.
        The statistic is optimal for cyclic Poisson sampling, where the columns of C at
        one example's steps are orthogonal. For other samplers that draw each step
        separately, it is a good statistic, but not optimal.

        Args:
          whitened: whitened sums along each canary's direction, shape [n, m].
          scale: l2 norm clip, in standard deviations of the noise.
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
        """Simulates a correct mechanism with these canaries; returns the noisy sums.

        Args:
          seed: seed of the noise.

        Returns:
          The noisy sums of the included canaries' gradients, shape [n, d].
        """
        shape = (self.plan.num_steps, self.num_parameters)
        normals = np.random.default_rng(seed).standard_normal(shape)
        noise = self.plan.strategy.matrix.solve(normals)
        return self.sums() + self.plan.noise_stddev * noise

    def _rehearsed_threshold(self, confidence: float) -> float:
        """Returns the score threshold that is best for a simulated run.

        The simulated run draws its own canaries and noise. Therefore the threshold does
        not depend on the audited run.
        """
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
        """Audits one run from its noisy sums, and returns lower bounds on epsilon.

        The bounds from guesses hold without assumptions about the mechanism. The bounds
        from rates treat the canaries as independent trials, which they are if the noise
        conforms to the plan. If the scores are correlated, these bounds may not hold,
        but then the mechanism does not conform to the plan, either.

        Args:
          released: the noisy sums of only the canaries' gradients; see `scores`.
          confidence: joint confidence of all bounds.
          num_guesses: even number of guesses; None to choose it as `evaluate` does.

        Raises:
          ValueError: if `scores` or `evaluate` raises ValueError.
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
    """Searches for the signed participation pattern `x` with the largest norm of `C x`.

    The search covers all patterns of the steps `i, i + b, i + 2b, ...` with at most k
    steps. The sign of each step is chosen so that adding the step's column of `C` does
    not shorten the sum of the previous columns. The norm of `C x` is a lower bound on
    the sensitivity. If this norm is smaller than the sensitivity, the audit may miss
    faults that a pattern with a larger norm would reveal.

    Args:
      matrix: C, the matrix of the strategy.
      participation: participation without amplification, which determines the minimum
        separation b and the maximum number k of participations.

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
    """Draws each canary's steps with the sampler of the participation.

    The canaries are the first examples of a simulated data set. If there are more
    canaries than examples in the data set, more data sets are simulated.

    Args:
      participation: the participation that defines the sampler and the data set's size.
      num_steps: n, the number of steps.
      num_canaries: m, the number of canaries.
      rng: the generator of the sampler's random numbers.

    Returns:
      Float64, shape [num_canaries, num_steps]: 1 where a canary takes part, else 0.

    Raises:
      TypeError: if the participation has no sampler because the caller creates the
        batches.
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
