"""Private normalization of feature channels, and training accounted for together with it.

As Tramèr and Boneh (2021, arXiv:2011.11660) normalize the scattering features of
CIFAR-10: the mean and the mean square of each channel over examples and positions are
released once with Gaussian noise; features are then standardized by them. Unlike there,
the norms to which the examples' vectors are clipped are constants and not quantiles of
the data.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import scipy.optimize
from dp_accounting.pld import privacy_loss_distribution
from scattering import CHANNELS, scattering

import tf_bandmf
from tf_bandmf.accounting import gaussian
from tf_bandmf.accounting.balls_in_bins import BallsInBinsAccountant
from tf_bandmf.accounting.bins_mixture import gram_matrix
from tf_bandmf.participation import BallsInBins, CyclicPoisson

_INTERVAL = 1e-4
_SMALLEST_VARIANCE = 1e-5
# Of a public scale; keeps logarithms finite.
_OFFSET = 0.3


@dataclasses.dataclass(frozen=True)
class Release:
    """Two sums of vectors with noise: of channel means, and of channel mean squares.

    Attributes:
      mean_clip: largest norm of an example's vector of means; longer ones are scaled.
      square_clip: likewise of its vector of mean squares.
      noise_multiplier: standard deviation of each sum's noise per unit of its clip norm.
      units: in which features are measured before all else, one of `UNITS`: with
        public ones noise and clip norm are of the order of every channel and not of the
        largest.
    """

    mean_clip: float
    square_clip: float
    noise_multiplier: float
    units: str = "raw"

    @property
    def together(self) -> float:
        """Noise multiplier of the one Gaussian mechanism that both releases are."""
        return self.noise_multiplier / math.sqrt(2.0)

    def statistics(
        self, features: np.ndarray, seed: int, chunk: int = 1000
    ) -> Statistics:
        """Releases means and variances.

        Formal guarantee: under zero-out with the number of examples public, a Gaussian
        mechanism of sensitivity 1 with noise multiplier `together`.

        Args:
          features: [examples, channels, size, size].
          seed: of the noise, for repetition; leave it secret where somebody is to be
            protected.
        """
        sums = self.sums(features, chunk)
        noise = np.random.default_rng(seed).standard_normal(sums.shape)
        clips = np.array([[self.mean_clip], [self.square_clip]])
        noisy = clips * (sums + self.noise_multiplier * noise) / len(features)
        variance = np.maximum(noisy[1] - noisy[0] ** 2, 0.0)
        return Statistics(noisy[0], variance, self.units)

    def sums(self, features: np.ndarray, chunk: int = 1000) -> np.ndarray:
        """What gets noise: each row is a sum of vectors of norm at most 1.

        Returns:
          [2, channels]: of the clipped means and mean squares, by their clip norms.
        """
        totals = np.zeros((2, features.shape[1]))
        for start in range(0, len(features), chunk):
            measured = UNITS[self.units](features[start : start + chunk])
            flat = measured.reshape(*measured.shape[:2], -1).astype(np.float64)
            squares = np.square(flat).mean(axis=2)
            totals[0] += _clipped(flat.mean(axis=2), self.mean_clip).sum(axis=0)
            totals[1] += _clipped(squares, self.square_clip).sum(axis=0)
        return totals


@dataclasses.dataclass(frozen=True)
class Statistics:
    """What was released, [channels] each, in the release's units.

    A variance that is not positive is 0.
    """

    mean: np.ndarray
    variance: np.ndarray
    units: str = "raw"

    def normalized(self, features: np.ndarray) -> np.ndarray:
        """Features less the mean, by the standard deviation; 0 where that is unknown.

        Returns:
          float32, [examples, channels, size, size].
        """
        scale = (self.variance > 0.0) / np.sqrt(self.variance + _SMALLEST_VARIANCE)
        mean, scale = (v.astype(np.float32)[:, None, None] for v in (self.mean, scale))
        return (UNITS[self.units](features) - mean) * scale


def _raw(features: np.ndarray) -> np.ndarray:
    return features.astype(np.float32)


def _public(features: np.ndarray) -> np.ndarray:
    scales = public_scales(features.shape[1]).astype(np.float32)
    return features.astype(np.float32) / scales[:, None, None]


def _square_root(features: np.ndarray) -> np.ndarray:
    """All but the averages of the image are moduli: not negative, with long tails."""
    measured = _public(features)
    averages = measured[:, ::CHANNELS].copy()
    np.sqrt(np.maximum(measured, 0.0, out=measured), out=measured)
    measured[:, ::CHANNELS] = averages
    return measured


def _logarithm(features: np.ndarray) -> np.ndarray:
    """Likewise."""
    measured = _public(features)
    averages = measured[:, ::CHANNELS].copy()
    np.maximum(measured, 0.0, out=measured)
    np.log(measured + np.float32(_OFFSET), out=measured)
    measured[:, ::CHANNELS] = averages
    return measured


# Functions of each example by itself, float32: as they are, by `public_scales`, and of
# those the square roots or logarithms of all channels but the averages of the image.
UNITS = {
    "raw": _raw,
    "public": _public,
    "square root": _square_root,
    "logarithm": _logarithm,
}


@functools.lru_cache
def public_scales(channels: int, size: int = 32, images: int = 100) -> np.ndarray:
    """Standard deviations of scattering channels of noise with a natural spectrum.

    Of random images whose amplitudes fall like 1 / frequency, as those of photographs
    do, with variance 1: constants, from no data.

    Returns:
      [channels].
    """
    frequencies = np.hypot(np.fft.fftfreq(size)[:, None], np.fft.fftfreq(size)[None, :])
    frequencies[0, 0] = np.inf
    white = np.random.default_rng(0).standard_normal((images, size, size))
    pink = np.fft.ifft2(np.fft.fft2(white) / frequencies).real
    pink /= pink.std()
    found = scattering(pink).std(axis=(0, 2, 3)).astype(np.float64)
    return np.tile(found, channels // CHANNELS)


def _clipped(vectors: np.ndarray, norm: float) -> np.ndarray:
    """Vectors by the clip norm, [vectors, size]; longer ones get norm 1."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.maximum(norms, norm)


def joint_epsilon(
    plan: tf_bandmf.Plan, released: float, noise_multiplier: float, delta: float
) -> float:
    """Epsilon of a Gaussian release and then training, together.

    Exact without amplification (one Gaussian mechanism), by privacy loss distributions
    for Poisson samples. For balls in bins the release is one more coordinate in which
    all bins have the same mean, and the simulation is that of the plan: an estimate,
    two standard errors to the safe side.

    Args:
      plan: of training; its noise is not used.
      released: noise multiplier of the release.
      noise_multiplier: of training, as `Plan.noise_multiplier`.
    """
    participation, matrix = plan.participation, plan.strategy.matrix
    assert plan.sensitivity is not None
    stddev = noise_multiplier * plan.sensitivity.value
    if isinstance(participation, BallsInBins):
        gram = gram_matrix(matrix, participation.num_bins) + (stddev / released) ** 2
        return BallsInBinsAccountant(gram).guarantee(stddev, delta).epsilon
    if isinstance(participation, CyclicPoisson):
        loss = participation.accountant(matrix).privacy_loss(stddev, _INTERVAL)
        other = privacy_loss_distribution.from_gaussian_mechanism(
            released, value_discretization_interval=_INTERVAL
        )
        return float(loss.compose(other).get_epsilon_for_delta(delta))
    if plan.accountant != gaussian.NAME:
        raise ValueError(f"No joint accounting for {plan.accountant}.")
    precision = released**-2 + noise_multiplier**-2
    return gaussian.gaussian_epsilon(precision**-0.5, delta)


def plan_beside(
    released: float, *, epsilon: float, delta: float, **setting: object
) -> tf_bandmf.Plan:
    """The plan of training whose budget, together with a Gaussian release, is given.

    The plan's own epsilon is that of training alone.

    Args:
      released: noise multiplier of the release.
      setting: as for `tf_bandmf.plan`.
    """
    alone = tf_bandmf.plan(epsilon=epsilon, delta=delta, **setting)

    @functools.lru_cache
    def excess(log_factor: float) -> float:
        noise = alone.noise_multiplier * math.exp(log_factor)
        return joint_epsilon(alone, released, noise, delta) - epsilon

    upper = 0.05
    while excess(upper) > 0.0:
        upper *= 2.0
        if upper > 2.0:
            raise ValueError(
                f"A release with noise multiplier {released:g} leaves too little of "
                f"epsilon = {epsilon:g} at delta = {delta:g}. Add noise to it."
            )
    log_factor = scipy.optimize.brentq(excess, 0.0, upper, xtol=1e-4)
    while excess(log_factor) > 0.0:
        log_factor += 1e-4
    return tf_bandmf.plan(
        alone.strategy,
        noise_multiplier=alone.noise_multiplier * math.exp(log_factor),
        delta=delta,
        participation=alone.participation,
        num_steps=alone.num_steps,
        workload=alone.workload,
        batch_size=setting["batch_size"],
        test_seed=setting.get("test_seed"),
    )
