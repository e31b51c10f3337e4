"""A plan's separation as a policy of Google's federated-compute client (FCP).

Its devices enforce a `MinimumSeparationPolicy` themselves (repository
google-parfait/federated-compute: `fcp/protos/population_eligibility_spec.proto`, evaluated
in `fcp/client/eligibility_decider.cc`). It counts separation exclusively: a device is
eligible if `current_index - last_index - 1 >= minimum_separation`, the rounds between.
With b of this package, `j - i >= b` of two rounds i < j: `minimum_separation = b - 1`.
"""

from __future__ import annotations

import math
from typing import Any

from tf_bandmf import Plan
from tf_bandmf.participation.checks import positive_int
from tf_bandmf_federated.plan_checks import check_plan

# Of the client's implementation that knows the policy.
_MIN_VERSION = 1


def fcp_policy(
    plan: Plan,
    round_number: int,
    min_trustworthiness_seconds: int,
    name: str = "tf-bandmf",
) -> dict[str, Any]:
    """The fields of an `EligibilityPolicyEvalSpec`, for one round.

    In protobuf's JSON form, for `google.protobuf.json_format.ParseDict`.

    Args:
      plan: with `MinSep` participation. Its `max_participations` must be what the
        separation permits anyway, or None: the policy has no field for it.
      round_number: from 0; a new policy for every round.
      min_trustworthiness_seconds: a device whose own record is younger does not take
        part: it may have lost an older one. At least the time that b rounds take, or,
        to have no device that starts anew, that the whole run takes.
      name: of the policy.

    Raises:
      TypeError: if this is no plan.
      ValueError: if the round is not one of the plan's, the plan limits participations
        further than its separation does, or a number is out of range.
    """
    participation = check_plan(plan)
    b, n = participation.min_separation, plan.num_steps
    if not 0 <= round_number < n:
        raise ValueError(f"round_number must be in [0, {n}), found {round_number}.")
    possible = math.ceil(n / b)
    if participation.participations(n) < possible:
        raise ValueError(
            f"The plan permits {participation.participations(n)} participations of a "
            f"device, its separation {possible}. FCP's policy cannot say this: make the "
            f"plan with MinSep({b}), whose guarantee counts {possible}."
        )
    seconds = positive_int("min_trustworthiness_seconds", min_trustworthiness_seconds)
    return {
        "name": name,
        "minVersion": _MIN_VERSION,
        "minSepPolicy": {
            "currentIndex": str(round_number),  # int64 is text in protobuf's JSON
            "minimumSeparation": str(b - 1),
            "minTrustworthinessPeriod": f"{seconds}s",
        },
    }
