"""Noise that the host makes."""

import collections
import os
import stat

import numpy as np
import pytest
import tensorflow as tf

import tf_bandmf
from tf_bandmf import noise
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf_federated import HostNoise

N, D = 8, 5


def make_plan(mechanism="bsr", bands=3, **options):
    options = {"bands": bands, **options} if bands else options
    return tf_bandmf.plan(
        mechanism,
        noise_multiplier=1.0,
        delta=1e-5,
        num_steps=N,
        participation=tf_bandmf.MinSep(3, 2),
        **options,
    )


PLANS = {
    "ring buffer": make_plan(),
    "regenerated": make_plan("bisr"),
    "geometric": make_plan("blt", None),
}


def state_at(round_number, run_id=5, key_id=0):
    return collections.OrderedDict(
        round=np.int64(round_number),
        noise=collections.OrderedDict(
            run_id=np.int64(run_id),
            key_id=np.int64(key_id),
            ready_for=np.int64(-1),
            values=np.zeros([0], np.float32),
        ),
    )


def straight_run(plan, key):
    generator = noise.NoiseGenerator(plan.strategy, D)
    state, rows = generator.initial_state(key), []
    for step in range(N):
        row, state = generator.next(state, tf.constant(step))
        rows.append(row.numpy())
    return np.stack(rows)


@pytest.mark.parametrize("name", PLANS)
def test_any_round_is_the_core_s_bit_for_bit(name):
    host = HostNoise(PLANS[name], D)
    expected = straight_run(PLANS[name], host.run_key(1))
    other = straight_run(PLANS[name], host.run_key(2))
    # In order, skipped, backward, the same again, another run in between.
    for round_number in (0, 1, 4, 4, 2, 7, 0):
        found = host.values(1, round_number)
        np.testing.assert_array_equal(found, expected[round_number])
    np.testing.assert_array_equal(host.values(2, 3), other[3])
    np.testing.assert_array_equal(host.values(1, 5), expected[5])
    assert not np.any(other == expected)


def test_invariant_8_the_noise_of_a_round_is_handed_out_once():
    host = HostNoise(PLANS["ring buffer"], D)
    first = host.prepare(state_at(0))
    with pytest.raises(ValueError, match="handed out already"):
        host.prepare(state_at(0))
    again = host.prepare(state_at(0), replay=True)
    np.testing.assert_array_equal(again["noise"]["values"], first["noise"]["values"])
    key_id = int(first["noise"]["key_id"])
    host.prepare(state_at(3, key_id=key_id))  # rounds may be skipped
    with pytest.raises(ValueError, match="handed out already"):
        host.prepare(state_at(2, key_id=key_id))
    # Another initialize is another run, with noise of its own.
    other = host.prepare(state_at(0, run_id=6))
    assert not np.any(other["noise"]["values"] == first["noise"]["values"])


def test_a_skipped_round_s_noise_is_not_handed_out():
    host = HostNoise(PLANS["ring buffer"], D)
    skipped = host.skip(state_at(0))  # begun, say, before a crash
    assert skipped["round"] == 1 and skipped["noise"]["values"].size == 0
    with pytest.raises(ValueError, match="handed out already"):
        host.prepare(state_at(0))
    found = host.prepare(skipped)["noise"]["values"]
    np.testing.assert_array_equal(
        found, straight_run(PLANS["ring buffer"], host.run_key(5))[1]
    )


def test_prepared_states():
    host = HostNoise(PLANS["ring buffer"], D)
    state = state_at(0)
    prepared = host.prepare(state)
    assert state["noise"]["values"].size == 0  # the argument is not changed
    assert prepared["noise"]["ready_for"] == 0
    assert prepared["noise"]["values"].dtype == np.float32
    assert prepared["noise"]["values"].shape == (D,)


def test_a_run_does_not_go_on_with_another_key():
    plan = PLANS["ring buffer"]
    host = HostNoise(plan, D)
    key_id = int(host.prepare(state_at(0))["noise"]["key_id"])
    with pytest.raises(ValueError, match="another noise key"):
        HostNoise(plan, D).prepare(state_at(1, key_id=key_id))
    secret = NoiseKey(host.key.secret_bytes())
    with pytest.raises(ValueError, match="another plan"):
        HostNoise(make_plan(l2_norm_clip=2.0), D, secret).prepare(
            state_at(1, key_id=key_id)
        )
    resumed = HostNoise(plan, D, NoiseKey(host.key.secret_bytes()))
    found = resumed.prepare(state_at(1, key_id=key_id))["noise"]["values"]
    np.testing.assert_array_equal(found, host.values(5, 1))
    with pytest.raises(ValueError, match="never had noise"):
        host.prepare(state_at(2))


def test_keys_come_from_the_operating_system():
    first, second = (HostNoise(PLANS["regenerated"], D) for _ in range(2))
    assert first.key.secret_bytes() != second.key.secret_bytes()
    assert len(first.key.secret_bytes()) == 32
    assert first.key_id(1) != first.key_id(2) != 0


def test_invariant_1_horizon():
    host = HostNoise(PLANS["ring buffer"], D)
    for round_number in (N, N + 3, -1):
        with pytest.raises(ValueError, match="8 rounds"):
            host.values(0, round_number)


def test_an_interrupted_row_does_not_spoil_the_next_one():
    host = HostNoise(PLANS["ring buffer"], D)
    host.values(1, 2)
    working = host._next_row

    def interrupted(*arguments):
        working(*arguments)  # the buffer has changed
        raise KeyboardInterrupt

    host._next_row = interrupted
    with pytest.raises(KeyboardInterrupt):
        host.values(1, 3)
    host._next_row = working
    expected = straight_run(PLANS["ring buffer"], host.run_key(1))
    np.testing.assert_array_equal(host.values(1, 3), expected[3])
    np.testing.assert_array_equal(host.values(1, 4), expected[4])


def test_a_saved_buffer_continues_bit_for_bit(tmp_path):
    path = str(tmp_path / "noise.npz")
    for plan in PLANS.values():
        host = HostNoise(plan, D)
        host.values(9, 4)
        host.save(path)
        assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
        assert os.listdir(tmp_path) == ["noise.npz"]
        loaded = HostNoise.load(path, plan, D)
        assert loaded.key.secret_bytes() == host.key.secret_bytes()
        assert loaded._position == 5  # nothing is made again
        expected = straight_run(plan, host.run_key(9))
        for round_number in (5, 6, 2):
            found = loaded.values(9, round_number)
            np.testing.assert_array_equal(found, expected[round_number])


def test_a_saved_buffer_remembers_what_was_handed_out(tmp_path):
    path = str(tmp_path / "noise.npz")
    plan = PLANS["ring buffer"]
    host = HostNoise(plan, D)
    host.prepare(state_at(0))
    host.save(path)
    with pytest.raises(ValueError, match="handed out already"):
        HostNoise.load(path, plan, D).prepare(state_at(0))


def test_damaged_and_foreign_files_are_refused(tmp_path):
    path = tmp_path / "noise.npz"
    plan = PLANS["ring buffer"]
    HostNoise(plan, D).save(str(path))
    with pytest.raises(ValueError, match="another plan or model"):
        HostNoise.load(str(path), plan, D + 1)
    with pytest.raises(ValueError, match="another plan or model"):
        HostNoise.load(str(path), make_plan(l2_norm_clip=2.0), D)
    content = bytearray(path.read_bytes())
    for damaged in (content[: len(content) // 2], b"", b"no file of ours"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="damaged"):
            HostNoise.load(str(path), plan, D)
    # One bit of the buffer.
    content[content.index(b"buffer.npy") + 150] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        HostNoise.load(str(path), plan, D)
    with pytest.raises(FileNotFoundError):
        HostNoise.load(str(tmp_path / "missing"), plan, D)
    path.chmod(0o644)
    with pytest.raises(PermissionError, match="others may read it"):
        HostNoise.load(str(path), plan, D)


def test_test_seeds():
    plan = make_plan(test_seed=4)
    host = HostNoise(plan, D)
    expected = straight_run(plan, NoiseKey.for_testing(4))
    np.testing.assert_array_equal(host.values(77, 2), expected[2])
    with pytest.raises(ValueError, match="test seed"):
        HostNoise(plan, D, NoiseKey.from_operating_system())


def test_states_of_other_processes_are_refused():
    host = HostNoise(PLANS["ring buffer"], D)
    for wrong in (None, {}, collections.OrderedDict(round=0)):
        with pytest.raises(TypeError, match="correlated noise"):
            host.prepare(wrong)
    in_state = collections.OrderedDict(
        round=np.int64(0), noise=collections.OrderedDict(step_keys=0, buffer=0)
    )
    with pytest.raises(TypeError, match="holds its own noise"):
        host.prepare(in_state)
