"""Participation: at which steps one example (or user) may contribute.

One object describes what the sampler does, and the accountant analyses the same
object: a mismatch between the two cannot be expressed.

| class | sampler | accounting |
|---|---|---|
| `MinSep` | the caller's | without amplification |
| `FixedEpochOrder` | the same batches in every epoch | without amplification |
| `Shuffled` | one secret order, the same in every epoch | a bound: none is claimed |
| `CyclicPoisson` | each example of the part in turn, independently | amplified |
| `Poisson` | each example, independently (DP-SGD) | amplified |
| `CyclicFixedSize` | a fixed number of the part in turn | amplified, a bound |
| `BallsInBins` | each example in one random bin of the epoch | amplified, simulated |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tf_bandmf.participation.base import Participation
from tf_bandmf.participation.sampled import (
    BallsInBins,
    CyclicFixedSize,
    CyclicPoisson,
    Poisson,
    Shuffled,
)
from tf_bandmf.participation.unsampled import FixedEpochOrder, MinSep

__all__ = [
    "BallsInBins",
    "CyclicFixedSize",
    "CyclicPoisson",
    "FixedEpochOrder",
    "MinSep",
    "Participation",
    "Poisson",
    "Shuffled",
    "from_config",
]

_KINDS = {
    cls.kind: cls
    for cls in (
        BallsInBins,
        CyclicFixedSize,
        CyclicPoisson,
        FixedEpochOrder,
        MinSep,
        Poisson,
        Shuffled,
    )
}


def from_config(config: Mapping[str, Any]) -> Participation:
    """Rebuilds the participation of a `to_config` dictionary."""
    arguments = dict(config)
    kind = arguments.pop("kind", None)
    if kind not in _KINDS:
        raise ValueError(f"Unknown participation {kind!r}: saved by a newer version?")
    return _KINDS[kind](**arguments)
