"""Images and labels from a folder, split for training, validation and testing."""

from __future__ import annotations

import dataclasses
import gzip
import pathlib

import numpy as np
import tensorflow as tf

VALIDATION = 10_000


@dataclasses.dataclass(frozen=True)
class Split:
    """Examples to train on and others to evaluate on."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_held_out: np.ndarray
    y_held_out: np.ndarray


def split(x: np.ndarray, y: np.ndarray, num_train: int, validation: bool) -> Split:
    """All examples, the first `num_train` of them for training.

    Args:
      validation: hold out the last 10,000 training examples, for tuning; else the test
        set, which nothing is chosen by.
    """
    end = num_train - VALIDATION if validation else num_train
    held_out = slice(end, num_train) if validation else slice(num_train, None)
    return Split(x[:end], y[:end], x[held_out], y[held_out])


def load(name: str, directory: pathlib.Path) -> tuple[np.ndarray, np.ndarray, int]:
    """Reads a data set.

    Returns:
      images in [0, 1] (float32, [examples, size, size] or [..., 3]; the training set
      first), labels (int32), and the size of the training set.

    Raises:
      FileNotFoundError: if a file is not in the folder.
    """
    return {"fashion-mnist": _fashion_mnist, "cifar10": _cifar10}[name](directory)


def _fashion_mnist(directory: pathlib.Path) -> tuple[np.ndarray, np.ndarray, int]:
    """IDX files, compressed or not, in DIRECTORY or DIRECTORY/fashion-mnist."""
    if (directory / "fashion-mnist").is_dir():
        directory = directory / "fashion-mnist"
    parts = ("train", "t10k")
    images = [_idx(directory, f"{part}-images-idx3-ubyte", 16) for part in parts]
    labels = [_idx(directory, f"{part}-labels-idx1-ubyte", 8) for part in parts]
    pixels = np.concatenate(images).reshape(-1, 28, 28)
    return _as_floats(pixels), np.concatenate(labels).astype(np.int32), labels[0].size


def _idx(directory: pathlib.Path, name: str, header: int) -> np.ndarray:
    plain, compressed = directory / name, directory / f"{name}.gz"
    if plain.exists():
        content = plain.read_bytes()
    else:
        content = gzip.decompress(compressed.read_bytes())
    return np.frombuffer(content, np.uint8, offset=header)


def _cifar10(directory: pathlib.Path) -> tuple[np.ndarray, np.ndarray, int]:
    """`cifar10_jpeg.npz`: images as JPEG, one after the other, and where each begins."""
    images, labels = [], []
    with np.load(directory / "cifar10_jpeg.npz") as archive:
        for part in ("train", "test"):
            content, offsets = archive[f"{part}_jpeg"], archive[f"{part}_offsets"]
            for start, end in zip(offsets[:-1], offsets[1:]):
                image = tf.io.decode_jpeg(content[start:end].tobytes(), channels=3)
                images.append(image.numpy())
            labels.append(archive[f"{part}_labels"])
    return (
        _as_floats(np.stack(images)),
        np.concatenate(labels).astype(np.int32),
        labels[0].size,
    )


def _as_floats(pixels: np.ndarray) -> np.ndarray:
    return pixels.astype(np.float32) / 255.0
