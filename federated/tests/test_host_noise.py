"""Noise that the host makes."""

import collections
import stat

import numpy as np
import pytest
import tensorflow as tf

import tf_bandmf
from tf_bandmf import noise
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf_federated import HostNoise, host_noise

N, D = 8, 5


def make_plan(mechanism="bsr", bands=3, **options):
    return tf_bandmf.plan(
        f"{mechanism}:{bands}" if bands else mechanism,
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
            digests=np.zeros([round_number], np.int64),
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


@pytest.mark.invariant(8)
def test_every_bit_of_a_large_sum_is_in_its_digest():
    host = HostNoise(PLANS["regenerated"], D)
    total = np.random.default_rng(0).normal(size=(1 << 17) + 50)  # 8 bytes each
    found = {host.digest(1, 0, total)}
    assert found == {host.digest(1, 0, total.copy())}
    words = total.view(np.int64)
    for position in (0, 77, (1 << 17) - 1, 1 << 17, total.size - 1):
        for bit in (0, 31, 32, 62):
            words[position] ^= 1 << bit
            found.add(host.digest(1, 0, total))
            words[position] ^= 1 << bit
    exchanged = np.roll(total, 1 << 16)
    found |= {host.digest(1, 0, exchanged), host.digest(2, 0, total)}
    found.add(host.digest(1, 1, total))
    assert len(found) == 1 + 20 + 3


def test_a_run_does_not_go_on_with_another_key():
    plan, total = PLANS["ring buffer"], np.zeros(D)
    host = HostNoise(plan, D)
    secret = NoiseKey(host.key.secret_bytes())
    first, digests = host.bound_to(state_at(0), total, "drawn")
    state = state_at(1, key_id=host.key_id(5))
    state["noise"]["digests"] = digests
    second = next(host.bound_to(state, total, "more")[0])
    with pytest.raises(ValueError, match="another noise key"):
        HostNoise(plan, D).bound_to(state, total)
    with pytest.raises(ValueError, match="another plan"):
        HostNoise(make_plan(l2_norm_clip=2.0), D, secret).bound_to(state, total)
    resumed = HostNoise(plan, D, secret)
    found = next(resumed.bound_to(state, total, "more")[0])
    np.testing.assert_array_equal(found, second)
    assert not np.any(found == next(first))
    with pytest.raises(ValueError, match="never had noise"):
        host.bound_to(state_at(2), total)


def test_a_folder_keeps_the_key(tmp_path):
    folder = tmp_path / "noise"

    def kept():
        host = HostNoise(PLANS["ring buffer"], D)
        host.keep_in(str(folder))
        return host

    host = kept()
    assert kept().key.secret_bytes() == host.key.secret_bytes()
    path = folder / "noise.key"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    other = HostNoise(PLANS["ring buffer"], D)
    other.values(1, 0)
    with pytest.raises(ValueError, match="noise of another key already"):
        other.keep_in(str(folder))
    content = path.read_bytes()
    for damaged in (content[:-1], b"", content[:-1] + b"?"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="damaged"):
            kept()
    path.write_bytes(content)
    path.chmod(0o644)
    with pytest.raises(PermissionError, match="others may read it"):
        kept()


def test_what_does_not_fit_into_memory_is_refused_before_it_is_allocated():
    with pytest.raises(MemoryError, match="keeps 2 vectors"):
        HostNoise(PLANS["ring buffer"], 10**13)
    assert HostNoise(PLANS["regenerated"], 10**9).key


def test_keys_come_from_the_operating_system():
    first, second = (HostNoise(PLANS["regenerated"], D) for _ in range(2))
    assert first.key.secret_bytes() != second.key.secret_bytes()
    assert len(first.key.secret_bytes()) == 32
    assert first.key_id(1) != first.key_id(2) != 0


@pytest.mark.invariant(1)
def test_horizon():
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


def test_test_seeds():
    plan = make_plan(test_seed=4)
    host = HostNoise(plan, D)
    expected = straight_run(plan, NoiseKey.for_testing(4))
    np.testing.assert_array_equal(host.values(77, 2), expected[2])
    with pytest.raises(ValueError, match="test seed"):
        HostNoise(plan, D, NoiseKey.from_operating_system())


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.invariant(9)
def test_parts_of_a_row_are_the_row_bit_for_bit(name, monkeypatch):
    monkeypatch.setattr(host_noise, "_PART", 4096)
    size, key = 10_000, NoiseKey(bytes(32))
    totals = np.arange(size), np.arange(size) + 1
    host = HostNoise(PLANS[name], size, key)
    state = state_at(2, key_id=host.key_id(5))
    state["noise"]["digests"] = np.array([3, 4])
    parts, digests = host.bound_to(state, totals[0])
    found = [next(parts)]
    # Another sum's noise is asked for before this one is done.
    others, other_digests = host.bound_to(state, totals[1])
    found.extend(parts)
    for row, bound in ((found, digests), (list(others), other_digests)):
        whole = HostNoise(PLANS[name], size, key).values(5, 2, bound)
        np.testing.assert_array_equal(np.concatenate(row), whole)
        np.testing.assert_array_equal(host.values(5, 2, bound), whole)
    assert len(found) == (3 if name == "regenerated" else 1)
