"""The server's side: a strategy that keeps a ledger, and goes on where it was killed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from logging import INFO, WARNING
from typing import Any

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy
from flwr.supercore import log

from tf_bandmf import Plan
from tf_bandmf_federated.accounting import MeasuredParticipation
from tf_bandmf_federated.averaging import Add, FederatedAveraging, Replies, Request
from tf_bandmf_federated.cohorts import AvailableCohorts
from tf_bandmf_federated.flower import messages
from tf_bandmf_federated.flower.bundles import check_outside_of_apps
from tf_bandmf_federated.flower.devices import Devices
from tf_bandmf_federated.flower.receipts import Receipts
from tf_bandmf_federated.health import Health
from tf_bandmf_federated.large_vectors import blocks
from tf_bandmf_federated.ledger import Ledger
from tf_bandmf_federated.plan_checks import check_plan, clients_per_round_of
from tf_bandmf_federated.rounds import ProgramState, Releasing
from tf_bandmf_federated.running import Run
from tf_bandmf_federated.server_optimizers import ServerOptimizer

_PAUSE = 0.1  # seconds from one look at the SuperLink to the next
_PULLED_BYTES = 1 << 26  # of updates that are pulled together; at least one is
_REMEMBERED = 20  # rounds whose late replies are still counted


class PrivateFedAvg(Strategy):
    """Federated averaging with correlated noise, enforced separation and a ledger.

    Formal guarantee: user-level (epsilon, delta)-DP as the plan states, zero-out
    adjacency of one device's whole data, for the models of all rounds and everything
    computed from them, over all restarts, if `private_dir` and each device's store stay
    private and whole. The server is trusted with the devices' updates.

    A round's devices are chosen by the ledger's record of them, which is written before
    anything is sent. Each reply is clipped again; the sum has uniform weights, gets the
    round's noise whoever replied, and is divided by a constant. `start` continues where
    the run was interrupted: `server_round` in Flower's records is the plan's round plus
    1. See `tf_bandmf_federated.program` for what happens after a crash.

    Metrics of `start`'s result are exact counts of devices, for the operator. Devices
    send no metrics; evaluate on public data with `evaluate_fn`.

    Args:
      plan: with `MinSep` participation; its steps are rounds.
      private_dir: for ledger, noise key and states; as secret as the key, and needed to
        continue. Not in the folder of a Flower app, whose files are sent to every node.
      clients_per_round: the public denominator, and how many devices are selected; by
        default the plan's batch size.
      server_optimizer: by default SGD with learning rate 1.
      over_selection: >= 1: this many times `clients_per_round` devices are asked, so
        that about `clients_per_round` answer within `start`'s `timeout`. All that do are
        added up; the denominator stays `clients_per_round`. A round ends with `timeout`,
        or when nobody is left to answer, so that no device's training time or failure
        decides about another's update; later replies are counted as late.
      min_available: number of eligible devices to wait for before a round begins; by
        default `clients_per_round`.
      max_wait: seconds to wait for them. Then the round runs with those available; if
        there are none, `start` raises, and no round is spent.
      query_timeout: seconds to wait for the names of new nodes.
      models: gets the weights after each round, a list of arrays; the key is the number
        of rounds done, and an earlier entry with the same key must be replaced.
      interrupted_round: "replay" or "skip".

    Attributes:
      plan: what the run does.

    Raises:
      TypeError, ValueError: if an argument is wrong.
    """

    def __init__(
        self,
        plan: Plan,
        private_dir: str,
        *,
        clients_per_round: int | None = None,
        server_optimizer: ServerOptimizer | None = None,
        over_selection: float = 1.0,
        min_available: int | None = None,
        max_wait: float = 60.0,
        query_timeout: float = 60.0,
        models: Releasing | None = None,
        interrupted_round: str = "replay",
    ) -> None:
        self._participation = check_plan(plan)
        check_outside_of_apps(private_dir, "private_dir")
        wanted = clients_per_round_of(plan, clients_per_round)
        if wanted != int(wanted):
            raise ValueError(f"clients_per_round must be whole, found {wanted}.")
        self.plan = plan
        self._private_dir = private_dir
        self._wanted = int(wanted)
        self._optimizer = server_optimizer
        self._over_selection = over_selection
        self._min_available = self._wanted if min_available is None else min_available
        self._max_wait = max_wait
        self._query_timeout = query_timeout
        self._models = models
        self._interrupted_round = interrupted_round
        self._health = Health(plan)
        self._measured: MeasuredParticipation | None = None
        self._devices: Devices  # of `start`
        self._receipts: Receipts
        self._waiting_since: float | None = None
        self._late: dict[str, int] = {}  # messages without a reply in time: their round

    @property
    def measured(self) -> MeasuredParticipation:
        """Separation and participations of the run, for `write_report`.

        Raises:
          ValueError: before `start` has returned.
        """
        if self._measured is None:
            raise ValueError("Nothing was measured yet: call start first.")
        return self._measured

    def summary(self) -> None:
        """Logs what the run does."""
        for line in str(self.plan.statement(unit="one device")).splitlines():
            log(INFO, "\t%s", line)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Runs the remaining rounds.

        Args:
          grid: of Flower.
          initial_arrays: weights before round 0, float32. After a restart their values
            do not count; names and shapes must be the same.
          num_rounds: of the whole run, over all restarts; by default the plan's.
          timeout: seconds to wait for a round's replies; a device that does not answer
            makes a round last that long.
          train_config: sent to devices with the model.
          evaluate_config: must be None: nothing that is computed from devices' data
            without noise leaves them.
          evaluate_fn: evaluates on public data; gets `server_round` and weights.

        Raises:
          ValueError: if `evaluate_config` is given; else see `running.Run.finish`.
        """
        if evaluate_config is not None:
            raise ValueError(
                "evaluate_config must be None: what devices evaluate is not private. "
                "Evaluate on public data with evaluate_fn."
            )
        self.summary()
        names = list(initial_arrays.keys())
        self._grid, self._timeout = grid, timeout
        self._names = names
        self._config = dict(train_config or {})
        engine = FederatedAveraging(
            self.plan,
            initial_arrays.to_numpy_ndarrays(),
            self._exchange,
            clients_per_round=self._wanted,
            optimizer=self._optimizer,
        )
        engine.settings.update(engine="flower", names=names)
        result = Result()

        def cohorts(ledger: Ledger) -> AvailableCohorts:
            self._receipts = Receipts(ledger, engine.host_noise.seal)
            self._devices = Devices(
                grid,
                self.plan.fingerprint,
                begun=lambda: len(ledger.rounds),
                receipts=self._receipts,
                timeout=self._query_timeout,
            )
            return AvailableCohorts(
                ledger,
                self._devices.present,
                self._participation,
                self._over_selection,
                self._min_available,
                self._wait,
            )

        def after_round(state: ProgramState) -> None:
            done = engine.round_number(state.state)
            measured = state.data_iterator.measured()
            log(INFO, "%s", self._health.line(done - 1, state.metrics, measured))
            result.train_metrics_clientapp[done] = MetricRecord(
                {name: int(count) for name, count in state.metrics.items()}
            )
            if evaluate_fn is not None:
                arrays = self._record([np.asarray(w) for w in state.state["weights"]])
                found = evaluate_fn(done, arrays)
                if found is not None:
                    log(INFO, "round %d evaluated: %s", done - 1, found)
                    result.evaluate_metrics_serverapp[done] = found

        run = Run(
            engine=engine,
            cohorts=cohorts,
            private_dir=self._private_dir,
            clients_per_round=self._wanted,
            total_rounds=num_rounds,
            models=self._models,
            interrupted_round=self._interrupted_round,
            after_round=after_round,
        )
        done, self._measured = asyncio.run(run.finish())
        result.arrays = self._record(asyncio.run(engine.weights(done.state)))
        return result

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Refuses: rounds are begun by `start`, which writes the ledger before."""
        raise RuntimeError(
            "PrivateFedAvg runs its rounds itself: call start. Wrapped by another "
            "strategy it would neither know nor keep what its guarantee needs."
        )

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Refuses, as `configure_train`."""
        raise RuntimeError("PrivateFedAvg runs its rounds itself: call start.")

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Asks nobody: what devices evaluate is not private."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Nothing, as nobody was asked."""
        return None

    def _record(self, weights: list[np.ndarray]) -> ArrayRecord:
        pairs = zip(self._names, weights, strict=True)
        return ArrayRecord({name: Array(weight) for name, weight in pairs})

    def _wait(self, available: int, eligible: int) -> bool:
        """Waits for devices that may take part in the coming round.

        Returns:
          Whether to look again.

        Raises:
          RuntimeError: after `max_wait` without any: a round of nobody would spend a round
            of the plan on noise.
        """
        if eligible >= self._min_available:
            self._waiting_since = None
            return False
        if self._waiting_since is None:
            self._waiting_since = time.monotonic()
        if time.monotonic() - self._waiting_since <= self._max_wait:
            time.sleep(_PAUSE)
            return True
        self._waiting_since = None
        separation = self._participation.min_separation
        if eligible == 0 and self._devices.strangers:
            raise RuntimeError(
                f"No device may take part in the next round. {self._devices.strangers} "
                f"say that they took part in rounds that were not begun here: an earlier "
                f"run of the plan had them, and both together would spend more than the "
                f"plan. That round spends nothing. Go on with that run's private_dir, or "
                f"begin a new run with a plan and device stores of its own."
            )
        if eligible == 0:
            raise RuntimeError(
                f"No device may take part in the next round, of {available} that are "
                f"there: after a round a device rests until {separation - 1} others are "
                f"over. Rounds of {self._wanted} with a separation of {separation} need "
                f"{self._wanted * separation} devices. That round spends nothing. "
                f"Connect more and call start again, or make a plan with fewer clients "
                f"per round or a smaller separation."
            )
        log(
            WARNING,
            "%d devices may take part, %d were awaited: the round goes on with them.",
            eligible,
            self._min_available,
        )
        return False

    def _exchange(self, request: Request, add: Add) -> Replies:
        """Sends a round's model to its devices, and adds what comes back in time."""
        late = self._count_late(request.round_number)
        asked = self._send(request)
        refused = failed = 0
        end = time.monotonic() + self._timeout
        while asked and time.monotonic() < end:
            for reply in self._pulled(list(asked), request):
                name = asked.pop(reply.metadata.reply_to_message_id, None)
                if name is None:
                    continue
                found = self._update_of(reply, request, name)
                if isinstance(found, list):
                    add(name, found)
                elif found.startswith(messages.REFUSED):
                    refused += 1
                else:
                    failed += 1
                    log(INFO, "device %s: %s", name[:8], found)
            if asked:
                time.sleep(_PAUSE)
        self._late.update((message, request.round_number) for message in asked)
        return Replies(refused=refused, late=late, failed=failed)

    def _pulled(self, asked: list[str], request: Request) -> Iterator[Message]:
        """What has come, a few at a time: each has a model of memory."""
        model = max(1, sum(weight.nbytes for weight in request.weights))
        for part in blocks(0, len(asked), max(1, _PULLED_BYTES // model)):
            yield from self._grid.pull_messages(asked[part])

    def _send(self, request: Request) -> dict[str, str]:
        """Names of the devices that were sent the model, by the message's number."""
        nodes = self._devices.nodes_of(request.names)
        config: dict[str, Any] = {
            **self._config,
            "server-round": request.round_number + 1,
            messages.PLAN: self.plan.fingerprint,
            messages.RUN: request.run,
            messages.ROUND: request.round_number,
        }
        arrays = self._record(request.weights)
        receipts = self._receipts.give(nodes, request.round_number)

        def content(name: str) -> RecordDict:
            receipt = {messages.RECEIPT: receipts[name]}
            found = ConfigRecord({**config, **receipt})
            return RecordDict({messages.ARRAYS: arrays, messages.CONFIG: found})

        requests = [
            Message(
                content(name),
                node,
                MessageType.TRAIN,
                ttl=self._timeout,
                group_id=str(request.round_number),
            )
            for name, node in nodes.items()
        ]
        sent = self._grid.push_messages(requests)
        pairs = zip(sent, nodes, strict=True)
        return {message: name for message, name in pairs if message is not None}

    def _update_of(
        self, reply: Message, request: Request, name: str
    ) -> list[np.ndarray] | str:
        """The arrays that a device adds to the sum, or why there are none."""
        if reply.has_error():
            return f"error {reply.error.code}"
        about = reply.content.config_records.get(messages.REPLY)
        if about is None:
            return "it does not run ParticipationMod: what it sent is not used"
        self._receipts.check(name, about)
        if about.get("problem"):
            return str(about["problem"])
        expected = (self.plan.fingerprint, request.run, request.round_number, name)
        found = tuple(about.get(key) for key in ("plan", "run", "round", "device"))
        if found != expected:
            return "it answers another request, or is another device by now"
        arrays = reply.content.array_records.get(messages.ARRAYS)
        if arrays is None or list(arrays.keys()) != self._names:
            return "it did not send the model's arrays"
        try:
            return arrays.to_numpy_ndarrays()
        except Exception as error:  # no device decides whether training goes on
            return f"its arrays cannot be read: {type(error).__name__}"

    def _count_late(self, round_number: int) -> int:
        """Replies of earlier rounds that have come since; they are thrown away."""
        self._late = {
            message: when
            for message, when in self._late.items()
            if round_number - when <= _REMEMBERED
        }
        if not self._late:
            return 0
        count = 0
        for reply in self._grid.pull_messages(list(self._late)):
            if self._late.pop(reply.metadata.reply_to_message_id, None) is not None:
                count += not reply.has_error()
        return count
