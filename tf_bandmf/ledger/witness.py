"""What this machine remembers of a ledger: its newest entry that it has seen.

A database that was restored from a backup, cut off at the end, or made anew has a chain
without a fault, and has forgotten what was spent. So each machine keeps number and digest
of the newest entry that it has seen, outside of the database, in the user's state
directory. The environment variable `TF_BANDMF_LEDGER_WITNESS` names another directory, or
is "off".
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile

VARIABLE = "TF_BANDMF_LEDGER_WITNESS"


def folder() -> str | None:
    """Where it is kept; None if it is not."""
    found = os.environ.get(VARIABLE)
    if found is not None:
        return None if found in ("off", "") else found
    import platformdirs

    return os.path.join(platformdirs.user_state_dir("tf-bandmf"), "ledgers")


def _path(name: str) -> str | None:
    where = folder()
    return None if where is None else os.path.join(where, f"{name}.json")


def remembered(name: str) -> tuple[int, str] | None:
    """Number and digest of the newest entry of a ledger that was seen, if any.

    Args:
      name: of the ledger, or of the place where one was.
    """
    path = _path(name)
    if path is None:
        return None
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        return int(found["number"]), str(found["digest"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remember(name: str, number: int, digest: str) -> None:
    """Notes the newest entry; a disk that is full keeps the older note."""
    path = _path(name)
    if path is None:
        return
    with contextlib.suppress(OSError):
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=os.path.dirname(path))
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump({"number": number, "digest": digest}, file)
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
