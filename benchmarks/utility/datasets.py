"""Reads image data sets from a folder."""

from __future__ import annotations

import gzip
import io
import pathlib

import numpy as np
import PIL.Image


def load(name: str, directory: pathlib.Path) -> tuple[np.ndarray, np.ndarray, int]:
    """Reads an image data set by its name.

    Returns:
      Images in [0, 1] (float32, [examples, size, size] or [examples, size, size, 3]; the
      training set first), labels (int32), and the size of the training set.

    Raises:
      FileNotFoundError: if a file is missing from the folder.
    """
    readers = {"fashion-mnist": _fashion_mnist, "cifar-10": _cifar_10}
    return readers[name](directory)


def _fashion_mnist(directory: pathlib.Path) -> tuple[np.ndarray, np.ndarray, int]:
    """Reads IDX files, which may be compressed, from a folder or its subfolder."""
    if (directory / "fashion-mnist").is_dir():
        directory = directory / "fashion-mnist"
    parts = ("train", "t10k")
    images = [_idx(directory, f"{part}-images-idx3-ubyte", 16) for part in parts]
    labels = [_idx(directory, f"{part}-labels-idx1-ubyte", 8) for part in parts]
    pixels = np.concatenate(images).reshape(-1, 28, 28)
    return _as_floats(pixels), np.concatenate(labels).astype(np.int32), labels[0].size


def _cifar_10(directory: pathlib.Path) -> tuple[np.ndarray, np.ndarray, int]:
    """Reads `cifar10_jpeg.npz`: concatenated JPEG images and their offsets."""
    images, labels = [], []
    with np.load(directory / "cifar10_jpeg.npz") as file:
        for part in ("train", "test"):
            encoded = file[f"{part}_jpeg"].tobytes()
            ends = file[f"{part}_offsets"]
            images += [encoded[a:b] for a, b in zip(ends[:-1], ends[1:], strict=True)]
            labels.append(file[f"{part}_labels"])
    decoded = [np.asarray(PIL.Image.open(io.BytesIO(image))) for image in images]
    return (
        _as_floats(np.stack(decoded)),
        np.concatenate(labels).astype(np.int32),
        labels[0].size,
    )


def _idx(directory: pathlib.Path, name: str, header: int) -> np.ndarray:
    plain, compressed = directory / name, directory / f"{name}.gz"
    if plain.exists():
        content = plain.read_bytes()
    else:
        content = gzip.decompress(compressed.read_bytes())
    return np.frombuffer(content, np.uint8, offset=header)


# Color statistics of ImageNet, which do not depend on the private data.
COLOR_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
COLOR_STDDEV = np.array([0.229, 0.224, 0.225], np.float32)


def standardized_colors(images: np.ndarray) -> np.ndarray:
    """Subtracts ImageNet's mean colors, and divides by its standard deviations."""
    return (images - COLOR_MEAN) / COLOR_STDDEV


def _as_floats(pixels: np.ndarray) -> np.ndarray:
    return pixels.astype(np.float32) / 255.0
