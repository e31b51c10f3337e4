"""The catalogue: all mechanisms that are broken on purpose."""

import broken_noise  # noqa: F401
import broken_sampling  # noqa: F401
import broken_sums  # noqa: F401
from mutation import ALL

__all__ = ["ALL"]
