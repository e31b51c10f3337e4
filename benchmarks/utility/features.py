"""Computes scattering features of image data sets, and caches them in a folder."""

from __future__ import annotations

import pathlib

import datasets
import numpy as np
import scipy.linalg
from scattering import scattering

from tf_bandmf.accounting import gaussian

GROUPS = 27


def load(
    name: str, directory: pathlib.Path, cache: pathlib.Path
) -> tuple[np.ndarray, np.ndarray, int]:
    """Returns features for a linear model, from the cache if possible.

    Returns:
      Features, float32, [examples, features], the training set first; labels (int32); and
      the size of the training set.
    """
    path = cache / f"{name}-scattering-{GROUPS}.npz"
    if not path.exists():
        images, labels, num_train = datasets.load(name, directory)
        shape = scattering(images[:1]).shape[1:]
        features = np.empty((len(images), *shape), np.float16)
        for start in range(0, len(images), 500):
            part = slice(start, start + 500)
            features[part] = group_normalized(scattering(images[part]), GROUPS)
        cache.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished.npz")
        flat = features.reshape(len(images), -1)
        np.savez(unfinished, features=flat, labels=labels, num_train=num_train)
        unfinished.rename(path)
    with np.load(path) as kept:
        features = kept["features"].astype(np.float32)
        return features, kept["labels"], int(kept["num_train"])


def group_normalized(features: np.ndarray, groups: int) -> np.ndarray:
    """Normalizes groups of channels to mean 0 and variance 1, without parameters.

    Each example is normalized by its own statistics. Unlike a normalization by
    statistics of the data set, this costs no privacy.

    Args:
      features: [examples, channels, size, size].
      groups: a divisor of the number of channels.
    """
    grouped = features.reshape(len(features), groups, -1)
    centred = grouped - grouped.mean(axis=2, keepdims=True)
    variance = np.square(centred).mean(axis=2, keepdims=True)
    return (centred / np.sqrt(variance + 1e-5)).reshape(features.shape)


def private_mean(
    features: np.ndarray, epsilon: float, delta: float, seed: int
) -> np.ndarray:
    """Returns the mean of group-normalized features, (epsilon, delta)-DP under zero-out.

    Normalized features have a norm of at most sqrt(number of features), and are clipped
    to this norm.

    Args:
      seed: seed of the noise, for reproducibility; it must be secret if the data are
        private.
    """
    count, size = features.shape
    bound = np.sqrt(size)
    norms = np.sqrt(np.einsum("ij,ij->i", features, features))
    total = np.minimum(1.0, bound / np.maximum(norms, 1e-12)) @ features
    noise_multiplier = gaussian.calibrate_noise_stddev(epsilon, delta)
    noise = np.random.default_rng(seed).standard_normal(size)
    return (total + noise_multiplier * bound * noise) / count


def leading_components(
    features: np.ndarray, num_fit: int, dimensions: int, path: pathlib.Path
) -> np.ndarray:
    """Projects features onto the leading principal axes, for faster tuning.

    Clipping and isotropic noise are invariant under rotations, so a projection loses
    only the dropped coordinates, which contain a few percent of the sum of squares. The
    axes are computed from the first `num_fit` examples. Like all tuning, the axes are
    not covered by the guarantee.

    Returns:
      float32, [examples, dimensions].
    """
    if not path.exists():
        sample, size = features[:num_fit], features.shape[1]
        _, axes = scipy.linalg.eigh(
            sample.T @ sample, subset_by_index=[size - dimensions, size - 1]
        )
        np.save(path, features @ axes[:, ::-1].astype(np.float32))
    return np.load(path)
