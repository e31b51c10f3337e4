"""Which devices are behind Flower's nodes.

A node's number lasts as long as its connection; a device's name, from its store, as long
as the device's memory of what it took part in. So nodes are asked for their names.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from logging import WARNING

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore import log

from tf_bandmf_federated.flower.messages import QUERY, REPLY
from tf_bandmf_federated.flower.receipts import Receipts

_PAUSE = 0.1  # seconds from one look at the SuperLink to the next
_LONGEST_PAUSE = 5.0  # seconds after queries that failed, one after the other
# As `DeviceStore` makes names.
_NAME = re.compile("[0-9a-f]{16,64}")


class Devices:
    """The devices that are there.

    Args:
      grid: of Flower.
      plan: fingerprint; devices with another plan are left out.
      begun: the number of rounds that the server began. A device that says it took part
        in a later one is left out.
      receipts: of the run.
      timeout: seconds for which new nodes' answers are awaited.

    Attributes:
      strangers: number of devices that took part in rounds that were not begun here, as
        they say.
    """

    def __init__(
        self,
        grid: Grid,
        plan: str,
        begun: Callable[[], int],
        receipts: Receipts,
        timeout: float = 60.0,
    ) -> None:
        self._grid = grid
        self._plan = plan
        self._begun, self._receipts = begun, receipts
        self._timeout = timeout
        self.strangers = 0
        self._names: dict[int, str] = {}  # "" for nodes that cannot take part
        # When to ask nodes whose query failed, and the pause after the next failure.
        self._again: dict[int, tuple[float, float]] = {}
        self._asked: dict[str, tuple[int, float]] = {}  # by message: node, when

    def present(self) -> list[str]:
        """Names of the devices that are connected now.

        Raises:
          RuntimeError: if one of them has a receipt for a round in which the ledger does
            not have it.
        """
        return sorted(self._nodes())

    def nodes_of(self, names: Iterable[str]) -> dict[str, int]:
        """The nodes of those devices that are connected."""
        nodes = self._nodes()
        return {name: nodes[name] for name in names if name in nodes}

    def _nodes(self) -> dict[str, int]:
        here = set(self._grid.get_node_ids())
        self._ask(here)
        # If a device has two nodes, the one that came later is live.
        return {
            name: node for node, name in self._names.items() if name and node in here
        }

    def _ask(self, here: set[int]) -> None:
        now = time.monotonic()
        self._asked = {
            message: (node, when)
            for message, (node, when) in self._asked.items()
            if node in here and now - when < 10 * self._timeout
        }
        waiting = {node for node, _ in self._asked.values()}
        self._names = {node: name for node, name in self._names.items() if node in here}
        self._again = {node: w for node, w in self._again.items() if node in here}
        later = {node for node, (when, _) in self._again.items() if now < when}
        new = sorted(here - set(self._names) - waiting - later)
        if new:
            ttl = 20 * self._timeout
            messages = [Message(RecordDict(), node, QUERY, ttl=ttl) for node in new]
            for node, sent in zip(new, self._grid.push_messages(messages)):
                if sent is not None:
                    self._asked[sent] = (node, now)
        while self._asked:
            self._take_answers()
            awaited = {node for node, _ in self._asked.values()} & set(new)
            if not awaited or time.monotonic() - now > self._timeout:
                return
            time.sleep(_PAUSE)

    def _take_answers(self) -> None:
        for reply in self._grid.pull_messages(list(self._asked)):
            asked = self._asked.pop(reply.metadata.reply_to_message_id, None)
            if asked is None:
                continue
            node, _ = asked
            if reply.has_error() or REPLY not in reply.content.config_records:
                # It may have been the network: the node is asked again.
                now = time.monotonic()
                _, pause = self._again.get(node, (now, _PAUSE))
                self._again[node] = (now + pause, min(2 * pause, _LONGEST_PAUSE))
                continue
            about = reply.content.config_records[REPLY]
            name = str(about.get("device", ""))
            if about.get("plan") != self._plan or not _NAME.fullmatch(name):
                name = ""
            elif not self._is_of_this_run(name, about):
                self.strangers += 1
                name = ""
            self._names[node] = name

    def _is_of_this_run(self, name: str, about: ConfigRecord) -> bool:
        """Whether a device took part only in rounds that were begun here, as it says.

        Anybody can say otherwise: so it ends the run only with a receipt.
        """
        last_round = about.get("last_round")
        if not isinstance(last_round, int):
            return False
        self._receipts.check(name, about)
        if last_round < self._begun():
            return True
        log(
            WARNING,
            "A device says that it took part in round %d, which was not begun here: it "
            "is left out.",
            last_round,
        )
        return False
