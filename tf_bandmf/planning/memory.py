"""The memory that a strategy's noise needs on one device.

The entries of a noise vector are computed independently of each other, so each of R
devices can generate 1/R of the entries and store buffers only for these entries
(arXiv:2405.15913, section 3.3). Each device then needs 1/R of the memory for buffers.
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
    """The memory that the noise occupies between steps.

    During a step, a few temporary vectors are needed as well.

    Attributes:
      num_parameters: d, the number of trainable parameters.
      vectors: number of vectors of length d that are stored.
      regenerations_per_step: maximum number of earlier noise vectors that a step
        regenerates.
      key_bytes: size in bytes of the noise keys of all steps, and of the digests of
        their gradient sums.
    """

    num_parameters: int
    vectors: int
    regenerations_per_step: int
    key_bytes: int

    @property
    def buffer_bytes(self) -> int:
        """The size in bytes of the stored vectors."""
        return _FLOAT_BYTES * self.vectors * self.num_parameters

    def __str__(self) -> str:
        again = ""
        if self.regenerations_per_step:
            again = f"; each step regenerates {self.regenerations_per_step} vectors"
        return (
            f"The noise stores {self.vectors} vectors of {self.num_parameters:,} "
            f"numbers{again}: {_readable(self.buffer_bytes)}, and keys of "
            f"{_readable(self.key_bytes)}."
        )


def refuse_too_large(needed: NoiseMemory, available: int | None) -> None:
    """Raises MemoryError if the noise does not fit into the available memory.

    Args:
      needed: memory that the noise needs.
      available: available bytes; None if unknown, in which case nothing is raised.
    """
    total = needed.buffer_bytes + needed.key_bytes
    if available is None or total <= available:
        return
    fitting = bands_that_fit(available, needed.num_parameters)
    raise MemoryError(
        f"{needed} That is {total:,} bytes, but only {available:,} are available. Use a "
        f"banded strategy with at most {fitting} bands. Or use lambda_cgd, bisr or "
        f"bandinv: these mechanisms store no vectors unless keep_normals is True."
    )


def bands_that_fit(num_bytes: int, num_parameters: int) -> int:
    """Returns the maximum number of bands of a strategy for which memory suffices.

    With a banded strategy matrix, the noise generator stores `bands - 1` vectors of
    32-bit numbers (arXiv:2405.15913, sections 3.1 to 3.3).

    Args:
      num_bytes: size of the memory in bytes.
      num_parameters: d, length of a vector.

    Raises:
      ValueError: if an argument is < 1.
    """
    size = whole_number("num_parameters", num_parameters)
    return 1 + whole_number("num_bytes", num_bytes) // (_FLOAT_BYTES * size)


def _readable(num_bytes: int) -> str:
    thousands = min((len(str(num_bytes)) - 1) // 3, 3)
    return f"{num_bytes / 1000.0**thousands:.3g} {('B', 'kB', 'MB', 'GB')[thousands]}"
