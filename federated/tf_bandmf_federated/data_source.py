"""A data source for simulation that selects only devices that may take part.

    source = MinSepDataSource(client_data, plan, availability=Diurnal(24, 0.5, 0.05))
    iterator = source.iterator()
    data = iterator.select(20)      # tagged with what each device knows about its past

A round's cohort is a pure function of the iterator's seed, the round's number and the
participations so far: an iterator that was saved (`to_bytes`) and restored selects what
the uninterrupted one does. Nothing is claimed from this randomness, so the seed need
not be secret; but a saved iterator says who took part, so nobody else should read it.
"""

from __future__ import annotations

import functools
import hashlib
import secrets
from collections.abc import Callable, Mapping
from typing import Union

import tensorflow as tf
import tensorflow_federated as tff

from tf_bandmf import Plan
from tf_bandmf.accounting.checks import whole_number
from tf_bandmf.sampling.samplers import SEED_BYTES
from tf_bandmf_federated.availability import Always, Availability, as_availability
from tf_bandmf_federated.eligibility import NEVER
from tf_bandmf_federated.min_sep_iterator import MinSepIterator
from tf_bandmf_federated.plan_checks import check_plan
from tf_bandmf_federated.tags import tag_dataset

_SHORTAGES = ("error", "fewer")

Clients = Union[
    tff.simulation.datasets.ClientData, Mapping[str, Callable[[], tf.data.Dataset]]
]


class MinSepDataSource(tff.program.FederatedDataSource):
    """Selects eligible devices, uniformly among those that are available.

    A device is eligible if its last participation was b rounds or more ago and it took
    part fewer than k times, with the plan's b and k.

    Devices may join and leave a run: make a source with the present devices, and
    continue with `iterator_from_bytes`. A name always stands for one device; under a
    second name, a device would get a second budget.

    Args:
      clients: TFF's `ClientData`, or for each client's name a function that makes its
        data set. After `preprocess`, elements are batches as in the model's
        `input_spec`.
      plan: with `MinSep` participation.
      availability: a model (see `availability`), or a pure function of round and
        client's name that says whether the client is available. By default, all clients
        always are.
      preprocess: function of each client's data set, applied before the tags are added.
      on_shortage: "error", or "fewer": a round with too few clients takes those
        available, perhaps none. The public denominator of the noisy sum does not
        change, so such a round has a smaller mean update and is no less private.
      seed: an integer >= 0 from which all iterators draw the same cohorts; None for a
        fresh seed from the operating system for each.

    Raises:
      TypeError, ValueError: if an argument is none of these.
    """

    def __init__(
        self,
        clients: Clients,
        plan: Plan,
        *,
        availability: Availability | Callable[[int, str], bool] | None = None,
        preprocess: Callable[[tf.data.Dataset], tf.data.Dataset] | None = None,
        on_shortage: str = "error",
        seed: int | None = None,
    ) -> None:
        self.participation = check_plan(plan)
        self.plan = plan
        self.availability = as_availability(
            Always() if availability is None else availability
        )
        self.client_ids, self._make_dataset = _clients(clients)
        self._names = frozenset(self.client_ids)
        if on_shortage not in _SHORTAGES:
            raise ValueError(
                f"on_shortage must be one of {_SHORTAGES}, found {on_shortage!r}."
            )
        self.on_shortage = on_shortage
        self._preprocess = preprocess
        self._seed = None if seed is None else _seed_bytes(seed)
        self._element_spec = self._dataset(self.client_ids[0]).element_spec
        tagged = tag_dataset(self._dataset(self.client_ids[0]), NEVER, 0, 0)
        element_type = tff.types.tensorflow_to_type(tagged.element_spec)
        self._federated_type = tff.FederatedType(
            tff.SequenceType(element_type), tff.CLIENTS
        )
        # A saved iterator has no data, and `from_bytes` is a method of the class: so
        # the class is the source's own.
        self._iterator_class: type[MinSepIterator] = type(
            "MinSepIterator", (MinSepIterator,), {"_of": self}
        )

    @property
    def federated_type(self) -> tff.FederatedType:
        return self._federated_type

    def iterator(self) -> MinSepIterator:
        """A new pass: round 0, nobody took part yet."""
        return self._iterator_class(self._seed or secrets.token_bytes(SEED_BYTES))

    def iterator_from_bytes(self, saved: bytes) -> MinSepIterator:
        """The iterator that `to_bytes` saved; see `MinSepIterator.from_bytes`."""
        return self._iterator_class.from_bytes(saved)

    def check_enough_clients(
        self, clients_per_round: int, num_rounds: int | None = None
    ) -> None:
        """Raises ValueError if no trace can give this many clients per round.

        Any b consecutive rounds need different clients, and all rounds together at most
        k participations per client. These conditions do not ensure that the clients are
        available when they are needed.

        Args:
          clients_per_round: number of clients in every round.
          num_rounds: by default the plan's.
        """
        n = self.plan.num_steps if num_rounds is None else num_rounds
        check_plan(self.plan, n)
        size = whole_number("clients_per_round", clients_per_round)
        b = min(self.participation.min_separation, n)
        k = self.participation.participations(n)
        needed = max(size * b, -(-size * n // k))
        if len(self.client_ids) < needed:
            raise ValueError(
                f"{n} rounds of {size} clients need at least {needed} clients, if a "
                f"client comes at most once in {b} rounds and {k} times in all; found "
                f"{len(self.client_ids)}. Take fewer clients per round, or make a plan "
                f"with a smaller min_separation or more participations."
            )

    def dataset_of(
        self, client: str, last_round: int, participations: int, round_number: int
    ) -> tf.data.Dataset:
        """The tagged data of a client, for a round.

        Raises:
          ValueError: if there is no such client, or its elements have another type than
            those of the first client.
        """
        if client not in self._names:
            raise ValueError(f"Client {client!r} is not, or no more, in this source.")
        dataset = self._dataset(client)
        if dataset.element_spec != self._element_spec:
            raise ValueError(
                f"All clients must have elements of one type. Client "
                f"{client!r} has {dataset.element_spec}, the first one "
                f"{self._element_spec}."
            )
        return tag_dataset(dataset, last_round, participations, round_number)

    @functools.cached_property
    def fingerprints(self) -> dict[str, str]:
        """What a saved iterator must have been made for."""
        return {
            "plan": self.plan.fingerprint,
            "availability": self.availability.describe(),
        }

    def _dataset(self, client_id: str) -> tf.data.Dataset:
        dataset = self._make_dataset(client_id)
        return dataset if self._preprocess is None else self._preprocess(dataset)


def _clients(
    clients: Clients,
) -> tuple[tuple[str, ...], Callable[[str], tf.data.Dataset]]:
    """Sorted names, and what makes a client's data set."""
    if isinstance(clients, tff.simulation.datasets.ClientData):
        names, make = clients.client_ids, clients.create_tf_dataset_for_client
    elif isinstance(clients, Mapping):
        names, make = list(clients), lambda client_id: clients[client_id]()
    else:
        raise TypeError(
            f"clients must be a tff.simulation.datasets.ClientData, or a mapping from "
            f"names to functions that make a tf.data.Dataset, found "
            f"{type(clients).__name__}."
        )
    if not names:
        raise ValueError("clients is empty: there is nobody to select.")
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"Names of clients must be strings, found {name!r}.")
    if len(set(names)) != len(names):
        raise ValueError("clients has a name twice: one device, or two?")
    return tuple(sorted(names)), make


def _seed_bytes(seed: int) -> bytes:
    number = whole_number("seed", seed, least=0)
    return hashlib.sha256(b"tf-bandmf cohorts %d" % number).digest()
