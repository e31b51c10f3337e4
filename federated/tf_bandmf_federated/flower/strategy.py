"""The server side for Flower: a strategy that can continue an interrupted run."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator
from logging import INFO, WARNING, getLogger
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

from tf_bandmf import Plan
from tf_bandmf_federated.accounting import MeasuredParticipation
from tf_bandmf_federated.averaging import Add, FederatedAveraging, Replies, Request
from tf_bandmf_federated.cohorts import Cohorts
from tf_bandmf_federated.flower import devices, messages, receipts
from tf_bandmf_federated.flower.bundles import check_outside_of_apps
from tf_bandmf_federated.flower.devices import Devices
from tf_bandmf_federated.health import line_of
from tf_bandmf_federated.large_vectors import blocks
from tf_bandmf_federated.ledger import Ledger
from tf_bandmf_federated.plan_checks import check_plan, cohort_size, statement_of
from tf_bandmf_federated.rounds import ProgramState, Releasing, Run
from tf_bandmf_federated.server_optimizers import ServerOptimizer
from tf_bandmf_federated.state_rows import digest_of_rows, rows_of

# Log with Flower's own logger.
log = getLogger("flwr").log
# The SuperLink is polled at intervals of this many seconds.
_PAUSE = 0.05
# During a round, the server checks at intervals of this many seconds which nodes have
# disconnected.
_GONE = 5.0
# A round ends after this many seconds if no timeout is passed to `start`. Flower has the
# same default.
_DEFAULT_TIMEOUT = 3600.0
# At least this many nodes are asked for their device names.
_ASKED = 1_000
# A log line shows at most this many characters of a device's answer.
_SHOWN = 200
# If updates are small, the server fetches several at once, with at most this many bytes
# in total.
_PULLED_BYTES = 1 << 26


@dataclasses.dataclass(eq=False)
class PrivateFedAvg(Strategy):
    """Federated averaging with correlated noise, enforced min separation and a ledger.

    Formal guarantee: the models of all rounds, and everything computed from them, are
    (epsilon, delta)-DP as the plan states. The privacy unit is all data of one device,
    with zero-out adjacency. The guarantee covers all restarts, if `private_dir` and
    each device's store stay private and undamaged. The server is trusted with the
    devices' updates.

    The server selects the devices of a round by their participation records in the
    ledger, and updates the ledger before it sends anything. It clips each update again,
    and adds up the updates with uniform weights. It adds the noise of the round no
    matter how many devices replied, and divides by a constant. Flower's `server_round`
    is the plan's round number plus 1. `start` also continues an interrupted run;
    `tf_bandmf_federated.tff.training` describes the recovery after a crash.

    The metrics in the result of `start` are exact counts of devices. They are meant for
    the operator, and are not private. Devices do not send metrics. Use `evaluate_fn` to
    evaluate the model on public data.

    Args:
      plan: plan with `MinSep` participation, whose steps are rounds.
      private_dir: folder for the ledger, which contains the noise key and the state.
        The folder is secret, and needed to continue a run. It must not be inside the
        folder of a Flower app, because Flower sends an app's files to every node.
      clients_per_round: number of devices to select for a round, and the constant by
        which each sum is divided; by default the plan's batch size.
      server_optimizer: server optimizer; by default SGD with learning rate 1.
      over_selection: factor >= 1; `over_selection * clients_per_round` devices are
        asked, so that about `clients_per_round` answer within the `timeout` of `start`.
        If the factor is above 1, `timeout` is required. All updates that arrive in time
        are added up, and the sum is still divided by `clients_per_round`. A round ends
        at the timeout, or when every device that is still connected has answered.
        Therefore no device's training time or failure affects whether another device's
        update is included. Replies after the end of a round are counted as late.
      min_available: number of eligible devices to wait for before a round begins; by
        default `clients_per_round`.
      max_wait: seconds to wait for `min_available` devices. After this time, the round
        runs with the devices that are eligible. If there are none, `start` raises an
        error, and no round of the plan is used up.
      query_timeout: seconds to wait for nodes to send their device names, if the server
        knows too few names for a round.
      not_trained: names of arrays that are not trained, such as counters and moving
        averages. They may have any dtype, and are not part of the update. In each round,
        devices receive the initial values of these arrays.
      models: destination to which the weights (a list of arrays) are released after
        each round. The key of a release is the number of completed rounds. A release
        must replace an earlier release with the same key.
      interrupted_round: what to do with an interrupted round: "replay" or "skip".

    Attributes:
      plan: plan of the run.

    Raises:
      TypeError, ValueError: if an argument is invalid.
    """

    plan: Plan
    private_dir: str
    _: dataclasses.KW_ONLY
    clients_per_round: int | None = None
    server_optimizer: ServerOptimizer | None = None
    over_selection: float = 1.0
    min_available: int | None = None
    max_wait: float = 60.0
    query_timeout: float = 60.0
    not_trained: Iterable[str] = ()
    models: Releasing | None = None
    interrupted_round: str = "replay"

    def __post_init__(self) -> None:
        self._participation = check_plan(self.plan)
        check_outside_of_apps(self.private_dir, "private_dir")
        self._wanted = cohort_size(self.plan, self.clients_per_round)
        self._needed = (
            self._wanted if self.min_available is None else self.min_available
        )
        self._fixed_names = list(self.not_trained)
        self._measured: MeasuredParticipation | None = None
        # `start` sets the devices and the ledger.
        self._devices: Devices
        self._ledger: Ledger
        self._waiting_since: float | None = None
        # These are the ids of the messages that were not answered in the last round.
        self._unanswered: list[str] = []

    @property
    def measured(self) -> MeasuredParticipation:
        """The measured participation of the run, which `write_report` needs.

        Raises:
          ValueError: before `start` has returned.
        """
        if self._measured is None:
            raise ValueError("No round has run yet. Call start(...) first.")
        return self._measured

    def summary(self) -> None:
        """Logs the privacy statement of the run."""
        for line in str(statement_of(self.plan)).splitlines():
            log(INFO, "\t%s", line)

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Runs all rounds, or the remaining rounds of an interrupted run.

        Args:
          grid: Flower's grid.
          initial_arrays: weights before round 0, float32. After a restart, their values
            are ignored, but their names and shapes must be the same as before.
          num_rounds: number of rounds of the whole run, over all restarts; by default
            all rounds of the plan.
          timeout: seconds to wait for the replies of a round; by default an hour. The
            round takes this long if a device stays connected without answering.
          train_config: additional settings that are sent to devices with the model.
          evaluate_config: must be None, because devices would send evaluation results
            without noise.
          evaluate_fn: function that evaluates weights on public data; its arguments are
            `server_round` and the weights.

        Raises:
          ValueError: if `evaluate_config` is given, or if `over_selection` is above 1
            and `timeout` is missing. For further errors, see `rounds.Run.finish`.
        """
        if evaluate_config is not None:
            raise ValueError(
                "evaluate_config must be None, because evaluation results from devices "
                "are not private. Pass evaluate_fn=... to evaluate on public data."
            )
        if timeout is None and self.over_selection > 1.0:
            raise ValueError(
                "If over_selection > 1, call start(..., timeout=SECONDS). A round waits up "
                "to this time for all devices. If a round ended as soon as enough devices "
                "replied, a fast device could exclude another device's update."
            )
        self.summary()
        arrays = dict(initial_arrays.items())
        missing = set(self._fixed_names) - set(arrays)
        if missing:
            raise ValueError(
                f"not_trained must contain only names of initial_arrays, but found "
                f"{sorted(missing)}. The names of initial_arrays are {list(arrays)}."
            )
        self._fixed = {name: arrays[name] for name in self._fixed_names}
        self._order = list(arrays)
        self._names = names = [name for name in arrays if name not in self._fixed]
        self._grid = grid
        self._timeout = _DEFAULT_TIMEOUT if timeout is None else timeout
        self._config = dict(train_config or {})
        engine = FederatedAveraging(
            self.plan,
            [arrays[name].numpy() for name in names],
            self._exchange,
            clients_per_round=self._wanted,
            optimizer=self.server_optimizer,
        )
        rows = {name: rows_of(array.numpy()) for name, array in self._fixed.items()}
        fixed = {name: digest_of_rows(parts) for name, parts in rows.items()}
        engine.settings.update(engine="flower", names=names, not_trained=fixed)
        result = Result()

        def cohorts(ledger: Ledger) -> Cohorts:
            self._ledger = ledger
            self._devices = Devices(
                grid, self.plan.fingerprint, ledger, self.query_timeout
            )
            return Cohorts(
                ledger,
                lambda round_number: self._devices.present(),
                self._participation,
                self.over_selection,
                self._needed,
                self._wait,
                self._search,
            )

        def after_round(state: ProgramState) -> None:
            done = len(self._ledger.rounds)
            measured = self._ledger.measured(done)
            log(INFO, "%s", line_of(self.plan, done - 1, state.metrics, measured))
            result.train_metrics_clientapp[done] = MetricRecord(
                {name: int(count) for name, count in state.metrics.items()}
            )
            if evaluate_fn is not None:
                arrays = self._record([np.asarray(w) for w in state.state["weights"]])
                evaluation = evaluate_fn(done, arrays)
                if evaluation is not None:
                    log(INFO, "round %d evaluated: %s", done - 1, evaluation)
                    result.evaluate_metrics_serverapp[done] = evaluation

        run = Run(
            engine=engine,
            cohorts=cohorts,
            private_dir=self.private_dir,
            clients_per_round=self._wanted,
            total_rounds=num_rounds,
            models=self.models,
            interrupted_round=self.interrupted_round,
            after_round=after_round,
        )
        done, self._measured = asyncio.run(run.finish())
        result.arrays = self._record(asyncio.run(engine.weights(done.state)))
        return result

    def _refuse(self, *arguments: Any, **options: Any) -> Any:
        """Raises RuntimeError, because only `start` may begin rounds."""
        raise RuntimeError(
            "Only PrivateFedAvg.start(...) may begin rounds. Call it directly, because a "
            "strategy that wraps PrivateFedAvg would break the guarantee. To evaluate the "
            "model on public data, call start(..., evaluate_fn=...)."
        )

    configure_train = aggregate_train = _refuse
    configure_evaluate = aggregate_evaluate = _refuse

    def _record(self, weights: list[np.ndarray]) -> ArrayRecord:
        """Returns the whole model: the weights, and the arrays that are not trained."""
        pairs = zip(self._names, weights, strict=True)
        arrays = {name: Array(weight) for name, weight in pairs} | self._fixed
        return ArrayRecord({name: arrays[name] for name in self._order})

    def _wait(self, available: int, eligible: int) -> bool:
        """Asks nodes for their device names, and waits for eligible devices.

        Args:
          available: number of devices that have sent their names.
          eligible: number of these devices that may take part in the round.

        Returns:
          True if the caller should search for eligible devices again.

        Raises:
          RuntimeError: if no device is eligible after `max_wait`. A round without
            devices would waste one of the plan's rounds.
        """
        wanted = math.ceil(self._wanted * self.over_selection)
        lacking = max(wanted, self._needed) - eligible
        awaits = self._devices.ask(max(_ASKED - available, 2 * lacking))
        if eligible >= self._needed and (lacking <= 0 or not awaits):
            self._waiting_since = None
            self._warn_of_too_few()
            return False
        if self._waiting_since is None:
            self._waiting_since = time.monotonic()
        limit = max(self.max_wait, self.query_timeout if awaits else 0.0)
        if time.monotonic() - self._waiting_since <= limit:
            time.sleep(_PAUSE)
            return True
        self._waiting_since = None
        if eligible == 0:
            raise RuntimeError(self._why_nobody())
        log(
            WARNING,
            "Only %d devices are eligible (min_available is %d). The round uses these.",
            eligible,
            self._needed,
        )
        return False

    def _search(self) -> bool:
        """Asks more nodes for device names, to find an interrupted round's devices.

        Returns:
          True if answers are still pending.
        """
        awaits = self._devices.ask(_ASKED)
        if awaits:
            time.sleep(_PAUSE)
        return awaits

    def _warn_of_too_few(self) -> None:
        """Warns before round 0 if the min separation needs more connected nodes."""
        b, connected = self._participation.min_separation, len(self._devices.nodes)
        if not self._ledger.rounds and -(-connected // self._wanted) < b:
            log(
                WARNING,
                "%d nodes are connected. A round uses %d, which then pause for %d rounds. "
                "The run needs %d nodes. Without more, it stops after %d rounds.",
                connected,
                self._wanted,
                b - 1,
                self._wanted * b,
                -(-connected // self._wanted),
            )

    def _why_nobody(self) -> str:
        """Returns an error message that says why no device is eligible."""
        b, wanted = self._participation.min_separation, self._wanted
        k = self._participation.participations(self.plan.num_steps)
        names = self._devices.present()
        counts = self._ledger.history(names, self.plan.num_steps)[:, 1]
        spent = int(np.sum(counts >= k))
        problems = self._devices.problems()
        reasons = {
            "node(s) have the policy of another plan. Their app needs the DevicePolicy "
            "of this run's plan": problems[devices.OTHER_PLAN],
            "node(s) did not send a device name, because of an error. Their app needs "
            "private_client_app, or ParticipationMod.install": problems[devices.FAILED],
            "node(s) claim that they took part in rounds that this run has not begun. An "
            "earlier run of the plan began them, and both runs would spend more than the "
            "plan permits. Continue with that run's private_dir, or begin a new run with a "
            "new plan and new device stores": problems[devices.STRANGER],
            f"node(s) took part {k} times, the maximum. Connect other devices": spent,
            f"node(s) must pause for {b - 1} rounds. Rounds of {wanted} devices with a min "
            f"separation of {b} need {wanted * b} devices. Connect more devices and call "
            f"start again, or make a plan with fewer clients per round or a smaller min "
            f"separation": (len(names) - spent),
            "node(s) have not answered": len(self._devices.nodes)
            - len(names)
            - problems.total(),
        }
        counted = " ".join(f"{n} {text}." for text, n in reasons.items() if n > 0)
        return (
            f"No device may take part in the next round, so the round was not begun. Of "
            f"{len(self._devices.nodes)} connected nodes: {counted or 'there are none.'}"
        )

    def _exchange(self, request: Request, add: Add) -> Replies:
        """Sends the model to a round's devices; adds the updates that arrive in time."""
        # Discard replies to the previous round, which are late.
        late = len([*self._grid.pull_messages(self._unanswered)])
        nodes = self._devices.nodes_of(request.names)
        asked = self._send(request, nodes)
        refused = failed = 0
        end, look = time.monotonic() + self._timeout, time.monotonic() + _GONE
        while asked and time.monotonic() < end:
            for reply in self._pulled(list(asked), request):
                name = asked.pop(reply.metadata.reply_to_message_id, None)
                if name is None:
                    continue
                answer = self._update_of(reply, request, name)
                if isinstance(answer, list):
                    add(name, answer)
                elif answer.startswith(messages.REFUSED):
                    refused += 1
                else:
                    failed += 1
                    # %r escapes line breaks, so that devices cannot forge log lines.
                    log(INFO, "device %s: %r", name[:8], answer[:_SHOWN])
            if time.monotonic() > look:
                look = time.monotonic() + _GONE
                gone = self._devices.gone(nodes.values())
                for message in [m for m, name in asked.items() if nodes[name] in gone]:
                    # The server does not wait for a node that has disconnected.
                    del asked[message]
                    failed += 1
            if asked:
                time.sleep(_PAUSE)
        self._unanswered = list(asked)
        return Replies(refused=refused, late=late, failed=failed)

    def _pulled(self, asked: list[str], request: Request) -> Iterator[Message]:
        """Yields the replies that have arrived, fetched in groups to save memory."""
        model = max(1, sum(weight.nbytes for weight in request.weights))
        for part in blocks(0, len(asked), max(1, _PULLED_BYTES // model)):
            yield from self._grid.pull_messages(asked[part])

    def _send(self, request: Request, nodes: dict[str, int]) -> dict[str, str]:
        """Sends the model; returns a mapping from message ids to device names."""
        config = ConfigRecord(
            {
                **self._config,
                "server-round": request.round_number + 1,
                messages.PLAN: self.plan.fingerprint,
                messages.RUN: request.run,
                messages.ROUND: request.round_number,
                messages.NOT_TRAINED: self._fixed_names,
            }
        )
        # All messages share these records, because making a record takes as much time
        # as adding an update.
        model = self._record(request.weights)
        common = {messages.ARRAYS: model, messages.CONFIG: config}
        given = {
            name: ConfigRecord({messages.RECEIPT: receipt})
            for name, receipt in receipts.give(
                self._ledger, nodes, request.round_number
            ).items()
        }
        requests = [
            Message(
                RecordDict({**common, messages.GIVEN: given[name]}),
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
        """Returns the arrays of a device's update, or the reason why there is none."""
        if reply.has_error():
            return f"error {reply.error.code}"
        about = reply.content.get(messages.REPLY)
        if not isinstance(about, ConfigRecord):
            return "the device does not run ParticipationMod, so its answer is not used"
        receipts.check(self._ledger, name, about)
        if about.get("problem"):
            return str(about["problem"])
        expected = (self.plan.fingerprint, request.run, request.round_number, name)
        stated = tuple(about.get(key) for key in ("plan", "run", "round", "device"))
        if stated != expected:
            return "the answer belongs to another request or another device"
        arrays = reply.content.get(messages.ARRAYS)
        if not isinstance(arrays, ArrayRecord) or list(arrays.keys()) != self._names:
            return "the device did not send exactly the arrays of the model"
        try:
            return [arrays[name].numpy() for name in self._names]
        except Exception as error:
            # A malformed reply must not stop the run.
            return f"the arrays cannot be read: {type(error).__name__}"
