"""The chain of entries: each holds the digest of the one before it.

Whoever changes, deletes, inserts or reorders an entry breaks it. A chain has no key:
whoever may write to the database can make a new one. What he cannot change are digests that
are known elsewhere: in published statements, exports, and in what each machine remembers
(`witness`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

BEFORE_FIRST = "0" * 64


def canonical(value: Any) -> str:
    """A text that is equal exactly if two plain values are."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True
    )


@dataclasses.dataclass(frozen=True)
class Entry:
    """One line of the ledger.

    Attributes:
      number: from 0, without gaps.
      at: when it was written, UTC.
      who: wrote it.
      kind: "ledger", "trusted", "dataset", "budget", "partitions", "planned", "begun",
        "steps", "ended", "spent" or "released".
      dataset: that it is about, or None.
      run: that it is about, by a digest of its noise key; of a plan that has not run,
        its fingerprint; or None.
      text: what it says, canonical JSON.
      previous: digest of the entry before it.
      digest: SHA-256 of all this.
    """

    number: int
    at: str
    who: str
    kind: str
    dataset: str | None
    run: str | None
    text: str
    previous: str
    digest: str = ""

    @property
    def body(self) -> dict[str, Any]:
        """What it says."""
        return json.loads(self.text)

    def computed_digest(self) -> str:
        """The digest of the entry's content."""
        content = dataclasses.asdict(self)
        del content["digest"]
        return hashlib.sha256(canonical(content).encode()).hexdigest()

    def sealed(self) -> Entry:
        """With its digest."""
        return dataclasses.replace(self, digest=self.computed_digest())

    @property
    def is_intact(self) -> bool:
        """Whether it is what was written."""
        return self.computed_digest() == self.digest

    @property
    def name(self) -> str:
        """By which statements cite it."""
        return f"{self.number}-{self.digest[:16]}"
