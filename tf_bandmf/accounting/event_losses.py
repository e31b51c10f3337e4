"""Privacy losses of events of dp-accounting, each from the pieces that it consists of."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import TypeAlias

import dp_accounting
from dp_accounting.pld import common, pld_pmf, privacy_loss_distribution

from tf_bandmf.accounting import tilted
from tf_bandmf.accounting.checks import whole_number

Loss: TypeAlias = privacy_loss_distribution.PrivacyLossDistribution

# Rounding of convolutions by Fourier transforms: at least, and for each query.
_LEAST_ROUNDING, _ROUNDING_OF_QUERY = 1e-13, 2.0**-51

_ADDITIVE = {
    dp_accounting.GaussianDpEvent: privacy_loss_distribution.from_gaussian_mechanism,
    dp_accounting.LaplaceDpEvent: privacy_loss_distribution.from_laplace_mechanism,
}


def pieces(
    event: dp_accounting.DpEvent, count: int = 1
) -> Iterator[tuple[dp_accounting.DpEvent, int]]:
    """The events that a composition consists of, and how often each happens.

    Raises:
      ValueError: if a count is no whole number >= 0.
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


def of_run(event: dp_accounting.DpEvent, interval: float) -> Loss:
    """The loss of a run: of Gaussian queries, perhaps on samples."""
    parts = (additive_loss(one, count, interval) for one, count in pieces(event))
    return functools.reduce(lambda total, loss: total.compose(loss), parts)  # type: ignore[return-value, union-attr]


def additive_loss(
    event: dp_accounting.DpEvent, count: int, interval: float
) -> Loss | None:
    """The loss of an event without parts that happens `count` times.

    Args:
      event: under add-or-remove adjacency; a sample of fixed size, under replacements.
      count: >= 1.
      interval: of the discretization, which errs to the safe side.

    Returns:
      The loss; None unless noise with a density is added, perhaps after sampling.
    """
    query = query_of(event, count)
    if query is not None and query.is_replaced:
        return repeated(_loss_of(query, interval), count, interval)
    probability = 1.0
    if isinstance(event, dp_accounting.PoissonSampledDpEvent):
        event, probability = event.event, event.sampling_probability
    make = _ADDITIVE.get(type(event))
    if make is None or not (0.0 < probability <= 1.0 and event.noise_multiplier > 0.0):
        return None
    if probability == 1.0 and isinstance(event, dp_accounting.GaussianDpEvent):
        return make(
            event.noise_multiplier / math.sqrt(count),
            value_discretization_interval=interval,
        )
    loss = make(
        event.noise_multiplier,
        value_discretization_interval=interval,
        sampling_prob=probability,
    )
    return repeated(loss, count, interval)


def query_of(event: dp_accounting.DpEvent, count: int) -> tilted.Query | None:
    """So many Gaussian queries on a sample, or on all; None if it is something else."""
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


def _loss_of(query: tilted.Query, interval: float) -> Loss:
    """The loss of one query on a sample of fixed size, alike in both directions."""
    first, masses, infinite = tilted.Law(query, add=False).discretized(interval)
    pmf = pld_pmf.DensePLDPmf(interval, first, masses, infinite, True)
    return privacy_loss_distribution.PrivacyLossDistribution(pmf)


def repeated(loss: Loss, count: int, interval: float) -> Loss:
    """The loss of `count` alike, with what rounding may take away."""
    if count == 1:
        return loss
    # What rounding may take away, as another release of which all is known with that
    # probability.
    unbounded = privacy_loss_distribution.from_privacy_parameters(
        common.DifferentialPrivacyParameters(0.0, rounding_of_transforms(count)),
        value_discretization_interval=interval,
    )
    return loss.self_compose(count).compose(unbounded)


def rounding_of_transforms(count: int) -> float:
    """Bound on what rounding takes from delta of `count` convolved losses, absolute.

    Four times what was measured; see `cyclic_poisson`.
    """
    return max(_LEAST_ROUNDING, _ROUNDING_OF_QUERY * count)
