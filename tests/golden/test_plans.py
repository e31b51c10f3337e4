"""Sixty plans still have the numbers that are recorded in plans.json."""

import json

import pytest
from modules import module_at

plans = module_at("tests/golden/plans.py")
SAVED = plans.saved()
CASES = [
    pytest.param(name, marks=[pytest.mark.slow] if name in plans.SLOW else [])
    for name in plans.PLANS
]


def test_each_plan_is_in_the_file():
    assert list(SAVED) == list(plans.PLANS)
    assert len(SAVED) == 60


@pytest.mark.parametrize("name", CASES)
def test_a_plan_is_as_it_was(name):
    now = json.loads(json.dumps(plans.record(name)))
    assert not plans.differences(name, SAVED[name], now)


@pytest.mark.parametrize(
    ("name", "factor"),
    [("identity", 1e-8), ("blt:2", 1e-6), ("poisson, identity", 2e-4)],
)
def test_another_noise_is_told(name, factor):
    other = dict(SAVED[name])
    other["noise_multiplier"] *= 1.0 + factor
    (line,) = plans.differences(name, SAVED[name], other)
    assert line.startswith(f"{name}: noise_multiplier was")
    other["noise_multiplier"] = None
    assert plans.differences(name, SAVED[name], other)
