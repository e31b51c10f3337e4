"""Private evaluations: sums over records that a run releases besides its steps.

Each evaluation is one Gaussian mechanism; the plan fixes their number and their noise.
The noise of an evaluation is bound to the step that it follows, to its place among the
evaluations of that step, to the weights and the records, and to the sum itself (see
`docs/noise-reuse.md`). So if a run is interrupted and resumed from an earlier step, and
all of these are the same, it releases the same numbers again, which reveals nothing
new. If any of them differs, the evaluation gets independent noise, and counts as a new
one. An evaluation is recorded as spent before it is released; all models of a run in a
process share this record, by the run's key.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

from tf_bandmf.keras.run import admission
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.planning.plan import Plan

HOW_TO_RESERVE = (
    "The plan has no private evaluations. Reserve them before the run begins: plan = "
    "tf_bandmf.plan(...).reserve(metrics=0.1, evaluations=10)."
)


class Evaluations:
    """The private evaluations of one run.

    Args:
      plan: plan of the run.
      key: key of the run; None before the run has begun.
      note: called with the name of each evaluation, a digest that reveals nothing, before
        it is released.

    Attributes:
      spent: the names of the spent evaluations.
    """

    def __init__(
        self,
        plan: Plan,
        key: NoiseKey | None = None,
        note: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._plan, self._key, self._note = plan, key, note
        self.spent: set[str] = set()
        # Runs with the same test seed have the same key, so their evaluations are not
        # recorded.
        if key is not None and plan.test_seed is None:
            self.spent = admission.evaluations_of(key)
        # The number of evaluations after each step, since the run began or was resumed.
        self._at_step: dict[int, int] = {}

    @property
    def left(self) -> int:
        """The number of evaluations that are not spent yet."""
        return max(self._plan.measurements.evaluations - len(self.spent), 0)

    def refuse_unreserved(self) -> None:
        """Raises ValueError if the plan has reserved no evaluations."""
        if not self._plan.measurements.evaluations:
            raise ValueError(HOW_TO_RESERVE)

    def release(self, sums: np.ndarray, what: str, step: int) -> np.ndarray:
        """Adds noise to sums; returns float64 of the same shape [M]; see `Run.evaluate`.

        Raises:
          ValueError: if no evaluation is left, or a sum is not finite.
        """
        self.refuse_unreserved()
        sums = np.ascontiguousarray(sums, np.float64)
        if sums.ndim != 1 or not np.all(np.isfinite(sums)):
            raise ValueError("The sums of an evaluation must be a finite vector.")
        assert self._key is not None
        place = self._at_step.get(step, 0)
        about = [self._plan.fingerprint, str(step), str(place), str(len(sums)), what]
        message = "\n".join(about).encode() + b"\0" + sums.tobytes()
        secret = self._key.secret_bytes()
        name = hashlib.blake2b(
            message, digest_size=16, key=secret, person=b"tf-bandmf spent"
        ).hexdigest()
        if name not in self.spent:
            if not self.left:
                raise ValueError(
                    f"All {self._plan.measurements.evaluations} private evaluations of the "
                    f"plan are spent: nothing was released. Reserve more in the plan of "
                    f"the next run."
                )
            self._note(name)
            self.spent.add(name)
        self._at_step[step] = place + 1
        noise = self._plan.measurements.noise_multiplier
        assert noise is not None
        return np.asarray(sums + noise * self._key.bound_normals(message, len(sums)))
