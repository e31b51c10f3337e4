"""Federated averaging in NumPy, for engines that carry models and replies and no more.

The engine's part is one function, `exchange`: it sends a round's model to devices and
brings back what they answer. All that privacy needs is here: updates are clipped again,
added up with uniform weights in an order of their own, and get the round's noise, whoever
answered; the sum is divided by a constant.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tf_bandmf import Plan
from tf_bandmf_federated.clipping import BLOCK, Bounded, bound_update, scaled
from tf_bandmf_federated.cohorts import Selected
from tf_bandmf_federated.host_noise import HostNoise
from tf_bandmf_federated.plan_checks import check_plan, clients_per_round_of
from tf_bandmf_federated.server_optimizers import ServerOptimizer, ServerSGD


@dataclasses.dataclass(frozen=True)
class Replies:
    """What came back in a round.

    Attributes:
      updates: by the device's name; what it adds to the sum, as arrays.
      refused: devices that did not take part because of their own record.
      late: replies of earlier rounds that came now, and were thrown away.
      failed: devices that answered with an error, or with something else.
    """

    updates: Mapping[str, Sequence[np.ndarray]]
    refused: int = 0
    late: int = 0
    failed: int = 0


@dataclasses.dataclass(frozen=True)
class Request:
    """What a round asks of devices.

    Attributes:
      run: names the run; public.
      round_number: from 0.
      weights: of the model; read-only.
      names: of the devices.
    """

    run: str
    round_number: int
    weights: list[np.ndarray]
    names: tuple[str, ...]


Exchange = Callable[[Request], Replies]


class FederatedAveraging:
    """An `Engine` (see `rounds`) whose noise the host makes.

    Formal guarantee: see `tf_bandmf_federated.learning.build_fed_avg`; the mechanism is
    the same: `(sum of clipped updates + stddev C^-1 Z) / clients_per_round`.

    Args:
      plan: with `MinSep` participation.
      weights: before round 0, float32.
      exchange: sends a request to its devices and gives what came back. May raise: the
        round has no result then, and is run again.
      clients_per_round: the public denominator; by default the plan's batch size.
      optimizer: by default SGD with learning rate 1.
      zeroing_norm: updates of a larger norm contribute zero; None: they are clipped.

    Attributes:
      host_noise: which makes the noise.
      settings: what else makes the run what it is, as plain values.

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
        zeroing_norm: float | None = None,
    ) -> None:
        check_plan(plan)
        if zeroing_norm is not None and not (
            math.isfinite(zeroing_norm) and zeroing_norm > plan.l2_norm_clip
        ):
            raise ValueError(
                f"zeroing_norm must be finite and above the plan's l2_norm_clip = "
                f"{plan.l2_norm_clip:g}, found {zeroing_norm}."
            )
        self._plan = plan
        self._first = [np.array(w) for w in weights]
        for weight in self._first:
            if weight.dtype != np.float32:
                raise TypeError(
                    f"Weights must be float32, found {weight.dtype}. State that is not "
                    f"trained, such as counters, does not belong into the sum."
                )
        sizes = [weight.size for weight in self._first]
        if sum(sizes) == 0:
            raise ValueError("The model has no weights.")
        self._ends = np.cumsum(sizes)
        self._exchange = exchange
        self._optimizer = ServerSGD() if optimizer is None else optimizer
        self._denominator = clients_per_round_of(plan, clients_per_round)
        self._zeroing_norm = zeroing_norm
        self.host_noise = HostNoise(plan, int(self._ends[-1]))
        self.settings = {
            "shapes": [list(weight.shape) for weight in self._first],
            "clients_per_round": self._denominator,
            "zeroing_norm": zeroing_norm,
            "server_optimizer": self._optimizer.get_config(),
        }

    def initial_state(self) -> collections.OrderedDict:
        """The state before round 0 of a new run."""
        noise = collections.OrderedDict(
            run_id=np.int64(secrets.randbits(63)),
            key_id=np.int64(0),
            ready_for=np.int64(-1),
            digests=np.zeros([0], np.int64),
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
        return self.host_noise.key_id(int(state["noise"]["run_id"]))

    def know(self, state: Any, last_round: int) -> None:
        self.host_noise.know(state, last_round)

    def hyper_parameters(self, state: Any) -> Any:
        return {}  # all of them are settings

    def prepare(self, state: Any, replay: bool, inputs: str) -> Any:
        # The noise is bound to the sum, which is not known yet.
        self.host_noise.begin(state, replay)
        return state

    def skip_round(self, state: Any) -> Any:
        self.host_noise.pass_over(state)
        digests = np.append(state["noise"]["digests"], np.int64(0))
        return self._after(state, digests, state["weights"], state["optimizer"])

    async def weights(self, state: Any) -> list[np.ndarray]:
        return [np.asarray(w) for w in state["weights"]]

    async def run(self, state: Any, selected: Selected) -> tuple[Any, Any]:
        """One round: exchange, clip, add up, noise, optimizer."""
        number, weights = self.round_number(state), await self.weights(state)
        run_id = int(state["noise"]["run_id"])
        request = Request(str(run_id), number, _read_only(weights), selected.names)
        found = self._exchange(request)
        updates, counts = self._bounded(found.updates, selected.names)
        total = self._total(updates)
        noise, digests = self.host_noise.bound_to(state, total)
        direction = self._noisy_mean(total, noise)
        weights, slots = self._optimizer.apply(weights, direction, state["optimizer"])
        after = self._after(state, digests, weights, slots)
        metrics = collections.OrderedDict(
            available=selected.available,
            eligible=selected.eligible,
            selected=len(selected.names),
            reported=len(found.updates),
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
        key_id = np.int64(self.key_id(state))
        return collections.OrderedDict(
            round=np.int64(self.round_number(state) + 1),
            noise=collections.OrderedDict(
                state["noise"], key_id=key_id, digests=digests
            ),
            weights=weights,
            optimizer=slots,
        )

    def skipped_metrics(self, metrics: Any) -> collections.OrderedDict:
        return collections.OrderedDict(self.no_metrics(), skipped=1)

    def no_metrics(self) -> collections.OrderedDict:
        """Metrics before the first round, for the structure of a saved state.

        `clipped_again` counts updates that came with more than the clip norm: devices
        clip before they send. `skipped` is 1 for a round without a result.
        """
        names = (
            "available eligible selected reported refused late failed contributing "
            "non_finite zeroed clipped_again skipped"
        )
        return collections.OrderedDict((name, 0) for name in names.split())

    def _bounded(
        self, updates: Mapping[str, Sequence[np.ndarray]], names: Sequence[str]
    ) -> tuple[list[Bounded], dict[str, int]]:
        """What is added, in the order of the names, and counts.

        The order makes the sum of the same updates the same, however they came in.
        """
        strangers = set(updates) - set(names)
        if strangers:
            raise ValueError(
                f"{len(strangers)} updates are of devices that were not asked. What "
                f"they sent must not enter the sum."
            )
        added = []
        counts = dict(
            misshapen=0, contributing=0, non_finite=0, zeroed=0, clipped_again=0
        )
        for name in sorted(updates):
            update = [np.asarray(array) for array in updates[name]]
            fits = [(a.shape, a.dtype.kind) for a in update] == [
                (w.shape, "f") for w in self._first
            ]
            if not fits:
                counts["misshapen"] += 1
                continue
            bounded = bound_update(update, self._plan.l2_norm_clip, self._zeroing_norm)
            counts["contributing"] += bounded.contributes
            counts["non_finite"] += not bounded.is_finite
            counts["zeroed"] += bounded.is_huge
            counts["clipped_again"] += bounded.was_clipped
            added.append(bounded)
        return added, {name: int(count) for name, count in counts.items()}

    def _total(self, updates: Sequence[Bounded]) -> np.ndarray:
        """The sum of clipped updates, float64, shape [d]; block by block."""
        total = np.zeros(int(self._ends[-1]))
        for number, part in enumerate(np.split(total, self._ends[:-1])):
            added = [(np.ravel(u.arrays[number]), u.factor) for u in updates]
            for start in range(0, part.size, BLOCK):
                block = slice(start, start + BLOCK)
                for flat, factor in added:
                    part[block] += scaled(flat[block], factor)
        return total

    def _noisy_mean(self, total: np.ndarray, noise: np.ndarray) -> list[np.ndarray]:
        """`(sum of clipped updates + stddev noise) / clients_per_round`, float32."""
        for start in range(0, total.size, BLOCK):
            block = slice(start, start + BLOCK)
            total[block] += self._plan.noise_stddev * noise[block].astype(np.float64)
            total[block] /= self._denominator
        parts = np.split(total.astype(np.float32), self._ends[:-1])
        return [part.reshape(w.shape) for part, w in zip(parts, self._first)]


def _read_only(weights: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Views that an engine cannot write to by mistake."""
    views = [weight.view() for weight in weights]
    for view in views:
        view.flags.writeable = False
    return views
