"""Maps Flower's nodes to the names of the devices that run them.

A node's number is valid only while the node is connected. A device's name is kept in the
device's store, and lasts as long as the participation record in that store. Therefore
the server asks nodes for the names of their devices. It asks only as many nodes as a
round needs, in random order. If enough other nodes answer, a node that does not answer
does not delay a round.
"""

from __future__ import annotations

import collections
import itertools
import re
import time
from collections.abc import Iterable
from logging import WARNING, getLogger

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from tf_bandmf_federated.cohorts import shuffled
from tf_bandmf_federated.flower import receipts
from tf_bandmf_federated.flower.messages import QUERY, REPLY
from tf_bandmf_federated.ledger import Ledger

# Log with Flower's own logger.
log = getLogger("flwr").log
# If a query to a node fails, it is repeated after a pause. These are the first and the
# longest pause, in seconds. The pause doubles with each failure.
_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
# Pattern of the device names that `DeviceStore` makes.
_NAME = re.compile("[0-9a-f]{16,64}")
# Reasons why a node cannot take part.
OTHER_PLAN, STRANGER, FAILED = "another plan", "rounds of another run", "an error"


class Devices:
    """The devices that are connected to the server.

    Args:
      grid: Flower's grid.
      plan: the plan's fingerprint; devices with another plan are ignored.
      ledger: the run's ledger. A device is ignored if it claims to have taken part in a
        round that is not in the ledger.
      timeout: seconds to wait for the answers of queried nodes.

    Attributes:
      nodes: the nodes that were connected at the last call of `present`.
    """

    def __init__(
        self,
        grid: Grid,
        plan: str,
        ledger: Ledger,
        timeout: float,
    ) -> None:
        self._grid = grid
        self._plan = plan
        self._ledger, self._timeout = ledger, timeout
        # The connected nodes; there may be a million. `present` updates this list.
        self.nodes: list[int] = []
        # Maps each usable node to the name of its device.
        self._names: dict[int, str] = {}
        # Maps each unusable node to the reason why it is unusable.
        self._problems: dict[int, str] = {}
        # Maps each node whose query failed to the time of its next query, and to the
        # length of the pause that follows if the next query also fails.
        self._failed: dict[int, tuple[float, float]] = {}
        # Maps the id of each unanswered query to the node and the time of the query.
        self._asked: dict[str, tuple[int, float]] = {}

    def present(self) -> list[str]:
        """Returns the names of the connected devices that have sent their names.

        Raises:
          RuntimeError: if a device has a valid receipt for a round, but the ledger does
            not list the device in the cohort of this round.
        """
        self._look()
        return list(self._names.values())

    def problems(self) -> collections.Counter[str]:
        """Counts the connected nodes that are unusable, by reason."""
        return collections.Counter(self._problems.values())

    def ask(self, count: int) -> bool:
        """Asks more nodes for the names of their devices.

        Args:
          count: number of queries that should be pending after this call.

        Returns:
          True if answers are still pending.
        """
        now = time.monotonic()
        awaited = sum(now - when < self._timeout for _, when in self._asked.values())
        due = {node for node, (when, _) in self._failed.items() if now >= when}
        settled = self._problems.keys() - due
        settled |= {node for node, _ in self._asked.values()}
        unknown = (
            node
            for node in map(self.nodes.__getitem__, shuffled(len(self.nodes)))
            if node not in self._names and node not in settled
        )
        new = list(itertools.islice(unknown, max(0, count - awaited)))
        # The time to live exceeds the timeout, because late answers are used too.
        ttl = 20 * self._timeout
        queries = [Message(RecordDict(), node, QUERY, ttl=ttl) for node in new]
        for node, sent in zip(new, self._grid.push_messages(queries) if new else ()):
            if sent is not None:
                self._asked[sent] = (node, now)
        return bool(new or awaited)

    def nodes_of(self, names: Iterable[str]) -> dict[str, int]:
        """Maps device names to node numbers, as of the last call of `present`."""
        # If two nodes have the same device name, the device has reconnected. The
        # dictionary then contains the later node.
        nodes = {name: node for node, name in self._names.items()}
        return {name: nodes[name] for name in names if name in nodes}

    def gone(self, nodes: Iterable[int]) -> set[int]:
        """Returns those of `nodes` that are no longer connected."""
        return set(nodes).difference(self._grid.get_node_ids())

    def _look(self) -> None:
        self.nodes = list(self._grid.get_node_ids())
        now = time.monotonic()
        seen = {*self._names, *self._problems}
        seen.update(node for node, _ in self._asked.values())
        gone = seen.difference(self.nodes)
        self._asked = {
            message: (node, when)
            for message, (node, when) in self._asked.items()
            if node not in gone and now - when < 10 * self._timeout
        }
        for node in gone:
            for kept in (self._names, self._problems, self._failed):
                kept.pop(node, None)  # type: ignore[attr-defined]
        if self._asked:
            self._take_answers(now)

    def _take_answers(self, now: float) -> None:
        for reply in self._grid.pull_messages(list(self._asked)):
            asked = self._asked.pop(reply.metadata.reply_to_message_id, None)
            if asked is None:
                continue
            node, _ = asked
            if reply.has_error() or REPLY not in reply.content.config_records:
                _, pause = self._failed.get(node, (now, _PAUSE))
                self._failed[node] = (now + pause, min(2 * pause, _LONGEST_PAUSE))
                self._problems[node] = FAILED
                continue
            about = reply.content.config_records[REPLY]
            name = str(about.get("device", ""))
            problem = None
            if about.get("plan") != self._plan or not _NAME.fullmatch(name):
                problem = OTHER_PLAN
            elif not self._is_of_this_run(name, about):
                problem = STRANGER
            self._problems.pop(node, None)
            self._failed.pop(node, None)
            if problem is None:
                self._names[node] = name
            else:
                self._problems[node] = problem

    def _is_of_this_run(self, name: str, about: ConfigRecord) -> bool:
        """Returns True if this server has begun the last round that a device reports.

        Any device can falsely report a round that this server has not begun. Therefore
        such a report stops the run only if it contains a valid receipt for the round.
        """
        last_round = about.get("last_round")
        if not isinstance(last_round, int):
            return False
        receipts.check(self._ledger, name, about)
        if last_round < len(self._ledger.rounds):
            return True
        log(
            WARNING,
            "A device claims that it took part in round %d, which this server has not "
            "begun. The device is ignored.",
            last_round,
        )
        return False
