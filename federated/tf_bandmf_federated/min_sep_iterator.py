"""One pass over a data source: its cohorts, round by round, and their record."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tf_bandmf.participation.checks import positive_int
from tf_bandmf.sampling.samplers import random_words
from tf_bandmf_federated.accounting import MeasuredParticipation
from tf_bandmf_federated.digests import digest_of_data
from tf_bandmf_federated.participation_table import Cohort, ParticipationTable
from tf_bandmf_federated.plan_checks import check_horizon

if TYPE_CHECKING:
    from tf_bandmf_federated.data_source import MinSepDataSource

_FORMAT = "tf-bandmf-federated min-sep iterator 2"


class MinSepIterator(tff.program.FederatedDataSourceIterator):
    """One pass over a `MinSepDataSource`; make it with `source.iterator()`.

    `select` counts rounds from 0, as `PrivateLearningProcess.round_number` does: keep
    the two together. A selected client counts as having taken part, whatever happens to
    it.
    """

    _of: ClassVar[MinSepDataSource | None] = None

    def __init__(self, seed: bytes) -> None:
        self._source = self._bound_source()
        self._seed = seed
        self._round = 0
        self._cohort: Cohort | None = None
        self._short_rounds = 0
        self._table = ParticipationTable(
            self._source.client_ids, self._source.participation
        )

    @classmethod
    def _bound_source(cls) -> MinSepDataSource:
        if cls._of is None:
            raise TypeError(
                "An iterator needs the data of its source: call source.iterator() or "
                "source.iterator_from_bytes(saved)."
            )
        return cls._of

    @property
    def federated_type(self) -> tff.FederatedType:
        return self._source.federated_type

    @property
    def round_number(self) -> int:
        """The round, from 0, for which `select` selects next."""
        return self._round

    @property
    def cohort_round(self) -> int | None:
        """The round of the last selection, or None."""
        return None if self._cohort is None else self._cohort.round_number

    @property
    def cohort(self) -> tuple[str, ...]:
        """Names of the clients of the last selection, in the order of their data."""
        return () if self._cohort is None else self._cohort.clients

    @property
    def short_rounds(self) -> int:
        """Rounds that had fewer clients than wanted (`on_shortage="fewer"`)."""
        return self._short_rounds

    def select(self, k: int | None = None) -> list[tf.data.Dataset]:
        """Tagged data of k clients for this round; advances to the next round.

        Args:
          k: clients wanted; None for the plan's `expected_batch_size`.

        Raises:
          ValueError: past the plan's last round; if k is missing or not an integer >=
            1; if fewer clients are eligible and available and `on_shortage` is "error".
            The iterator is then unchanged.
        """
        wanted = self._wanted(k)
        source, current = self._source, self._round
        check_horizon(source.plan, current)
        available = source.availability.present(
            current, source.client_ids, self._stream(b"availability")
        )
        eligible = self._table.eligible(current)
        candidates = np.flatnonzero(available & eligible)
        is_short = len(candidates) < wanted
        if is_short and source.on_shortage == "error":
            raise ValueError(
                f"Round {current} needs {wanted} clients, but {len(candidates)} of "
                f"{len(eligible)} are there and may take part: {available.sum()} are "
                f"available, {eligible.sum()} are eligible under "
                f"{source.participation}. Take fewer clients per round, make a plan "
                f"with a smaller min_separation or more participations, or give "
                f'on_shortage="fewer".'
            )
        # The smallest of independent numbers: a uniform choice, in uniform order.
        words = random_words(self._stream(b"cohort"), current, len(eligible))
        order = np.argsort(words[candidates], kind="stable")
        chosen = self._table.names_of(candidates[order[:wanted]])
        cohort = self._table.cohort(current, chosen)
        datasets = self._datasets(cohort)
        self._table.record(cohort)
        self._cohort, self._round = cohort, current + 1
        self._short_rounds += is_short
        return datasets

    def repeat(self) -> list[tf.data.Dataset]:
        """The last selection with the same tags, to run its round once more.

        Raises:
          ValueError: if nothing was selected yet, or a client left since.
        """
        if self._cohort is None:
            raise ValueError("Nothing was selected yet: there is nothing to repeat.")
        return self._datasets(self._cohort)

    def select_again(
        self, clients: Sequence[str], k: int | None = None
    ) -> list[tf.data.Dataset]:
        """`select` for a round that was begun with these clients, before a crash.

        The selection depends only on the round: a different selection means that the
        source has changed; the caller compares.
        """
        return self.select(k)

    def digest_of_selected(self, selected: Sequence[tf.data.Dataset]) -> str:
        """SHA-256 of data that were selected; they are read."""
        return digest_of_data(selected)

    def count_round(self, clients: Sequence[str]) -> None:
        """Counts these clients' participation in this round, without their data.

        Use it for a round that was begun with them before a restart and is not
        repeated. They may have left in the meantime: their record is kept.

        Raises:
          TypeError: if a name is not a string.
          ValueError: if a name comes twice; past the plan's last round.
        """
        check_horizon(self._source.plan, self._round)
        wrong = [name for name in clients if not isinstance(name, str)]
        if wrong:
            raise TypeError(f"Names of clients must be strings, found {wrong[0]!r}.")
        if len(set(clients)) != len(clients):
            raise ValueError(f"clients has a name twice: {sorted(clients)[:5]}.")
        self._cohort = self._table.cohort(self._round, clients)
        self._table.record(self._cohort)
        self._round += 1

    def skip_to(self, round_number: int) -> None:
        """Skips rounds in which nobody takes part.

        For a round whose cohort was already asked to come, call `select` and drop the
        result: these clients' participations count.

        Raises:
          ValueError: if the round is past the last one, or has already passed.
        """
        if not self._round <= round_number <= self._source.plan.num_steps:
            raise ValueError(
                f"round_number must be in [{self._round}, "
                f"{self._source.plan.num_steps}], found {round_number}: rounds only go "
                f"forward. To go back restore a saved iterator."
            )
        self._round = int(round_number)

    def measured(self) -> MeasuredParticipation:
        """Separation and participations of the selections so far, for the accounting."""
        return self._table.measured(self._round)

    def to_bytes(self) -> bytes:
        """The iterator as JSON, with a SHA-256.

        It names who took part, so that it can continue when some have joined or left.
        Seed and round are the state of the generator.
        """
        body = {
            "made_for": self._source.fingerprints,
            "seed": self._seed.hex(),
            "round": self._round,
            "cohort": None if self._cohort is None else self._cohort._asdict(),
            "short_rounds": self._short_rounds,
            "table": self._table.to_config(),
        }
        content = {"format": _FORMAT, "sha256": _digest(body), "body": body}
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, buffer: bytes) -> MinSepIterator:
        """The iterator that was saved, on this source's data.

        The source may have other clients: a new client never took part; a client that
        left keeps its record, and continues with it if it comes back under its name.

        Call it as `type(iterator).from_bytes`, as TFF's program state managers do, or
        use `source.iterator_from_bytes`: each source has its own class.

        Raises:
          TypeError: on the class without a source.
          ValueError: if the bytes are damaged, or were saved for another plan or
            availability.
        """
        source = cls._bound_source()
        body = _body(bytes(buffer))
        for name, value in source.fingerprints.items():
            if body["made_for"][name] != value:
                raise ValueError(
                    f"The iterator was saved with another {name}: "
                    f"{body['made_for'][name]}, here it is {value}."
                )
        iterator = cls(bytes.fromhex(body["seed"]))
        iterator._round = body["round"]
        iterator._short_rounds = body["short_rounds"]
        if body["cohort"] is not None:
            number, *lists = map(body["cohort"].get, Cohort._fields)
            iterator._cohort = Cohort(number, *map(tuple, lists))
        iterator._table.load_config(body["table"])
        return iterator

    def __deepcopy__(self, memo: dict[int, Any]) -> MinSepIterator:
        # TFF's programs copy the iterator in every round; the data are not copied.
        copied = copy.copy(self)
        copied._table = self._table.copy()
        return copied

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MinSepIterator):
            return NotImplemented
        return self.to_bytes() == other.to_bytes()

    __hash__ = None  # type: ignore[assignment]  # it changes

    def _wanted(self, k: int | None) -> int:
        wanted = self._source.plan.expected_batch_size if k is None else k
        if wanted is None:
            raise ValueError(
                "k is missing, and the plan has no expected_batch_size: how many "
                "clients shall take part in the round?"
            )
        return positive_int("k", wanted)

    def _stream(self, purpose: bytes) -> bytes:
        """A seed of its own for each purpose: no number is used twice."""
        return hashlib.sha256(purpose + b"\0" + self._seed).digest()

    def _datasets(self, cohort: Cohort) -> list[tf.data.Dataset]:
        rows = zip(cohort.clients, cohort.last_rounds, cohort.participations)
        return [self._source.dataset_of(*row, cohort.round_number) for row in rows]


def _digest(body: dict[str, Any]) -> str:
    content = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()


def _body(saved: bytes) -> dict[str, Any]:
    """The body of a saved iterator.

    Raises:
      ValueError: if it is not one, or was changed.
    """
    try:
        content = json.loads(saved)
        found, body, digest = content["format"], content["body"], content["sha256"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"These bytes are no saved iterator of a MinSepDataSource, or damaged: "
            f"{error!r}. Take an earlier saved state."
        ) from error
    if found != _FORMAT:
        raise ValueError(
            f"The saved iterator has format {found!r}; this version reads {_FORMAT!r}."
        )
    if _digest(body) != digest:
        raise ValueError(
            "The saved iterator does not have the SHA-256 that it states: it was "
            "changed or damaged. Take an earlier saved state."
        )
    return body
