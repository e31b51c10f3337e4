"""A device's own record of its last participation and its number of participations.

The record is kept in a folder on the device, outside of the training app, because it
must outlive the app. Each plan has its own files in the folder. The record belongs to a
plan and not to a run, so a second run of the plan continues the first run's record.

| file | contents |
|---|---|
| `<plan>.device` | device name; participations; last round, with receipt and digest |
| `<plan>.update` | the contribution of the last round, to answer a repeated request |

A participation is recorded before the device trains, so a device that is killed during
a round has taken part in that round. Flower does not include files with the suffixes
`.device` and `.update` in an app's bundle.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tf_bandmf.files.journal import Journal
from tf_bandmf_federated.device_policy import DevicePolicy
from tf_bandmf_federated.eligibility import NEVER

_FORMAT = "tf-bandmf-federated device 1"
_NAME_BYTES = 16


class Refused(Exception):
    """The device refuses to contribute to a round; the message gives the reason."""


class DeviceStore:
    """A device's participation record for one plan; several processes may use it.

    Args:
      folder: folder that no other device uses, created with mode 0700. A device that
        loses the folder becomes a new device, with a new name and a new privacy budget.
        Therefore keep the folder for as long as the device keeps its data.
      policy: the plan's policy.

    Raises:
      PermissionError: if anybody other than the owner may read one of the files.
      ValueError: if a file is damaged. The device then does not contribute.
    """

    def __init__(self, folder: str, policy: DevicePolicy) -> None:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        self.policy = policy
        self._path = os.path.join(folder, f"{policy.plan}.device")
        self._update_path = os.path.join(folder, f"{policy.plan}.update")
        with self._locked():
            if not os.path.exists(self._path):
                name = secrets.token_hex(_NAME_BYTES)
                record = {"last_round": NEVER, "participations": 0, "receipt": ""}
                about = {"format": _FORMAT, "device": name, "request": None}
                self._write({**about, **record})
            self._read()

    @property
    def record(self) -> dict[str, Any]:
        """The record that the device shows to a server.

        Its keys are `device`, `last_round`, `receipt` and `participations`. `device` is
        the device's random name, which does not change as long as the folder exists.
        `last_round` is -1 before the first participation. `receipt` is the server's
        receipt for the last round.
        """
        names = ("device", "last_round", "receipt", "participations")
        content = self._read()
        return {name: content[name] for name in names}

    def begin(
        self, round_number: int, request: str, receipt: str = ""
    ) -> list[np.ndarray] | None:
        """Records a participation on disk, or returns the answer to a repeated request.

        Args:
          round_number: the round for which the server asks the device.
          request: digest of everything that determines the device's contribution.
          receipt: the server's receipt for this round.

        Returns:
          None if the request is new. The participation is then on disk, and the device
          must compute its contribution and store it with `keep`. If the request is
          repeated, the result is the contribution that was stored for it, so that the
          server gets the same answer again and learns nothing new.

        Raises:
          Refused: if the plan does not permit the device to take part in the round, or
            if the request is repeated and its contribution was not stored.
        """
        with self._locked():
            content = self._read()
            if content["request"] == request and content["last_round"] == round_number:
                kept = self._kept(request)
                if kept is None:
                    raise Refused(
                        f"the device already began round {round_number}, but did not "
                        f"store a contribution"
                    )
                return kept
            reason = self.policy.refusal(
                round_number, content["last_round"], content["participations"]
            )
            if reason is not None:
                raise Refused(reason)
            content.update(
                last_round=round_number,
                participations=content["participations"] + 1,
                request=request,
                receipt=receipt,
            )
            self._write(content)
        return None

    def keep(self, request: str, contribution: Sequence[np.ndarray]) -> None:
        """Stores the answer to a request; call this before the answer is sent.

        Args:
          request: the digest of the request, as for `begin`.
          contribution: the arrays of the answer.

        Raises:
          ValueError: if the device has begun another request in the meantime.
        """
        with self._locked():
            if self._read()["request"] != request:
                raise ValueError("request must equal the request of the last begin().")
            stream = io.BytesIO()
            arrays = {f"a{i}": array for i, array in enumerate(contribution)}
            np.savez(
                stream,
                request=np.frombuffer(request.encode(), np.uint8),
                **arrays,  # type: ignore[arg-type]
            )
            Journal(self._update_path).replace(stream.getvalue())

    def _kept(self, request: str) -> list[np.ndarray] | None:
        if not os.path.exists(self._update_path):
            return None
        content = io.BytesIO(Journal(self._update_path).read()[0])
        with np.load(content, allow_pickle=False) as archive:
            if archive["request"].tobytes().decode() != request:
                return None
            return [archive[f"a{i}"] for i in range(len(archive.files) - 1)]

    def _read(self) -> dict[str, Any]:
        """Reads the record without a lock, because writers replace it atomically."""
        content = json.loads(Journal(self._path).read()[0])
        if content["format"] != _FORMAT:
            raise ValueError(
                f"The format of {self._path} must be {_FORMAT!r}, but found "
                f"{content['format']!r}. Use the tf-bandmf version that wrote the file."
            )
        return content

    def _write(self, content: dict[str, Any]) -> None:
        Journal(self._path).replace(json.dumps(content).encode())

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        descriptor = os.open(f"{self._path}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
