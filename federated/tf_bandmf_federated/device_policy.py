"""The device policy: limits that a device checks before it takes part in a round.

The limits come from a plan. Call `DevicePolicy.from_plan(plan).save("policy.json")`
once on the server, and ship this file with the app that runs on the devices. The
devices can use the file without TensorFlow.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from tf_bandmf.accounting.checks import check_positive, whole_number
from tf_bandmf_federated.eligibility import contradicts_itself, may_take_part

if TYPE_CHECKING:
    from tf_bandmf import Plan

_FORMAT = "tf-bandmf-federated device policy 1"


@dataclasses.dataclass(frozen=True)
class DevicePolicy:
    """The limits that a device enforces on every request of the server.

    Attributes:
      plan: the plan's fingerprint, 64 hexadecimal digits.
      num_rounds: n, the number of rounds, which are numbered 0, ..., n - 1.
      min_separation: b; if a device takes part in rounds i < j, then j - i >= b.
      max_participations: k, the maximum number of participations over all rounds.
      l2_norm_clip: zeta, the maximum l2 norm of any update that leaves the device.

    Raises:
      ValueError: if a number is out of range.
    """

    plan: str
    num_rounds: int
    min_separation: int
    max_participations: int
    l2_norm_clip: float

    def __post_init__(self) -> None:
        for name in ("num_rounds", "min_separation", "max_participations"):
            whole_number(name, getattr(self, name))
        check_positive("l2_norm_clip", self.l2_norm_clip)
        if len(self.plan) != 64 or not set(self.plan) <= set("0123456789abcdef"):
            raise ValueError(f"plan must be 64 hex digits, found {self.plan!r}.")

    @classmethod
    def from_plan(cls, plan: Plan) -> DevicePolicy:
        """Returns the policy of a plan.

        Raises:
          TypeError, ValueError: if the plan is not for federated learning.
        """
        from tf_bandmf_federated.plan_checks import check_plan

        participation = check_plan(plan)
        return cls(
            plan=plan.fingerprint,
            num_rounds=plan.num_steps,
            min_separation=participation.min_separation,
            max_participations=participation.participations(plan.num_steps),
            l2_norm_clip=float(plan.l2_norm_clip),
        )

    def refusal(
        self, round_number: int, last_round: int, participations: int
    ) -> str | None:
        """Returns why a device with this record must not take part, or None if it may.

        Args:
          round_number: the round for which the server asks the device.
          last_round: round of the device's last participation; -1 if there is none.
          participations: number of the device's participations so far.
        """
        if not 0 <= round_number < self.num_rounds:
            return f"round {round_number} is not below num_rounds = {self.num_rounds}"
        if contradicts_itself(last_round, participations):
            return "the device's record contradicts itself"
        if participations >= self.max_participations:
            return f"the device already took part {participations} times, the maximum"
        b, k = self.min_separation, self.max_participations
        if not may_take_part(last_round, participations, round_number, b, k):
            return (
                f"the device took part in round {last_round}, and round {round_number} "
                f"is less than {self.min_separation} rounds later"
            )
        return None

    def save(self, path: str) -> None:
        """Writes the policy to a file, which contains no secrets."""
        content = {"format": _FORMAT, **dataclasses.asdict(self)}
        with open(path, "w", encoding="utf-8") as file:
            file.write(json.dumps(content, indent=1) + "\n")

    @classmethod
    def load(cls, path: str) -> DevicePolicy:
        """Reads a file that `save` wrote.

        Raises:
          TypeError, ValueError: if the file is not a device policy.
        """
        with open(path, encoding="utf-8") as file:
            content: dict[str, Any] = json.load(file)
        if content.pop("format", None) != _FORMAT:
            raise ValueError(f"{path} must be a device policy with format {_FORMAT!r}.")
        return cls(**content)
