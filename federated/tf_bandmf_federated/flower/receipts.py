"""Receipts for rounds, which let a server detect rounds that its ledger lacks.

The server sends each selected device a receipt, computed with the secret key in the
server's ledger. The device stores the receipt with its participation record. It sends
the receipt when the server asks for the device's name, and in each reply to a training
request. If the ledger does not list the device in the cohort of the receipt's round,
then either another copy of the run issued the receipt, or the server's folder was later
replaced by an older copy.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from flwr.app import ConfigRecord

from tf_bandmf_federated.ledger import Ledger


def give(ledger: Ledger, devices: Iterable[str], round_number: int) -> dict[str, str]:
    """Maps each device's name to its receipt for a round that has begun."""
    draw = ledger.rounds[round_number].point[:32]
    return {name: _receipt(ledger, name, round_number, draw) for name in devices}


def check(ledger: Ledger, device: str, about: ConfigRecord) -> None:
    """Raises an error if a device's valid receipt contradicts the ledger.

    A receipt from another server, or for another device, is ignored.

    Args:
      ledger: the run's ledger.
      device: the device's name.
      about: the device's report about itself, from a message.

    Raises:
      RuntimeError: if the receipt is valid, but the ledger lacks this participation.
    """
    number, shown = about.get("last_round"), str(about.get("receipt", ""))
    draw = shown.partition(".")[0]
    if not isinstance(number, int) or not hmac.compare_digest(
        shown.encode(), _receipt(ledger, device, number, draw).encode()
    ):
        return
    point = ledger.point_with(device, number)
    if point is None or point[:32] != draw:
        raise RuntimeError(
            f"A device has this server's receipt for round {number}, but the ledger in "
            f"private_dir ({len(ledger.rounds)} rounds) does not list the device in this "
            f"round. Either private_dir is an old copy (a backup), or another program "
            f"continues the run from a copy. Two copies of a run would spend more than "
            f"the plan permits. End the other program and restore the newest private_dir, "
            f"or begin a new run with a new plan and new device stores."
        )


def _receipt(ledger: Ledger, device: str, round_number: int, draw: str) -> str:
    """Returns a device's receipt for a round.

    `draw` is the beginning of the round's `RoundRecord.point`.
    """
    return f"{draw}.{ledger.seal(f'{round_number} {device} {draw}')}"
