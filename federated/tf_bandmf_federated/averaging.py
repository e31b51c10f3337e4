"""A server for federated averaging in NumPy, for frameworks that only send messages.

The framework, such as Flower, provides the function `exchange`, which sends a round's
model to devices, and passes their updates to this module. Devices clip updates before
they send them. This module clips each update again when it arrives, and adds it to the
sum, with uniform weights (`exact_sum`). It adds the round's noise to the sum, no matter
which devices answered, and divides the result by a constant. Memory holds the model,
one update, and the sum, which takes at most twice as much memory as the model.
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
from tf_bandmf_federated.plan_checks import check_plan, clients_per_round_of
from tf_bandmf_federated.round_noise import RoundNoise
from tf_bandmf_federated.server_optimizers import ServerOptimizer, ServerSGD


@dataclasses.dataclass(frozen=True)
class Replies:
    """Counts of a round's replies without a usable update.

    Attributes:
      refused: number of devices whose own records forbade them to take part.
      late: number of replies to earlier rounds that arrived in this round and were
        discarded.
      failed: number of devices that answered with an error, or without an update.
    """

    refused: int = 0
    late: int = 0
    failed: int = 0


@dataclasses.dataclass(frozen=True)
class Request:
    """The request that the server sends to the devices of a round.

    Attributes:
      run: name of the run, which is not secret.
      round_number: number of the round, from 0.
      weights: weights of the model; read-only.
      names: names of the devices to which the request is sent.
    """

    run: str
    round_number: int
    weights: list[np.ndarray]
    names: tuple[str, ...]


Add = Callable[[str, Sequence[np.ndarray]], None]
Exchange = Callable[[Request, Add], Replies]


class FederatedAveraging:
    """A server for federated averaging in NumPy, which implements `rounds.Engine`.

    Formal guarantee: the same as that of `build_fed_avg` for TensorFlow Federated,
    because the mechanism is the same. The optimizer makes one step per round, in the
    direction `(sum + noise) / clients_per_round`. Here, `sum` is the sum of the clipped
    updates, and `noise` is `plan.noise_stddev * (C^-1 Z)[round]`, with the plan's
    strategy matrix C and a matrix Z of independent standard normal entries.

    Args:
      plan: plan with `MinSep` participation.
      weights: weights before round 0, float32.
      exchange: function that is called as `exchange(request, add)`. It sends the
        `Request` to devices. For each device that answers, in any order, it calls
        `add(name, update)`, and need not keep the update afterwards. If `exchange`
        raises an error, the round has no result and is run again.
      clients_per_round: the constant by which each sum is divided; by default the
        plan's batch size.
      optimizer: server optimizer; by default SGD with learning rate 1.

    Attributes:
      plan: plan of the run.
      settings: plain Python values that, together with the plan, identify the run.

    Raises:
      TypeError: if a weight is not float32.
      ValueError: if the plan is unsuitable, or an argument is out of range.
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
        # These arrays belong to the caller, so `initial_state` copies them.
        self._first = [np.asarray(w) for w in weights]
        for weight in self._first:
            if weight.dtype != np.float32:
                raise TypeError(
                    f"All weights must be float32, found {weight.dtype}. With Flower, pass "
                    f"the names of untrained arrays as PrivateFedAvg(not_trained=...)."
                )
        sizes = [weight.size for weight in self._first]
        if sum(sizes) == 0:
            raise ValueError("The model must have weights, found none.")
        self._ends = np.cumsum(sizes)
        self._shapes = [weight.shape for weight in self._first]
        # Making an `ExactSum` checks that the clip norm is in the permitted range.
        ExactSum(0, plan.l2_norm_clip, 1)
        self._exchange = exchange
        self._optimizer = ServerSGD() if optimizer is None else optimizer
        self._denominator = clients_per_round_of(plan, clients_per_round)
        self._noise = RoundNoise(plan, int(self._ends[-1]))
        self.settings = {
            "shapes": [list(shape) for shape in self._shapes],
            "clients_per_round": self._denominator,
            "server_optimizer": self._optimizer.get_config(),
        }

    def note_rounds(self, state: Any, rounds: int) -> None:
        self._noise.note_rounds(state["noise"], rounds)

    async def initial_state(self) -> collections.OrderedDict:
        """Returns the state before round 0 of a new run."""
        return collections.OrderedDict(
            noise=self._noise.initial_state(),
            weights=[w.copy() for w in self._first],
            optimizer=self._optimizer.initial_state(self._first),
        )

    def skip_round(self, state: Any, point: str) -> Any:
        noise = self._noise.after(state["noise"], np.zeros([0]), point)
        return collections.OrderedDict(state, noise=noise)

    async def weights(self, state: Any) -> list[np.ndarray]:
        weights = [np.asarray(w) for w in state["weights"]]
        for weight in weights:
            # Code that receives the weights must not change the state by accident.
            weight.flags.writeable = False
        return weights

    async def run(self, state: Any, selected: Selected, point: str) -> tuple[Any, Any]:
        """Runs one round: asks devices, sums updates, adds noise, updates the weights."""
        weights = await self.weights(state)
        request = Request(
            self._noise.name_of(state["noise"]),
            len(state["noise"]["digests"]),
            weights,
            selected.names,
        )
        total = ExactSum(
            int(self._ends[-1]), self.plan.l2_norm_clip, len(selected.names)
        )
        metrics = self.no_metrics()
        left = set(selected.names)

        def add(name: str, update: Sequence[np.ndarray]) -> None:
            """Adds a device's update to the sum without keeping a copy of the update."""
            if name not in left:
                raise ValueError(
                    f"exchange(...) may add one update per selected device, but device "
                    f"{name!r} is not selected, or its update was already added."
                )
            left.remove(name)
            try:
                arrays = [np.asarray(array) for array in update]
            except (TypeError, ValueError):
                # A malformed update must not stop the training. It counts as failed.
                arrays = []
            kinds = [(array.shape, array.dtype.kind) for array in arrays]
            if kinds != [(shape, "f") for shape in self._shapes]:
                metrics["failed"] += 1
                return
            bounded = total.add(arrays)
            metrics["contributing"] += bounded.is_finite
            metrics["non_finite"] += not bounded.is_finite
            metrics["clipped_again"] += bounded.was_clipped

        replies = self._exchange(request, add)
        noise, kept = self._noise.bound_to(state["noise"], total.units, point)
        mean = total.mean_with(noise, self.plan.noise_stddev, self._denominator)
        parts = np.split(mean, self._ends[:-1])
        direction = [part.reshape(s) for part, s in zip(parts, self._shapes)]
        weights, slots = self._optimizer.apply(weights, direction, state["optimizer"])
        after = collections.OrderedDict(noise=kept, weights=weights, optimizer=slots)
        metrics.update(
            available=selected.available,
            eligible=selected.eligible,
            selected=len(selected.names),
            reported=len(selected.names) - len(left),
            refused=replies.refused,
            late=replies.late,
            failed=metrics["failed"] + replies.failed,
            skipped=0,
        )
        return after, metrics

    def no_metrics(self) -> collections.OrderedDict:
        """Returns the metrics of a round without a result: `skipped` is 1, the rest 0.

        The metric `clipped_again` counts the updates that arrived with a norm above the
        clip norm, although devices should have clipped them.
        """
        names = (
            "available eligible selected reported refused late failed contributing "
            "non_finite clipped_again"
        )
        return collections.OrderedDict(dict.fromkeys(names.split(), 0), skipped=1)
