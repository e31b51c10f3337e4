"""FCP's exclusive separation is this package's, minus one."""

import pytest

import tf_bandmf
from tf_bandmf_federated.eligibility import may_take_part
from tf_bandmf_federated.fcp_policy import fcp_policy


def make_plan(b=4, k=None, n=12):
    return tf_bandmf.plan(
        "banded:2",
        noise_multiplier=1.0,
        delta=1e-5,
        num_steps=n,
        participation=tf_bandmf.MinSep(b, k),
    )


PLAN = make_plan()


def fcp_is_eligible(policy, last_index):
    """`ComputeMinimumSeparationPolicyEligibility`, line by line."""
    if last_index is None:
        return True
    index_separation = int(policy["currentIndex"]) - last_index - 1
    return index_separation >= int(policy["minimumSeparation"])


def test_both_let_the_same_devices_in():
    for now in range(12):
        policy = fcp_policy(PLAN, now, 3600)["minSepPolicy"]
        for last in [None, *range(now)]:
            expected = may_take_part(-1 if last is None else last, 0, now, 4, None)
            assert fcp_is_eligible(policy, last) == bool(expected)


def test_its_fields():
    assert fcp_policy(PLAN, 5, 7200) == {
        "name": "tf-bandmf",
        "minVersion": 1,
        "minSepPolicy": {
            "currentIndex": "5",
            "minimumSeparation": "3",
            "minTrustworthinessPeriod": "7200s",
        },
    }
    assert fcp_policy(make_plan(k=3), 0, 1)["minSepPolicy"]["minimumSeparation"] == "3"


def test_what_it_cannot_say_is_refused():
    with pytest.raises(ValueError, match=r"make the plan with MinSep\(4\)"):
        fcp_policy(make_plan(k=2), 0, 3600)
    for number in (-1, 12):
        with pytest.raises(ValueError, match="round_number must be in"):
            fcp_policy(PLAN, number, 3600)
    with pytest.raises(ValueError, match="min_trustworthiness_seconds"):
        fcp_policy(PLAN, 0, 0)
    with pytest.raises(TypeError, match=r"tf_bandmf\.Plan"):
        fcp_policy("plan", 0, 3600)
