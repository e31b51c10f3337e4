"""Scattering features from two layers of fixed wavelets, which are not learned.

The transform has scales J = 2, 8 angles, and the Morlet wavelets of Bruna and Mallat
(2013), as used by Tramèr and Boneh (2021, arXiv:2011.11660). The channels agree to
float precision with kymatio 0.3 (`Scattering2D(J=2)`), which cannot be imported with
SciPy 1.17.

    S0 = x * phi,  S1 = |x * psi_1| * phi,  S2 = ||x * psi_1| * psi_2| * phi

In S1, psi_1 is each of the 16 wavelets. In S2, psi_1 is each of the 8 wavelets of the
smaller scale, and psi_2 each of the 8 wavelets of the larger scale. This makes
1 + 16 + 64 = 81 channels at a quarter of the resolution.
"""

from __future__ import annotations

import functools

import numpy as np
import scipy.fft

SCALES = 2
ANGLES = 8


def scattering(images: np.ndarray) -> np.ndarray:
    """Computes the scattering channels of images, for a few hundred images at a time.

    Args:
      images: float, shape [images, size, size]; size is a multiple of 4.

    Returns:
      float32, shape [images, 81, size / 4, size / 4].
    """
    filters = _filters(images.shape[1] + 2 * _margin())
    return _scatter(images.astype(np.float32), filters).astype(np.float32)


class _Filters:
    """The (real) Fourier transforms of the low-pass filter and of the wavelets.

    Attributes:
      phi: the low-pass filter.
      phi_coarse: the low-pass filter for images of half the resolution.
      psi: the wavelets, by scale and angle: `psi[j][angle]`.
    """

    def __init__(self, size: int) -> None:
        low_pass = gabor(size, 0.8 * 2 ** (SCALES - 1), 0.0, 0.0)
        self.phi = _transform(low_pass)
        self.phi_coarse = _fold(_low_frequencies(self.phi))
        self.psi = [
            [
                _transform(
                    morlet(
                        size,
                        0.8 * 2**j,
                        (ANGLES // 2 - 1 - angle) * np.pi / ANGLES,
                        0.75 * np.pi / 2**j,
                        4.0 / ANGLES,
                    )
                )
                for angle in range(ANGLES)
            ]
            for j in range(SCALES)
        ]


_filters = functools.cache(_Filters)


def _scatter(images: np.ndarray, filters: _Filters) -> np.ndarray:
    """Returns channels [images, 81, size / 4, size / 4], zeroth order first."""
    margin = _margin()
    width = [(0, 0), (margin, margin), (margin, margin)]
    transformed = scipy.fft.fft2(np.pad(images, width, mode="reflect"))
    orders: list[list[np.ndarray]] = [[_average(transformed, filters.phi, 4)], [], []]
    for wavelet in filters.psi[0]:
        modulus = _modulus(transformed, wavelet, 1)
        orders[1].append(_average(modulus, filters.phi, 4))
        for larger in filters.psi[1]:
            second = _modulus(modulus, larger, 2)
            orders[2].append(_average(second, filters.phi_coarse, 2))
    for wavelet in filters.psi[1]:
        modulus = _modulus(transformed, wavelet, 2)
        orders[1].append(_average(modulus, filters.phi_coarse, 2))
    return np.stack([channel for order in orders for channel in order], axis=1)


def _modulus(transformed: np.ndarray, wavelet: np.ndarray, stride: int) -> np.ndarray:
    """Returns the Fourier transform of every `stride`-th pixel of |x * psi|."""
    product = transformed * wavelet
    if stride == 2:
        product = _fold(product)
    return scipy.fft.fft2(np.abs(scipy.fft.ifft2(product)))


def _average(transformed: np.ndarray, low_pass: np.ndarray, stride: int) -> np.ndarray:
    """Returns every `stride`-th pixel of x * phi, with the margin removed."""
    product = _fold(transformed * low_pass)
    if stride == 4:
        product = _fold(product)
    inside = slice(1, -1)
    return scipy.fft.ifft2(product).real[..., inside, inside]


def _fold(transformed: np.ndarray) -> np.ndarray:
    """Returns the Fourier transform of every second pixel, as the mean of its aliases."""
    half = transformed.shape[-1] // 2
    rows = transformed[..., :half, :] + transformed[..., half:, :]
    return (rows[..., :half] + rows[..., half:]) / 4


def _low_frequencies(transformed: np.ndarray) -> np.ndarray:
    """Keeps the lower half of the frequencies, times 4 to offset the mean in `_fold`."""
    size = transformed.shape[-1]
    kept = np.ones(size, np.float32)
    kept[size // 4 : size // 4 + size // 2] = 0.0
    return 4 * transformed * kept * kept[:, None]


def gabor(
    size: int, scale: float, angle: float, frequency: float, slant: float = 1.0
) -> np.ndarray:
    """Returns a Gaussian envelope times a plane wave on a torus, complex, [size, size]."""
    rotation = np.array(
        [[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]
    )
    precision = rotation @ np.diag([1.0, slant**2]) @ rotation.T / (2 * scale**2)
    wave = np.zeros((size, size), np.complex128)
    periods = range(-2, 3)
    for row in periods:
        for column in periods:
            x, y = np.mgrid[:size, :size] + np.reshape([row, column], (2, 1, 1)) * size
            envelope = (
                precision[0, 0] * x * x
                + 2 * precision[0, 1] * x * y
                + precision[1, 1] * y * y
            )
            phase = frequency * (x * np.cos(angle) + y * np.sin(angle))
            wave += np.exp(-envelope + 1j * phase)
    return wave * slant / (2 * np.pi * scale**2)


def morlet(
    size: int, scale: float, angle: float, frequency: float, slant: float
) -> np.ndarray:
    """Returns a Gabor filter minus a multiple of its envelope, so that its sum is zero."""
    wave = gabor(size, scale, angle, frequency, slant)
    envelope = gabor(size, scale, angle, 0.0, slant)
    return wave - wave.sum() / envelope.sum() * envelope


def _transform(signal: np.ndarray) -> np.ndarray:
    """Returns a filter's Fourier transform, which is real because filters are Hermitian."""
    return scipy.fft.fft2(signal).real.astype(np.float32)


def _margin() -> int:
    """Returns the width of the reflected margin: one pixel after downsampling."""
    return 2**SCALES
