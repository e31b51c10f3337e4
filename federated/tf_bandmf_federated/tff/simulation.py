"""Simulated clients for TFF: their data, and their availability in each round.

source = SimulatedClients(client_data, plan, availability=diurnal(24, 0.5, 0.05))
outcome = asyncio.run(train_model(process, source, private_dir="run/private"))
"""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from collections.abc import Callable, Mapping
from typing import Union

import tensorflow as tf
import tensorflow_federated as tff

from tf_bandmf import Plan
from tf_bandmf.accounting.checks import check_word, whole_number
from tf_bandmf_federated.cohorts import Cohorts, Selected
from tf_bandmf_federated.ledger import Ledger
from tf_bandmf_federated.plan_checks import check_plan
from tf_bandmf_federated.tff.availability import Availability, present
from tf_bandmf_federated.tff.tags import tag_dataset

_SHORTAGES = ("error", "fewer")

Clients = Union[
    tff.simulation.datasets.ClientData, Mapping[str, Callable[[], tf.data.Dataset]]
]


@dataclasses.dataclass(eq=False)
class SimulatedClients:
    """Simulated clients for `train_model`, whose data are on this machine.

    Cohorts are selected uniformly at random from the available clients that may take
    part. Clients may join and leave a run between two calls of `train_model`. A client
    must always have the same name: with a second name, it would get a second privacy
    budget.

    Args:
      clients: TFF's `ClientData`, or a dictionary that maps each client's name to a
        function that makes the client's data set. After `preprocess`, elements must be
        batches that match the model's `input_spec`.
      plan: plan with `MinSep` participation.
      availability: pure function, such as `diurnal(24)`, that maps a round number and a
        client's name to the probability that the client is available, or to a bool. By
        default, all clients are always available.
      preprocess: function that is applied to the data set of each client before tags
        are added.
      on_shortage: what to do in a round with too few eligible clients: "error" raises
        ValueError; "fewer" runs the round with the eligible clients, possibly none. The
        noisy sum is still divided by `clients_per_round`, so a round with fewer clients
        has a smaller mean update, with the same privacy.
      seed: integer >= 0, for reproducible cohorts; None for a fresh seed from the
        operating system. The privacy guarantee does not depend on this randomness.

    Raises:
      TypeError, ValueError: if an argument is invalid.
    """

    clients: Clients
    plan: Plan
    _: dataclasses.KW_ONLY
    availability: Availability = lambda round_number, name: 1.0
    preprocess: Callable[[tf.data.Dataset], tf.data.Dataset] | None = None
    on_shortage: str = "error"
    seed: int | None = None

    def __post_init__(self) -> None:
        self.participation = check_plan(self.plan)
        self.names, self._make_dataset = _clients(self.clients)
        check_word("on_shortage", self.on_shortage, _SHORTAGES)
        if self.seed is None:
            self._seed = secrets.token_bytes(32)
        else:
            number = whole_number("seed", self.seed, least=0)
            self._seed = hashlib.sha256(b"tf-bandmf cohorts %d" % number).digest()

    def available(self, round_number: int) -> list[str]:
        """Returns the names of a round's available clients, the same in every call."""
        return present(self.availability, round_number, self.names, self._seed)

    def cohorts(self, ledger: Ledger, wanted: int, num_rounds: int) -> Cohorts:
        """Returns the `Cohorts` that selects the clients of a run with this ledger.

        Args:
          ledger: the run's ledger.
          wanted: number of clients per round.
          num_rounds: number of rounds of the run.

        Raises:
          ValueError: before round 0, if `on_shortage` is "error" and the clients are too
            few for `num_rounds` rounds.
        """
        if not ledger.rounds and self.on_shortage == "error":
            self.check_enough(wanted, num_rounds)

        def check(available: int, eligible: int) -> bool:
            if eligible < wanted and self.on_shortage == "error":
                raise ValueError(
                    f"Round {len(ledger.rounds)} needs {wanted} eligible clients, "
                    f"but found {eligible} ({available} of {len(self.names)} clients are "
                    f"available). The plan has {self.participation}. Use fewer "
                    f"clients per round, make a plan with a smaller min_separation or more "
                    f'participations, or set on_shortage="fewer".'
                )
            return False

        return Cohorts(
            ledger,
            self.available,
            self.participation,
            # If all clients are looked up, the number of eligible clients is exact.
            enough=len(self.names),
            wait=check,
            seed=self._seed.hex(),
        )

    def check_enough(self, size: int, num_rounds: int) -> None:
        """Raises ValueError if there are too few clients for rounds of this size.

        A client may take part at most once in any b consecutive rounds, and at most k
        times in total. This method checks only these two limits. Even if it raises no
        error, too few clients may be available in some rounds.
        """
        b = min(self.participation.min_separation, num_rounds)
        k = self.participation.participations(num_rounds)
        needed = max(size * b, -(-size * num_rounds // k))
        if len(self.names) < needed:
            raise ValueError(
                f"{num_rounds} rounds with {size} clients each need at least {needed} "
                f"clients, but found {len(self.names)}. A client may take part once in "
                f"any {b} consecutive rounds, and {k} times in total. Use fewer clients "
                f"per round, make a plan with a smaller min_separation or more "
                f'participations, or set on_shortage="fewer".'
            )

    def tagged(self, selected: Selected, round_number: int) -> list[tf.data.Dataset]:
        """Returns the selected clients' data sets, tagged with participation records.

        Clients that have left since an interrupted round began are omitted.
        """
        names, datasets = set(self.names), []
        for name, (last_round, count) in zip(selected.names, selected.past.tolist()):
            if name in names:
                dataset = self._make_dataset(name)
                if self.preprocess is not None:
                    dataset = self.preprocess(dataset)
                datasets.append(tag_dataset(dataset, last_round, count, round_number))
        return datasets


def _clients(
    clients: Clients,
) -> tuple[tuple[str, ...], Callable[[str], tf.data.Dataset]]:
    """Returns the clients' sorted names, and a function from name to data set."""
    if isinstance(clients, tff.simulation.datasets.ClientData):
        names, make = clients.client_ids, clients.create_tf_dataset_for_client
    elif isinstance(clients, Mapping):
        names, make = list(clients), lambda client_id: clients[client_id]()
    else:
        raise TypeError(
            f"clients must be a tff.simulation.datasets.ClientData, or a mapping from "
            f"names to functions that return a tf.data.Dataset, but found "
            f"{type(clients).__name__}."
        )
    if not names:
        raise ValueError("clients must not be empty.")
    return tuple(sorted(names)), make
