"""Receipts for rounds, from which a server detects rounds that its ledger lacks.

A device that is asked to take part gets a receipt, which only the server's ledger can
make, and stores it with its participation record. The device shows the receipt when
asked for its name, and with each answer and refusal. If, according to the ledger, the
device was not in the cohort of the round that the receipt names, the receipt was issued
by another copy of the run, or before an older copy of the folder was restored.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from flwr.app import ConfigRecord

from tf_bandmf_federated.ledger import Ledger


class Receipts:
    """Issues and checks receipts; each one is for a device, a round and its ledger state.

    Args:
      ledger: the run's ledger.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def give(self, devices: Iterable[str], round_number: int) -> dict[str, str]:
        """Returns the receipts for a round that has begun, by device name."""
        draw = self._ledger.rounds[round_number].point[:32]
        return {name: self._receipt(name, round_number, draw) for name in devices}

    def check(self, device: str, about: ConfigRecord) -> None:
        """Raises an error if a device's valid receipt contradicts the ledger.

        Anything other than this server's receipt for this device is ignored.

        Raises:
          RuntimeError: if the receipt is valid, but the ledger lacks this
            participation.
        """
        number, shown = about.get("last_round"), str(about.get("receipt", ""))
        draw = shown.partition(".")[0]
        if not isinstance(number, int) or not hmac.compare_digest(
            shown.encode(), self._receipt(device, number, draw).encode()
        ):
            return
        point = self._ledger.point_with(device, number)
        if point is None or point[:32] != draw:
            raise RuntimeError(
                f"A device has this server's receipt for round {number}, but private_dir "
                f"does not match it: {len(self._ledger.rounds)} rounds were begun "
                f"there. The folder is older than the run (a backup, a snapshot), or "
                f"a copy of it runs elsewhere. No noise is used twice, but both histories "
                f"spend more than the plan. Bring back the newest private_dir, or begin "
                f"a new run with a plan and device stores of its own."
            )

    def _receipt(self, device: str, round_number: int, draw: str) -> str:
        return f"{draw}.{self._ledger.seal(f'{round_number} {device} {draw}')}"
