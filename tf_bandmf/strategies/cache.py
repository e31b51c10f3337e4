"""A cache of optimized strategies, in the user's cache directory.

The key of an entry is a fingerprint of everything that determines the strategy:
workload, participation, family, options, and the version of the library. A wrong entry
cannot weaken a guarantee, because a plan computes sensitivity, error and noise from the
matrix that it uses. Entries that cannot be read are ignored.

The environment variable `TF_BANDMF_CACHE` can name another directory. The value "off"
turns the cache off.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping
from typing import Any

from tf_bandmf._version import __version__
from tf_bandmf.files import configs, private
from tf_bandmf.participation import Participation
from tf_bandmf.strategies.base import Strategy
from tf_bandmf.workloads import Workload

VARIABLE = "TF_BANDMF_CACHE"
_FORMAT = 1
_DIGEST = 64


def directory() -> str | None:
    """Returns the directory of the cache, or None if the cache is off."""
    wanted = os.environ.get(VARIABLE)
    if wanted is not None:
        return None if wanted.strip().lower() in ("", "off", "0") else wanted
    # The package is imported here because devices that only participate in federated
    # rounds do not need it.
    import platformdirs

    return os.path.join(platformdirs.user_cache_dir("tf-bandmf"), "strategies")


def fingerprint(
    family: str,
    workload: Workload,
    participation: Participation,
    options: Mapping[str, Any],
) -> str:
    """Returns a cache key of 64 hexadecimal digits for the inputs of a strategy.

    Inputs that differ have different keys.
    """
    content = {
        "format": _FORMAT,
        "version": __version__,
        "family": family,
        "workload": workload.to_config(),
        "participation": participation.to_config(),
        "options": dict(options),
    }
    return hashlib.sha256(configs.canonical_bytes(content)).hexdigest()


def load(key: str, workload: Workload) -> Strategy | None:
    """Returns the strategy with this fingerprint, or None if no intact entry exists."""
    place = directory()
    if place is None:
        return None
    try:
        with open(os.path.join(place, key), encoding="utf-8") as file:
            text = file.read()
        digest, body = text[:_DIGEST], text[_DIGEST:]
        if hashlib.sha256(f"{key}{body}".encode()).hexdigest() != digest:
            return None
        strategy = Strategy.from_config(configs.loads(body))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return strategy if strategy.num_steps == workload.num_steps else None


def store(key: str, strategy: Strategy) -> None:
    """Stores a strategy under its fingerprint if the directory is writable."""
    place = directory()
    if place is None:
        return
    body = configs.dumps(strategy.to_config())
    digest = hashlib.sha256(f"{key}{body}".encode()).hexdigest()
    with contextlib.suppress(OSError):
        os.makedirs(place, exist_ok=True)
        # Several processes may write an entry concurrently. Its digest lets `load`
        # recognize an incomplete entry.
        with private.replaced(os.path.join(place, key)) as path:
            with open(path, "w", encoding="utf-8") as file:
                file.write(digest + body)
