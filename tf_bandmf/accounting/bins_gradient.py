"""The noise that balls in bins needs, as a differentiable function of the strategy.

For a budget (epsilon, delta) the smallest noise sigma solves `delta(epsilon; G / sigma^2)
= delta` with the Gram matrix G of the bins. Simulated from fixed standard normals and
bins (common random numbers), delta is a deterministic, piecewise smooth function of G and
sigma: its derivatives are taken along the paths of the draws, and that of log sigma
follows by the implicit function theorem. Since sigma is homogeneous in G, with
`D = d log delta / d G` at fixed sigma,

    d log sigma / d G = D / (2 <D, G>).

This is for searching strategies. The noise of a run comes from
`balls_in_bins.BallsInBinsAccountant`, from draws that the search did not see.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, Callable

import numpy as np
import tensorflow as tf

from tf_bandmf.accounting import root_finding
from tf_bandmf.accounting.bins_simulator import BinsSimulator
from tf_bandmf.accounting.simulator import Proposal

# Seed of the draws for searching; the accountant's draws have other seeds.
_SEED = 0x5EA7C4
# Relative to the mean of the diagonal: keeps a singular Gram matrix factorizable.
_JITTER = 1e-10
_TOLERANCE = 1e-9
# A root farther from its start, in log sigma, is of draws made for another noise.
_FARTHEST = 3.0
# A direction whose log sigma is this much below the other one's cannot decide.
_DECIDES = 0.05
# Sharpness of the smooth maximum over the two directions.
_SHARPNESS = 200.0
_LEAST = 1e-300


def toeplitz_gram(column: tf.Tensor, num_bins: int) -> tf.Tensor:
    """`G[i, j] = <m_i, m_j>` of a lower-triangular Toeplitz `C`, differentiable.

    Column `m_j` is `m_0` moved down by j steps, cut off at n: entries of G are partial
    sums of `m_0[v] m_0[v + i - j]`. O(n log n + b^2) operations.

    Args:
      column: the first column of `C`, shape [n], static, float64.
      num_bins: b <= n.

    Returns:
      Shape [b, b].
    """
    n, b = column.shape[0], num_bins
    epochs = -(-n // b)
    table = tf.reshape(tf.pad(column, [[0, epochs * b - n]]), [epochs, b])
    first = tf.reshape(tf.cumsum(table, axis=0), [-1])[:n]
    # head[d] = sum over v < n - b of first[v] first[v + d], by FFT.
    length = [1 << (2 * n - 1).bit_length()]
    spectrum = tf.math.conj(tf.signal.rfft(first[: n - b], length))
    spectrum *= tf.signal.rfft(first, length)
    head = tf.signal.irfft(spectrum, length)[:b] if n > b else 0.0
    last = first[n - b :]
    products = tf.signal.frame(tf.pad(last, [[0, b - 1]]), b, 1) * last[:, None]
    tails = head + tf.cumsum(products, axis=0)
    bins = np.arange(b)
    later = np.maximum(bins[:, None], bins)
    offset = np.abs(bins[:, None] - bins)
    gram: tf.Tensor = tf.gather_nd(tails, np.stack([b - 1 - later, offset], axis=-1))
    return gram


@dataclasses.dataclass(frozen=True, eq=False)
class _Direction:
    """One direction of adjacency: a proposal and its standard random numbers.

    Attributes:
      add: as for `BinsMixture`.
      tilts: `own` and `common` of the proposal's components, shape [T, 2], float64.
      log_shares: of the components, shape [T], float64.
      moves: the tilt of each draw, shape [N, 2], float64.
      bins: of the draws, shape [N], int64.
      normals: shape [N, b], float64.
    """

    add: bool
    tilts: tf.Tensor
    log_shares: tf.Tensor
    moves: tf.Tensor
    bins: tf.Tensor
    normals: tf.Tensor

    @classmethod
    def draw(
        cls, add: bool, proposal: Proposal, num_bins: int, num_draws: int, seed: int
    ) -> _Direction:
        seeds = np.random.SeedSequence([_SEED, seed, int(add)])
        generator = np.random.Generator(np.random.PCG64(seeds))
        shares = np.cumsum(proposal.shares) / np.sum(proposal.shares)
        # Each component and each bin as often as it should be.
        places = (generator.permutation(num_draws) + 0.5) / num_draws
        choice = np.minimum(np.searchsorted(shares, places), shares.size - 1)
        bins = generator.permutation(np.arange(num_draws) % num_bins)
        normals = generator.standard_normal((num_draws, num_bins))
        tilts = np.array([[tilt.own, tilt.common] for tilt in proposal.tilts])
        arrays = (tilts, np.log(proposal.shares), tilts[choice], bins, normals)
        return cls(add, *(tf.constant(array) for array in arrays))

    def log_delta(
        self, gram: tf.Tensor, noise: tf.Tensor, log_sigma: tf.Tensor, epsilon: float
    ) -> tf.Tensor:
        """Log of the simulated delta; `noise` are the draws with covariance `gram`."""
        logarithm: tf.Tensor = _traced_log_delta(self.add)(
            *(self.tilts, self.log_shares, self.moves, self.bins),
            *(gram, noise, log_sigma, tf.constant(epsilon, tf.float64)),
        )
        return logarithm


# Its operations are small and a search asks thousands of times.
@functools.cache
def _traced_log_delta(add: bool) -> Any:
    """`_log_delta` of a direction, for all shapes."""
    drawn = ((None, 2), (None,), (None, 2), (None,))
    shapes = (*drawn, (None, None), (None, None), (), ())
    signature = [
        tf.TensorSpec(shape, tf.int64 if place == 3 else tf.float64)
        for place, shape in enumerate(shapes)
    ]
    traced = tf.function(functools.partial(_log_delta, add), autograph=False)
    return traced.get_concrete_function(*signature)


def _log_delta(
    add: bool,
    tilts: tf.Tensor,
    log_shares: tf.Tensor,
    moves: tf.Tensor,
    bins: tf.Tensor,
    gram: tf.Tensor,
    noise: tf.Tensor,
    log_sigma: tf.Tensor,
    epsilon: tf.Tensor,
) -> tf.Tensor:
    """See `_Direction`. The densities are those of `BinsMixture.log_density`."""
    gram = gram * tf.exp(-2.0 * log_sigma)
    half = 0.5 * tf.linalg.diag_part(gram)
    common = tf.reduce_mean(gram, axis=1)
    u = noise * tf.exp(-log_sigma)
    if not add:
        u += tf.gather(gram, bins) * (1.0 + moves[:, :1])
    u += moves[:, 1:] * common
    losses = _log_mean_exp(u - half)
    # Components other than the target, shape [T - 1, 1].
    by_own, by_common = tilts[1:, :1], tilts[1:, 1:]
    densities = by_common * tf.reduce_mean(u, axis=1)
    densities -= 0.5 * by_common**2 * tf.reduce_mean(common)
    if not add:
        scale = 1.0 + by_own
        offsets = scale**2 * half + scale * by_common * common
        densities += _log_mean_exp(scale[:, None] * u - offsets[:, None])
    target = tf.zeros_like(losses) if add else losses
    densities = tf.concat([target[None], densities], axis=0)
    mixed = tf.reduce_logsumexp(densities + log_shares[:, None], axis=0)
    signed = -losses if add else losses
    # Where the loss is not reached the value is 0, and finite to differentiate.
    excess = -tf.math.expm1(epsilon - tf.maximum(signed, epsilon))
    mean = tf.reduce_mean(excess * tf.exp(target - mixed))
    return tf.math.log(tf.maximum(mean, _LEAST))


class BinsNoise:
    """Log of the noise for a budget, differentiable in the Gram matrix of the bins.

    Args:
      gram: G of a strategy close to those that will be asked for, shape [b, b]: the
        proposals of importance sampling are chosen for it.
      noise_stddev: its noise, about.
      epsilon: > 0.
      delta: in (0, 1).
      num_draws: for each direction.
      seed: equal seeds give equal functions.

    Raises:
      ArithmeticError: if no noise is found near `noise_stddev`.
    """

    def __init__(
        self,
        gram: np.ndarray,
        noise_stddev: float,
        epsilon: float,
        delta: float,
        num_draws: int,
        seed: int,
    ) -> None:
        self._epsilon, self._log_delta = epsilon, math.log(delta)
        self._start = math.log(noise_stddev)
        simulator = BinsSimulator(gram, num_draws, _SEED + seed, False)
        b = gram.shape[0]
        self._directions = [
            _Direction.draw(
                add,
                simulator.propose(add, epsilon, noise_stddev),
                b,
                num_draws,
                seed,
            )
            for add in (False, True)
        ]
        fixed = tf.constant(gram)
        each = [float(self._solve(fixed, found)) for found in self._directions]
        # A direction without a root is so far below that its draws do not reach delta.
        largest = max((value for value in each if math.isfinite(value)), default=None)
        if largest is None:
            raise ArithmeticError(
                f"No noise near noise_stddev = {noise_stddev} gives epsilon = {epsilon}, "
                f"delta = {delta}: begin with what the accountant finds."
            )
        self._directions = [
            direction
            for direction, value in zip(self._directions, each)
            if value >= largest - _DECIDES
        ]

    def log_sigma(self, gram: tf.Tensor) -> tf.Tensor:
        """Log of the noise of the worse direction, shape []; NaN if far from `gram`.

        Call it eagerly: its root is found by values.
        """
        each = tf.stack([self._solve(gram, found) for found in self._directions])
        smooth = tf.reduce_logsumexp(_SHARPNESS * each) / _SHARPNESS
        return smooth - math.log(len(self._directions)) / _SHARPNESS

    def _solve(self, gram: tf.Tensor, direction: _Direction) -> tf.Tensor:
        """Log of the noise at which the simulated delta of a direction is delta."""

        @tf.custom_gradient
        def solve(gram: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
            noise = _correlated(gram, direction.normals)

            def excess(log_sigma: float) -> float:
                at = tf.constant(log_sigma, tf.float64)
                found = direction.log_delta(gram, noise, at, self._epsilon)
                return float(found) - self._log_delta

            solution = tf.constant(_root(excess, self._start), tf.float64)

            def gradient(upstream: tf.Tensor) -> tf.Tensor:
                with tf.GradientTape() as tape:
                    tape.watch(gram)
                    noise = _correlated(gram, direction.normals)
                    value = direction.log_delta(gram, noise, solution, self._epsilon)
                by_gram = tape.gradient(value, gram)
                return upstream * by_gram / (2.0 * tf.reduce_sum(by_gram * gram))

            return solution, gradient

        solution: tf.Tensor = solve(gram)
        return solution


def _correlated(gram: tf.Tensor, normals: tf.Tensor) -> tf.Tensor:
    jitter = _JITTER * tf.reduce_mean(tf.linalg.diag_part(gram))
    shifted = gram + jitter * tf.eye(gram.shape[0], dtype=gram.dtype)
    return tf.matmul(normals, tf.linalg.cholesky(shifted), transpose_b=True)


def _log_mean_exp(exponents: tf.Tensor) -> tf.Tensor:
    count = tf.cast(tf.shape(exponents)[-1], exponents.dtype)
    return tf.reduce_logsumexp(exponents, axis=-1) - tf.math.log(count)


def _root(excess: Callable[[float], float], start: float) -> float:
    """A root of a falling function of log sigma near `start`; NaN if there is none."""

    def nearby(log_sigma: float) -> float:
        if not abs(log_sigma - start) <= _FARTHEST:
            raise ArithmeticError("The root is far from its start.")
        return excess(log_sigma)

    try:
        found = root_finding.near_root(nearby, start, start + _FARTHEST, _TOLERANCE)
    except ArithmeticError:
        return math.nan
    return found if abs(found - start) < _FARTHEST else math.nan
