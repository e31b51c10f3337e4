"""Privacy loss distributions of dp-accounting events, including composed events."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import TypeAlias

import dp_accounting
import numpy as np
from dp_accounting import rdp
from dp_accounting.pld import (
    common,
    pld_pmf,
    pld_privacy_accountant,
    privacy_loss_distribution,
)

from tf_bandmf.accounting import profiles, tilted
from tf_bandmf.accounting.checks import whole_number

Loss: TypeAlias = privacy_loss_distribution.PrivacyLossDistribution

# To allow for rounding errors of Fourier convolutions, `repeated` increases delta by
# _ROUNDING_OF_QUERY per query, and by at least _LEAST_ROUNDING.
_LEAST_ROUNDING, _ROUNDING_OF_QUERY = 1e-13, 2.0**-51
# Because of rounding errors, a delta from dp-accounting may be outside of [0, 1] by up
# to this amount.
_TOLERANCE = 1e-12


def pieces(
    event: dp_accounting.DpEvent, count: int = 1
) -> Iterator[tuple[dp_accounting.DpEvent, int]]:
    """Yields the events of a (possibly nested) composition, each with its count.

    Raises:
      ValueError: if a count is not a whole number >= 0.
    """
    if isinstance(event, dp_accounting.NoOpDpEvent):
        return
    if isinstance(event, dp_accounting.SelfComposedDpEvent):
        times = whole_number("count of a SelfComposedDpEvent", event.count, least=0)
        yield from pieces(event.event, count * times)
    elif isinstance(event, dp_accounting.ComposedDpEvent):
        for part in event.events:
            yield from pieces(part, count)
    elif count > 0:
        yield event, count


def of_event(
    event: dp_accounting.DpEvent, interval: float, is_replaced: bool = False
) -> Loss:
    """Returns a privacy loss distribution that dominates an event's privacy loss.

    Args:
      event: any event that dp-accounting supports.
      interval: the spacing of the discretized losses; discretization errors only
        increase delta.
      is_replaced: True if neighboring data sets differ by the replacement of one
        privacy unit, False if one is added or removed.

    Raises:
      ValueError: if dp-accounting does not support the event for this adjacency.
    """
    losses, others = [], []
    for piece, count in pieces(event):
        query = query_of(piece, count)
        if query is not None:
            losses.append(_loss_of(query, interval))
        elif isinstance(piece, dp_accounting.LaplaceDpEvent):
            once = privacy_loss_distribution.from_laplace_mechanism(
                piece.noise_multiplier, value_discretization_interval=interval
            )
            losses.append(repeated(once, count, interval))
        else:
            others.append(dp_accounting.SelfComposedDpEvent(piece, count))
    if others:
        profile = profile_of(dp_accounting.ComposedDpEvent(others), is_replaced)
        losses.append(profiles.dominating_loss(profile, interval))
    return functools.reduce(lambda total, loss: total.compose(loss), losses)


def _loss_of(query: tilted.Query, interval: float) -> Loss:
    """Returns a discrete loss that dominates the loss of all `query.count` queries."""
    count, laws = query.count, [tilted.Law(query, add=False)]
    if query.probability == 1.0:
        # Gaussian mechanisms compose to a single Gaussian mechanism, whose privacy loss
        # is the same for "add" and "remove".
        noise, count = query.noise / math.sqrt(count), 1
        laws = [tilted.Law(tilted.Query(1.0, noise), add=False)]
    elif not query.is_replaced:
        laws.append(tilted.Law(query, add=True))
    made = (law.discretized(interval) for law in laws)
    parts = [pld_pmf.DensePLDPmf(interval, *law, True) for law in made]
    return repeated(Loss(*parts), count, interval)


def profile_of(event: dp_accounting.DpEvent, is_replaced: bool) -> profiles.Profile:
    """Returns an event's privacy profile (delta as a function of epsilon).

    The profile comes from the first of dp-accounting's accountants that supports the
    event. For zero-out adjacency (`is_replaced` is False), the function first tries the
    accountants for add-or-remove adjacency. It then tries the one for REPLACE_SPECIAL,
    dp-accounting's name for the replacement of a record by, for example, a zero record.

    Raises:
      ValueError: if no accountant supports the event for this adjacency.
    """
    relations = dp_accounting.NeighboringRelation
    if is_replaced:
        several = [rdp.RdpAccountant(neighboring_relation=relations.REPLACE_ONE)]
    else:
        special = rdp.RdpAccountant(neighboring_relation=relations.REPLACE_SPECIAL)
        several = [pld_privacy_accountant.PLDAccountant(), rdp.RdpAccountant(), special]
    accountant = next((one for one in several if one.supports(event)), None)
    if accountant is None:
        neighbors = "replaced" if is_replaced else "added or removed"
        raise ValueError(
            f"dp-accounting has no accountant for this event if a privacy unit is "
            f"{neighbors}. Give the event's epsilon and delta, or its rho, instead."
        )
    accountant.compose(event)

    def profile(epsilons: np.ndarray) -> np.ndarray:
        deltas = np.array([float(accountant.get_delta(float(e))) for e in epsilons])
        if not np.all((deltas >= -_TOLERANCE) & (deltas <= 1.0 + _TOLERANCE)):
            raise ArithmeticError(
                f"dp-accounting must return deltas in [0, 1], found {deltas} for {event} "
                f"at epsilon = {epsilons}."
            )
        return np.clip(deltas, 0.0, 1.0)

    return profile


def query_of(event: dp_accounting.DpEvent, count: int) -> tilted.Query | None:
    """Returns `count` Gaussian events as a `Query`; None if the event is not Gaussian.

    Gaussian events are Gaussian queries on all examples, on a Poisson sample, or on a
    sample of fixed size.
    """
    single, probability = getattr(event, "event", event), 1.0
    if isinstance(event, dp_accounting.PoissonSampledDpEvent):
        probability = event.sampling_probability
    elif isinstance(event, dp_accounting.SampledWithoutReplacementDpEvent):
        probability = event.sample_size / max(event.source_dataset_size, 1)
    elif single is not event:
        return None
    if not isinstance(single, dp_accounting.GaussianDpEvent):
        return None
    noise = float(single.noise_multiplier)
    if not (0.0 < noise < math.inf and 0.0 < probability <= 1.0):
        return None
    replaced = isinstance(event, dp_accounting.SampledWithoutReplacementDpEvent)
    return tilted.Query(float(probability), noise, count, replaced)


def repeated(loss: Loss, count: int, interval: float) -> Loss:
    """Returns the privacy loss of `count` independent copies of a mechanism.

    The rounding errors of dp-accounting's composition may reduce delta. Therefore the
    result includes an additional mechanism that reveals everything with a small
    probability. This probability is four times the largest rounding error that was
    measured.
    """
    if count == 1:
        return loss
    rounding = max(_LEAST_ROUNDING, _ROUNDING_OF_QUERY * count)
    unbounded = privacy_loss_distribution.from_privacy_parameters(
        common.DifferentialPrivacyParameters(0.0, rounding),
        value_discretization_interval=interval,
    )
    return loss.self_compose(count).compose(unbounded)
