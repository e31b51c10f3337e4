"""A device store counts first, enforces the plan, and gives one answer per request."""

import os

import numpy as np
import pytest
from children import printed

from tf_bandmf_federated.device_policy import DevicePolicy
from tf_bandmf_federated.device_store import DeviceStore, Refused

POLICY = DevicePolicy("ab" * 32, 20, 3, 2, 0.5)
UPDATE = [np.arange(3, dtype=np.float32), np.ones([2, 2], np.float32)]


def make(path, policy=POLICY):
    return DeviceStore(str(path), policy)


def test_it_counts_before_it_works(tmp_path):
    store = make(tmp_path)
    assert (store.record["last_round"], store.record["participations"]) == (-1, 0)
    assert store.begin(4, "request") is None
    # The store is opened again, as after a kill of the device during training.
    again = make(tmp_path)
    assert (again.record["last_round"], again.record["participations"]) == (4, 1)
    assert again.record == store.record


@pytest.mark.parametrize("number", [3, 4, 5, 6, -1, 20, 2])
def test_too_early_or_outside_of_the_plan_is_refused(tmp_path, number):
    store = make(tmp_path)
    store.begin(4, "first")
    with pytest.raises(Refused):
        store.begin(number, "second")
    assert (store.record["last_round"], store.record["participations"]) == (4, 1)
    store.begin(7, "third")
    with pytest.raises(Refused, match="already took part 2 times"):
        store.begin(19, "fourth")


def test_one_request_has_one_answer(tmp_path):
    store = make(tmp_path)
    store.begin(4, "request")
    with pytest.raises(Refused, match="did not store"):
        store.begin(4, "request")
    store.keep("request", UPDATE)
    for one in (store, make(tmp_path)):
        kept = one.begin(4, "request")
        assert [array.tobytes() for array in kept] == [a.tobytes() for a in UPDATE]
        assert one.record["participations"] == 1
    with pytest.raises(Refused):
        store.begin(4, "another model in the same round")


def test_an_answer_of_a_round_before_is_not_kept(tmp_path):
    store = make(tmp_path)
    store.begin(4, "old")
    store.begin(7, "new")
    with pytest.raises(ValueError, match="request of the last begin"):
        store.keep("old", UPDATE)


def test_the_record_belongs_to_the_plan(tmp_path):
    make(tmp_path).begin(4, "request")
    other = make(tmp_path, DevicePolicy("cd" * 32, 20, 3, 2, 0.5))
    assert other.record["participations"] == 0
    assert make(tmp_path).record["participations"] == 1


def test_files_are_private_and_damage_is_refused(tmp_path):
    folder = tmp_path / "store"
    store = make(folder)
    store.begin(4, "request")
    store.keep("request", UPDATE)
    for name in os.listdir(folder):
        assert (folder / name).stat().st_mode & 0o077 == 0
    path = folder / f"{POLICY.plan}.device"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        make(folder)
    path.chmod(0o644)
    with pytest.raises(PermissionError):
        make(folder)


def test_a_policy_survives_as_text_and_refuses_another_text(tmp_path):
    path = tmp_path / "policy.json"
    POLICY.save(str(path))
    assert DevicePolicy.load(str(path)) == POLICY
    path.write_text(path.read_text().replace("num_rounds", "rounds"))
    with pytest.raises(TypeError, match="rounds"):
        DevicePolicy.load(str(path))
    path.write_text('{"format": "else"}')
    with pytest.raises(ValueError, match="must be a device policy"):
        DevicePolicy.load(str(path))


def test_a_device_needs_no_tensorflow():
    program = (
        "import sys, tf_bandmf_federated.device_store, tf_bandmf_federated.clipping; "
        "print([m for m in ('tensorflow', 'dp_accounting', 'flwr') if m in sys.modules])"
    )
    assert printed("-c", program).strip() == "[]"
