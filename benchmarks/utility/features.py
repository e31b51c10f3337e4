"""Scattering features, computed once and kept in a folder.

python benchmarks/utility/features.py --data DIR --cache CACHE
"""

from __future__ import annotations

import argparse
import pathlib

import datasets
import numpy as np
import scipy.linalg
from normalization import Release
from scattering import mirror_symmetric, scattering

from tf_bandmf.accounting import gaussian

GROUPS = 27
# So many features have all their principal axes computed.
_MOST_EXACT = 4000


def load(
    name: str, directory: pathlib.Path, cache: pathlib.Path
) -> tuple[np.ndarray, np.ndarray, int]:
    """Features for a linear model, from the cache if they are there.

    Returns:
      float32, [examples, features], the training set first; labels (int32), and the
      size of the training set.
    """
    path = cache / f"{name}-scattering-{GROUPS}.npz"
    if not path.exists():
        images, labels, num_train = datasets.load(name, directory)
        shape = scattering(images[:1]).shape[1:]
        features = np.empty((len(images), *shape), np.float16)
        for start in range(0, len(images), 1000):
            part = slice(start, start + 1000)
            features[part] = group_normalized(scattering(images[part]), GROUPS)
        cache.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished.npz")
        flat = features.reshape(len(images), -1)
        np.savez(unfinished, features=flat, labels=labels, num_train=num_train)
        unfinished.rename(path)
    with np.load(path) as kept:
        features = kept["features"].astype(np.float32)
        return features, kept["labels"], int(kept["num_train"])


def load_raw(
    name: str,
    directory: pathlib.Path,
    cache: pathlib.Path,
    colors: str = "rgb",
    chunk: int = 500,
) -> tuple[np.ndarray, np.ndarray, int]:
    """Scattering channels of color images as they are, mapped from the cache.

    Colors are one of `datasets.COLORS`, standardized by public constants. What a run that
    was stopped has done is not done again.

    Returns:
      float16, [examples, channels, size, size], read-only; labels (int32), and the size
      of the training set.
    """
    path = cache / f"{name}-{colors}-raw.npy"
    kept = cache / f"{name}-labels.npz"
    if not path.exists():
        images, labels, num_train = datasets.load(name, directory)
        cache.mkdir(parents=True, exist_ok=True)
        np.savez(kept, labels=labels, num_train=num_train)
        shape = scattering(images[:1]).shape[1:]
        unfinished = path.with_suffix(".unfinished.npy")
        found = np.lib.format.open_memmap(
            unfinished,
            mode="r+" if unfinished.exists() else "w+",
            dtype=np.float16,
            shape=(len(images), *shape),
        )
        for start in range(0, len(images), chunk):
            part = slice(start, start + chunk)
            # A finished chunk is not zero: standardized colors have no zero mean.
            if not found[part][-1].any():
                standardized = datasets.COLORS[colors](images[part])
                found[part] = scattering(standardized, chunk=100)
        found.flush()
        unfinished.rename(path)
    with np.load(kept) as labelled:
        labels, num_train = labelled["labels"], int(labelled["num_train"])
    return np.load(path, mmap_mode="r"), labels, num_train


def load_normalized(
    name: str,
    directory: pathlib.Path,
    cache: pathlib.Path,
    release: Release,
    seed: int,
    colors: str,
    mirrored: bool,
    chunk: int = 1000,
) -> tuple[np.ndarray, np.ndarray, int]:
    """Features normalized by what a release says of the training set's channels.

    Args:
      release: of means and variances.
      seed: of its noise.
      colors: one of `datasets.COLORS`.
      mirrored: keep the part that an image shares with its mirror image.

    Returns:
      float16, [examples, features], mapped from the cache; labels (int32), and the size
      of the training set.
    """
    raw, labels, num_train = load_raw(name, directory, cache, colors)
    kind = "mirror" if mirrored else "plain"
    noise = f"{release.noise_multiplier:g}-{seed}"
    path = cache / f"{name}-{colors}-{release.units}-{noise}-{kind}.npy"
    if not path.exists():
        statistics = release.statistics(raw[:num_train], seed)
        unfinished = path.with_suffix(".unfinished.npy")
        size = raw[0].size // (2 if mirrored else 1)
        found = np.lib.format.open_memmap(
            unfinished, mode="w+", dtype=np.float16, shape=(len(raw), size)
        )
        for start in range(0, len(raw), chunk):
            part = statistics.normalized(raw[start : start + chunk])
            part = mirror_symmetric(part) if mirrored else part
            found[start : start + chunk] = part.reshape(len(part), -1)
        found.flush()
        unfinished.rename(path)
    return np.load(path, mmap_mode="r"), labels, num_train


def group_normalized(features: np.ndarray, groups: int) -> np.ndarray:
    """Each example's groups of channels with mean 0 and variance 1, no parameters.

    A function of each example by itself: unlike a normalization by statistics of the
    data set it costs no privacy.

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
    """The mean of group-normalized features, (epsilon, delta)-DP under zero-out.

    Normalized features have norm at most sqrt(features); to be sure, they are clipped.

    Args:
      seed: of the noise, for repetition; leave it secret where somebody is to be
        protected.
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
    """Coordinates along the leading principal axes, for tuning in less time.

    Clipping and isotropic noise do not see a rotation; the coordinates that are left
    out hold few percent of the squares. The axes are those of the first `num_fit`
    examples and, like all of tuning, not covered by the guarantee.

    Returns:
      float32, [examples, dimensions].
    """
    if not path.exists():
        axes = _leading_axes(features[:num_fit].astype(np.float32), dimensions)
        found = np.empty((len(features), dimensions), np.float32)
        for start in range(0, len(features), 5000):
            part = slice(start, start + 5000)
            found[part] = features[part].astype(np.float32) @ axes
        np.save(path, found)
    return np.load(path)


def _leading_axes(sample: np.ndarray, dimensions: int) -> np.ndarray:
    """Orthonormal, [features, dimensions]; of many features by subspace iteration."""
    size = sample.shape[1]
    if size <= _MOST_EXACT:
        _, axes = scipy.linalg.eigh(
            sample.T @ sample, subset_by_index=[size - dimensions, size - 1]
        )
        return axes[:, ::-1].astype(np.float32)
    axes = np.random.default_rng(0).standard_normal((size, dimensions))
    axes = axes.astype(np.float32)
    for _ in range(3):
        axes, _ = np.linalg.qr(sample.T @ (sample @ axes))
    return axes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--cache", type=pathlib.Path, required=True)
    parser.add_argument("--tasks", nargs="+", default=["fashion-mnist", "cifar-10"])
    arguments = parser.parse_args()
    for name in arguments.tasks:
        features, _, num_train = load(name, arguments.data, arguments.cache)
        print(
            f"{name}: {num_train} of {len(features)} for training, {features.shape[1]}"
        )


if __name__ == "__main__":
    main()
