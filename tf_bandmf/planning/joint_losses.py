"""How the parts of a composition add up, as numbers.

Gaussian noise by its precisions, privacy losses and Renyi divergences each by their own
composition; see `composition` for the theorems. `replaced` says whether all parts are
taken for replacements of a unit, or for zero-out.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

import dp_accounting
import numpy as np
from dp_accounting import rdp
from dp_accounting.pld import privacy_loss_distribution

from tf_bandmf.accounting import profiles
from tf_bandmf.planning.parts import Loss, Part, Run, gaussian_loss, renyi_accountants


def sum_of(values: Iterable[float | None]) -> float | None:
    """None if any is."""
    total = 0.0
    for value in values:
        if value is None:
            return None
        total += value
    return total


def noise_of(parts: Iterable[Part], replaced: bool) -> float | None:
    """Noise of the one Gaussian mechanism that all parts amount to, or None."""
    noises = (part.gaussian_noise(replaced) for part in parts)
    precision = sum_of(None if noise is None else noise**-2 for noise in noises)
    return 1.0 / math.sqrt(precision) if precision else None


def renyi(
    parts: Iterable[Part], replaced: bool
) -> tuple[rdp.RdpAccountant, float] | None:
    """What has composed the Renyi divergences of parts, and the delta set apart.

    None if one has none, or dp-accounting cannot compose them.
    """
    events, kept = [], 1.0
    for part in parts:
        found = part.divergences(replaced)
        if found is None:
            return None
        events.append(found[0])
        kept *= 1.0 - found[1]
    composed = dp_accounting.ComposedDpEvent(events)
    for accountant in renyi_accountants(replaced):
        if accountant.supports(composed):
            return accountant.compose(composed), 1.0 - kept
    return None


def composed_loss(parts: Iterable[Part], replaced: bool, interval: float) -> Loss:
    """A loss that dominates all parts together, discretized by `interval`."""
    parts = tuple(parts)
    gaussians = [part for part in parts if part.is_gaussian]
    noise = noise_of(gaussians, replaced)
    losses = [gaussian_loss(noise, interval)] if gaussians and noise else []
    divergent = []
    for part in parts:
        if part.is_gaussian:
            continue
        if part.has_losses(replaced):
            losses += part.losses(replaced, interval)
        else:
            divergent.append(part)
    # Without replacement, divergences are of replacements, also under zero-out.
    for replaces in (False, True):
        alike = [part for part in divergent if part.replaces is replaces]
        together = [alike] if _divergences(alike, replaced) else [[p] for p in alike]
        for group in together if alike else []:
            profile = _profile(group, replaced)
            losses.append(profiles.dominating_loss(profile, interval))
    none = privacy_loss_distribution.identity(interval)
    return functools.reduce(lambda total, loss: total.compose(loss), losses, none)


def _divergences(
    parts: list[Part], replaced: bool
) -> tuple[rdp.RdpAccountant, float] | None:
    """See `renyi`."""
    return renyi(parts, replaced or all(part.replaces for part in parts))


def _profile(parts: list[Part], replaced: bool) -> profiles.Profile:
    """A profile from Renyi divergences alone: these add up."""
    found = _divergences(parts, replaced)
    assert found is not None and found[1] == 0.0  # of a pair a loss is known
    accountant = found[0]
    known = [
        lambda epsilons: np.array(
            [float(accountant.get_delta(float(epsilon))) for epsilon in epsilons]
        )
    ]
    rho = sum_of(part.zcdp(replaced) for part in parts)
    if rho is not None and all(part.is_zcdp for part in parts):
        known.append(profiles.zcdp_profile(rho))
    noise = noise_of(parts, replaced)
    if noise is not None:
        known.append(profiles.gaussian_profile(noise))
    return profiles.least(*known)


def certainty(parts: Iterable[Part]) -> tuple[str, float | None]:
    """Kind and confidence of what rests on the numbers of all these parts."""
    parts = tuple(parts)
    risks = [1.0 - part.confidence for part in parts if part.confidence is not None]
    if any(part.kind == "estimate" for part in parts) or math.fsum(risks) > 0.5:
        return "estimate", None
    return "bound", 1.0 - math.fsum(risks) if risks else None


def not_simulated(parts: Iterable[Part]) -> list[Part]:
    """Those of which Renyi divergences say more than what they are unamplified."""
    return [
        part
        for part in parts
        if not (isinstance(part, Run) and part.plan.participation.is_simulated)
    ]
