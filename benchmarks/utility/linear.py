"""Trains several softmax regressions in parallel on the batches of one plan.

The training is equivalent to Keras' `fit` for a private model with one `Dense` layer,
but trains models with several learning rates or noise seeds in parallel. Each batch is
read once, and the gradients of each model are clipped separately and get separate
noise. Each model spends the plan's budget again, so use this only for measurements.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy.special
import tensorflow as tf

import tf_bandmf
from tf_bandmf.noise import NoiseGenerator
from tf_bandmf.noise.keys import NoiseKey

_PART = 5000
# The possible readouts. A run releases either its last weights or the mean of the
# weights in its final steps.
READOUTS = {"last": 1.0, "mean of last fifth": 0.8, "mean of last half": 0.5}


class Features:
    """Features from which a public center is subtracted without copying them.

    Args:
      values: float32, [examples, features].
      centre: [features].
    """

    def __init__(self, values: np.ndarray, centre: np.ndarray) -> None:
        self.values, self.centre = values, centre.astype(np.float32)
        self.squared_norms = np.empty(len(values), np.float32)
        for part in self.parts():
            rows = values[part]
            squares = np.einsum("ij,ij->i", rows, rows) - 2 * rows @ self.centre
            # The bias is a constant feature, whose square adds 1 to the squared norm.
            self.squared_norms[part] = squares + self.centre @ self.centre + 1.0

    def parts(self) -> Iterator[slice]:
        """Yields slices of examples, each of at most a few hundred megabytes."""
        for start in range(0, len(self.values), _PART):
            yield slice(start, start + _PART)


class LinearModels:
    """Linear models with weights [features + 1, models, classes], biases last.

    Args:
      learning_rates: learning rate of each model, shape [models], for gradients that
        are divided by the clip norm.
      l2_norm_clip: the clip norm, one for all models or of shape [models].
      momentum: momentum of SGD.
    """

    def __init__(
        self,
        learning_rates: np.ndarray,
        l2_norm_clip: float | np.ndarray,
        momentum: float,
        num_features: int,
        num_classes: int,
    ) -> None:
        self.rates = np.asarray(learning_rates, np.float32)[:, None]
        self.clip, self.momentum = l2_norm_clip, momentum
        self.shape = (num_features + 1, len(self.rates), num_classes)
        self.weights = np.zeros(self.shape, np.float32)
        self.velocity = np.zeros(self.shape, np.float32)
        self.sums = {name: np.zeros(self.shape, np.float32) for name in READOUTS}
        self.counts = dict.fromkeys(READOUTS, 0)

    def clipped_sum(self, x: Features, y: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Sums the chosen rows' gradients, each divided by max(its norm, clip norm)."""
        rows = x.values[chosen]
        logits = self._logits(rows, x.centre, self.weights)
        residuals = scipy.special.softmax(logits, axis=2)
        residuals[np.arange(len(rows)), :, y[chosen]] -= 1.0
        norms = np.linalg.norm(residuals, axis=2)
        norms *= np.sqrt(x.squared_norms[chosen])[:, None]
        residuals /= np.maximum(norms, self.clip)[..., None]
        flat = residuals.reshape(len(rows), -1)
        bias = flat.sum(axis=0)
        total = rows.T @ flat - np.outer(x.centre, bias)
        return np.vstack([total, bias]).reshape(self.shape)

    def update(self, gradient: np.ndarray, done: float) -> None:
        """Takes a step of SGD with momentum; `done` is the finished share of the run."""
        self.velocity = self.momentum * self.velocity + gradient
        self.weights = self.weights - self.rates * self.velocity
        for name, start in READOUTS.items():
            if done > start or done == 1.0:
                self.sums[name] += self.weights
                self.counts[name] += 1

    def accuracy(self, x: Features, y: np.ndarray) -> dict[str, np.ndarray]:
        """Returns, for each readout, the accuracy of every model, shape [models]."""
        actual = {}
        for name in READOUTS:
            weights = self.sums[name] / self.counts[name]
            right = np.zeros(self.shape[1])
            for part in x.parts():
                logits = self._logits(x.values[part], x.centre, weights)
                right += (logits.argmax(axis=2) == y[part, None]).sum(axis=0)
            actual[name] = right / len(y)
        return actual

    def _logits(
        self, rows: np.ndarray, centre: np.ndarray, weights: np.ndarray
    ) -> np.ndarray:
        flat = weights.reshape(self.shape[0], -1)
        logits = rows @ flat[:-1] + (flat[-1] - centre @ flat[:-1])
        return logits.reshape(len(rows), *self.shape[1:])


def train(
    plan: tf_bandmf.Plan,
    models: LinearModels,
    x: Features,
    y: np.ndarray,
    seed: int,
) -> None:
    """Trains the models on the plan's batches.

    Args:
      plan: a plan with a test seed, because `seed` is not secret, and with `l2_norm_clip
        = 1`, because clipped gradients are divided by the clip norm.
      seed: seed of batches and noise, for reproducibility; a run on private data must
        take both seeds from the operating system.

    Raises:
      ValueError: if the plan has another clip norm.
    """
    if plan.l2_norm_clip != 1.0:
        raise ValueError(
            f"The plan's l2_norm_clip must be 1, found {plan.l2_norm_clip}."
        )
    generator = NoiseGenerator(plan.strategy, int(np.prod(models.shape)))
    key = NoiseKey.for_testing(seed)
    state = generator.initial_state(key)
    # A training run in Keras that has this key generates the same noise.
    batches = plan.batches(np.arange(len(y))).join(key.sampler_seed())
    for batch in batches.indices():
        noise, state = generator.next(state, tf.constant(batch.step, tf.int64))
        noisy = models.clipped_sum(x, y, batch.indices)
        noisy += plan.noise_stddev * noise.numpy().reshape(models.shape)
        noisy /= plan.expected_batch_size
        models.update(noisy, (batch.step + 1) / plan.num_steps)
