"""Federated averaging in NumPy, for engines that only carry models and replies.

The engine's part is one function, `exchange`: it sends a round's model to devices and
brings back what they answer. All that privacy needs is here: updates are clipped again
and added up as they come, with uniform weights (`exact_sum`); the sum gets the round's
noise, whoever answered, and is divided by a constant. Memory holds the model, one
update, and the sum, which takes as much as two models.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tf_bandmf import Plan
from tf_bandmf_federated.cohorts import Selected
from tf_bandmf_federated.exact_sum import ExactSum
from tf_bandmf_federated.host_noise import HostNoise
from tf_bandmf_federated.plan_checks import check_plan, clients_per_round_of
from tf_bandmf_federated.server_optimizers import ServerOptimizer, ServerSGD


@dataclasses.dataclass(frozen=True)
class Replies:
    """What came back in a round besides the updates.

    Attributes:
      refused: devices that did not take part because of their own record.
      late: replies of earlier rounds that came now, and were discarded.
      failed: devices that answered with an error, or not with an update.
    """

    refused: int = 0
    late: int = 0
    failed: int = 0


@dataclasses.dataclass(frozen=True)
class Request:
    """What a round asks of devices.

    Attributes:
      run: name of the run; public.
      round_number: the round, from 0.
      weights: weights of the model; read-only.
      names: names of the devices.
    """

    run: str
    round_number: int
    weights: list[np.ndarray]
    names: tuple[str, ...]


Add = Callable[[str, Sequence[np.ndarray]], None]
Exchange = Callable[[Request, Add], Replies]


class FederatedAveraging:
    """An `Engine` (see `rounds`) whose noise the host makes.

    Formal guarantee: see `tf_bandmf_federated.tff.learning.build_fed_avg`; the mechanism is
    the same: `(sum of clipped updates + stddev C^-1 Z) / clients_per_round`.

    Args:
      plan: with `MinSep` participation.
      weights: weights before round 0, float32.
      exchange: sends a request to its devices, and calls its second argument with the
        name and the update of each device that answers, as soon as it does, in any
        order. An update may be discarded after the call. If `exchange` raises, the
        round has no result and is run again.
      clients_per_round: the public denominator; by default the plan's batch size.
      optimizer: by default SGD with learning rate 1.

    Attributes:
      plan: what the run does.
      host_noise: object that makes the noise.
      settings: what else defines the run, as plain values.

    Raises:
      TypeError: if a weight is not float32.
      ValueError: if the plan does not fit, or an argument is out of range.
    """

    def __init__(
        self,
        plan: Plan,
        weights: Sequence[np.ndarray],
        exchange: Exchange,
        *,
        clients_per_round: float | None = None,
        optimizer: ServerOptimizer | None = None,
    ) -> None:
        check_plan(plan)
        self.plan = plan
        self._first = [np.asarray(w) for w in weights]  # copied where a run begins
        for weight in self._first:
            if weight.dtype != np.float32:
                raise TypeError(
                    f"Weights must be float32, found {weight.dtype}. State that is not "
                    f"trained, such as counters, does not belong into the sum: name it in "
                    f"PrivateFedAvg's not_trained."
                )
        sizes = [weight.size for weight in self._first]
        if sum(sizes) == 0:
            raise ValueError("The model has no weights.")
        self._ends = np.cumsum(sizes)
        self._shapes = [weight.shape for weight in self._first]
        ExactSum(0, plan.l2_norm_clip, 1)  # refuses a norm it has no units for
        self._exchange = exchange
        self._optimizer = ServerSGD() if optimizer is None else optimizer
        self._denominator = clients_per_round_of(plan, clients_per_round)
        self.host_noise = HostNoise(plan, int(self._ends[-1]))
        self.settings = {
            "shapes": [list(shape) for shape in self._shapes],
            "clients_per_round": self._denominator,
            "server_optimizer": self._optimizer.get_config(),
        }

    def keep_key(self, folder: str, is_new: bool) -> None:
        self.host_noise.keep_in(folder, is_new)

    def note_rounds(self, rounds: int) -> None:
        self.host_noise.note_rounds(rounds)

    async def initial_state(self) -> collections.OrderedDict:
        """The state before round 0 of a new run."""
        noise = collections.OrderedDict(
            key_id=np.int64(self.host_noise.key_id), digests=np.zeros([0], np.int64)
        )
        return collections.OrderedDict(
            round=np.int64(0),
            noise=noise,
            weights=[w.copy() for w in self._first],
            optimizer=self._optimizer.initial_state(self._first),
        )

    def round_number(self, state: Any) -> int:
        return int(state["round"])

    def key_id(self, state: Any) -> int:
        return self.host_noise.key_id

    def hyper_parameters(self, state: Any) -> Any:
        return {}  # all of them are settings

    def data_digest(self, selected: Selected) -> str:
        return ""  # the devices' data never leave them

    def skip_round(self, state: Any, inputs: str) -> Any:
        number, nothing = self.round_number(state), np.zeros([0])
        digest = np.int64(self.host_noise.digest(number, nothing, inputs))
        digests = np.append(state["noise"]["digests"], digest)
        return self._after(state, digests, state["weights"], state["optimizer"])

    async def weights(self, state: Any) -> list[np.ndarray]:
        return [np.asarray(w) for w in state["weights"]]

    async def run(self, state: Any, selected: Selected, inputs: str) -> tuple[Any, Any]:
        """One round: exchange, clip and add up, noise, optimizer."""
        number, weights = self.round_number(state), await self.weights(state)
        run = str(state["noise"]["key_id"])
        request = Request(run, number, _read_only(weights), selected.names)
        total = ExactSum(
            int(self._ends[-1]), self.plan.l2_norm_clip, len(selected.names)
        )
        received = _Received(total, selected.names, self._shapes)
        found = self._exchange(request, received.add)
        noise, digests = self.host_noise.bound_to(state, total.units, inputs)
        mean = total.mean_with(noise, self.plan.noise_stddev, self._denominator)
        parts = np.split(mean, self._ends[:-1])
        direction = [part.reshape(s) for part, s in zip(parts, self._shapes)]
        weights, slots = self._optimizer.apply(weights, direction, state["optimizer"])
        after = self._after(state, digests, weights, slots)
        counts = received.counts
        metrics = collections.OrderedDict(
            available=selected.available,
            eligible=selected.eligible,
            selected=len(selected.names),
            reported=len(received.names),
            refused=found.refused,
            late=found.late,
            failed=found.failed + counts.pop("misshapen"),
            **counts,
            skipped=0,
        )
        return after, metrics

    def _after(
        self, state: Any, digests: np.ndarray, weights: list[np.ndarray], slots: Any
    ) -> collections.OrderedDict:
        """The state after a round."""
        return collections.OrderedDict(
            round=np.int64(self.round_number(state) + 1),
            noise=collections.OrderedDict(state["noise"], digests=digests),
            weights=weights,
            optimizer=slots,
        )

    def no_metrics(self) -> collections.OrderedDict:
        """Metrics of a round without a result.

        `clipped_again` counts updates that came with more than the clip norm: devices
        clip before they send. `skipped` is 1 for a round without a result.
        """
        names = (
            "available eligible selected reported refused late failed contributing "
            "non_finite clipped_again"
        )
        return collections.OrderedDict(dict.fromkeys(names.split(), 0), skipped=1)


class _Received:
    """The updates of a round, which are added up and forgotten.

    Attributes:
      names: of the devices whose update came.
      counts: of what was done to updates.
    """

    def __init__(
        self, total: ExactSum, names: Sequence[str], shapes: Sequence[tuple[int, ...]]
    ) -> None:
        self._total, self._asked, self._shapes = total, frozenset(names), shapes
        self.names: set[str] = set()
        self.counts = dict.fromkeys(
            ("misshapen", "contributing", "non_finite", "clipped_again"), 0
        )

    def add(self, name: str, update: Sequence[np.ndarray]) -> None:
        """Adds the update of a device.

        Raises:
          ValueError: if the device was not asked, or its update came already.
        """
        if name not in self._asked:
            raise ValueError(
                "An update is of a device that was not asked. What it sent must not "
                "enter the sum."
            )
        if name in self.names:
            raise ValueError(
                "A second update of one device came in a round: it would add twice what "
                "the plan accounts for."
            )
        self.names.add(name)
        try:
            arrays = [np.asarray(array) for array in update]
        except (TypeError, ValueError):  # no device decides whether training goes on
            arrays = []
        kinds = [(array.shape, array.dtype.kind) for array in arrays]
        if kinds != [(shape, "f") for shape in self._shapes]:
            self.counts["misshapen"] += 1
            return
        bounded = self._total.add(arrays)
        self.counts["contributing"] += bounded.is_finite
        self.counts["non_finite"] += not bounded.is_finite
        self.counts["clipped_again"] += bounded.was_clipped


def _read_only(weights: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Views that an engine cannot write to by mistake."""
    views = [weight.view() for weight in weights]
    for view in views:
        view.flags.writeable = False
    return views
