"""The memory that a strategy's noise needs, on one device or several devices.

The entries of a noise vector are computed independently of each other, so each of R
devices can generate 1/R of the entries and store buffers only for these entries
(arXiv:2405.15913, section 3.3).
"""

from __future__ import annotations

import dataclasses

from tf_bandmf.accounting.checks import whole_number

_FLOAT_BYTES = 4
# The size in bytes of a step's noise key and of the digest of the step's gradient sum;
# see `tf_bandmf.noise.digests`.
STEP_BYTES = {"philox": 16 + 8, "chacha20": 40 + 8}


@dataclasses.dataclass(frozen=True)
class NoiseMemory:
    """The memory that the noise needs between steps.

    A step also uses a few temporary vectors, each as long as a device's share.

    Attributes:
      num_parameters: d, the number of trainable parameters.
      num_devices: R, the number of devices that share the noise.
      vectors: total number of vectors of length d stored across all devices.
      regenerations_per_step: maximum number of earlier noise vectors that a step
        regenerates.
      key_bytes: size in bytes, on each device, of the keys of all steps.
    """

    num_parameters: int
    num_devices: int
    vectors: int
    regenerations_per_step: int
    key_bytes: int

    @property
    def buffer_bytes(self) -> int:
        """The size in bytes of the stored vectors on each device."""
        return _FLOAT_BYTES * self.vectors * -(-self.num_parameters // self.num_devices)

    @property
    def bytes_per_device(self) -> int:
        return self.buffer_bytes + self.key_bytes

    def __str__(self) -> str:
        shared, again = "", ""
        if self.num_devices > 1:
            shared = f" on each of {self.num_devices} devices"
        if self.regenerations_per_step:
            again = f"; each step regenerates {self.regenerations_per_step} vectors"
        return (
            f"The noise stores {self.vectors} vectors of {self.num_parameters:,} "
            f"numbers{again}: {_readable(self.buffer_bytes)}{shared}, and keys of "
            f"{_readable(self.key_bytes)}."
        )


def refuse_too_large(needed: NoiseMemory, available: int | None) -> None:
    """Raises MemoryError if the noise does not fit into the available memory.

    Args:
      needed: memory that the noise needs.
      available: available bytes; None if unknown, in which case nothing is raised.
    """
    total = needed.bytes_per_device
    if available is None or total <= available:
        return
    fitting = bands_that_fit(available, needed.num_parameters)
    raise MemoryError(
        f"{needed} That is {total:,} bytes, but only {available:,} are available. Use a "
        f"banded strategy with at most {fitting} bands, or one whose inverse is banded "
        f"(lambda_cgd, bisr, bandinv), which stores nothing without keep_normals."
    )


def bands_that_fit(
    bytes_per_device: int, num_parameters: int, num_devices: int = 1
) -> int:
    """Returns the maximum number of bands of `C` whose ring buffer fits into memory.

    A ring buffer stores `bands - 1` vectors. Examples from arXiv:2405.15913: 64 vectors for
    4 million parameters in 1 GB (section 3.1), 128 for 128 million parameters on 64 devices
    (3.2), 4096 for 4 million parameters on 64 devices (3.3).

    Raises:
      ValueError: if an argument is < 1.
    """
    num_devices = whole_number("num_devices", num_devices)
    part = -(-whole_number("num_parameters", num_parameters) // num_devices)
    bytes_per_device = whole_number("bytes_per_device", bytes_per_device)
    return 1 + bytes_per_device // (_FLOAT_BYTES * part)


def _readable(num_bytes: int) -> str:
    thousands = min((len(str(num_bytes)) - 1) // 3, 3)
    return f"{num_bytes / 1000.0**thousands:.3g} {('B', 'kB', 'MB', 'GB')[thousands]}"
