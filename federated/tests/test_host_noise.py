"""Noise that the host makes."""

import collections
import stat

import numpy as np
import pytest
import tensorflow as tf

import tf_bandmf
from tf_bandmf import noise
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf_federated import host_noise
from tf_bandmf_federated.host_noise import HostNoise

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


def state_at(host, digests=()):
    """The state of a run after so many rounds."""
    return collections.OrderedDict(
        round=np.int64(len(digests)),
        noise=collections.OrderedDict(
            key_id=np.int64(host.key_id), digests=np.array(digests, np.int64)
        ),
    )


def row(host, digests, inputs=""):
    """The noise of the round after those with these digests, and all digests."""
    parts, after = host.bound_to(state_at(host, digests), np.zeros(D), inputs)
    return np.concatenate(list(parts)), after


def straight_run(plan, host, digests=None, size=D):
    """The core's rows for a key, bound to digests."""
    generator = noise.NoiseGenerator(plan.strategy, size)
    keys = generator.step_keys(host._key)
    if digests is not None:
        keys[: len(digests)] = generator.bound_key(keys[: len(digests)], digests)
    state = generator.initial_state(host._key)._replace(step_keys=tf.constant(keys))
    rows = []
    for step in range(N):
        values, state = generator.next(state, tf.constant(step))
        rows.append(values.numpy())
    return np.stack(rows)


@pytest.mark.parametrize("name", PLANS)
def test_any_round_is_the_core_s_bit_for_bit(name):
    host, other = HostNoise(PLANS[name], D), HostNoise(PLANS[name], D)
    digests = np.arange(N) + 3
    # In order, left out, backward, the same again.
    for number in (0, 1, 4, 4, 2, 7, 0):
        found, after = row(host, digests[:number], inputs=f"{number}")
        expected = straight_run(PLANS[name], host, after)
        np.testing.assert_array_equal(found, expected[number])
        assert not np.any(found == row(other, digests[:number])[0])


@pytest.mark.invariant(8)
def test_every_bit_of_a_large_sum_is_in_its_digest():
    host = HostNoise(PLANS["regenerated"], D)
    total = np.random.default_rng(0).normal(size=(1 << 17) + 50)  # 8 bytes each
    found = {host.digest(0, total)}
    assert found == {host.digest(0, total.copy())}
    words = total.view(np.int64)
    for position in (0, 77, (1 << 17) - 1, 1 << 17, total.size - 1):
        for bit in (0, 31, 32, 62):
            words[position] ^= 1 << bit
            found.add(host.digest(0, total))
            words[position] ^= 1 << bit
    found |= {host.digest(0, np.roll(total, 1 << 16)), host.digest(1, total)}
    found.add(HostNoise(PLANS["regenerated"], D).digest(0, total))
    assert len(found) == 1 + 20 + 3


def test_a_run_does_not_go_on_with_another_key(tmp_path):
    plan = PLANS["ring buffer"]
    host, resumed = HostNoise(plan, D), HostNoise(plan, D)
    host.keep_in(str(tmp_path), is_new=True)
    first, digests = row(host, [], inputs="drawn")
    second, _ = row(host, digests, inputs="more")
    state = state_at(host, digests)
    with pytest.raises(ValueError, match="another noise key"):
        resumed.bound_to(state, np.zeros(D))
    changed = HostNoise(make_plan(l2_norm_clip=2.0), D)
    changed.keep_in(str(tmp_path), is_new=False)
    with pytest.raises(ValueError, match="another plan"):
        changed.bound_to(state, np.zeros(D))
    resumed.keep_in(str(tmp_path), is_new=False)
    found, _ = row(resumed, digests, inputs="more")
    np.testing.assert_array_equal(found, second)
    assert not np.any(found == first)
    state["round"] = np.int64(2)
    with pytest.raises(ValueError, match="digests of 1 rounds"):
        host.bound_to(state, np.zeros(D))


def test_a_folder_keeps_the_key(tmp_path):
    folder = tmp_path / "noise"

    def kept(folder=folder, is_new=True):
        host = HostNoise(PLANS["ring buffer"], D)
        host.keep_in(str(folder), is_new)
        return host

    host = kept()
    assert kept(is_new=False).key_id == host.key_id
    path = folder / "noise.key"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    # A second run, also of one object, has a key of its own.
    key_id = host.key_id
    host.keep_in(str(tmp_path / "second"), is_new=True)
    assert host.key_id != key_id and kept().key_id == key_id
    content = path.read_bytes()
    assert len(content) > 32
    for damaged in (content[:-1], b"", content[:-1] + b"?"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="damaged"):
            kept()
    path.write_bytes(content)
    path.chmod(0o644)
    with pytest.raises(PermissionError, match="others may read it"):
        kept()
    path.unlink()
    with pytest.raises(ValueError, match="the noise key is not at"):
        kept(is_new=False)


def test_what_does_not_fit_into_memory_is_refused_before_it_is_allocated():
    with pytest.raises(MemoryError, match="keeps 2 vectors"):
        HostNoise(PLANS["ring buffer"], 10**13)
    assert HostNoise(PLANS["regenerated"], 10**9).key_id


@pytest.mark.invariant(1)
def test_horizon():
    host = HostNoise(PLANS["ring buffer"], D)
    for rounds in (N, N + 3):
        with pytest.raises(ValueError, match="8 rounds"):
            row(host, np.zeros(rounds))


def test_an_interrupted_row_does_not_spoil_the_next_one():
    host = HostNoise(PLANS["ring buffer"], D)
    digests = np.arange(N) + 3
    row(host, digests[:2])
    working = host._row

    def interrupted(*arguments):
        working(*arguments)  # the buffer has changed
        raise KeyboardInterrupt

    host._row = interrupted
    with pytest.raises(KeyboardInterrupt):
        row(host, digests[:3])
    host._row = working
    for number in (3, 4):
        found, after = row(host, digests[:number])
        expected = straight_run(PLANS["ring buffer"], host, after)
        np.testing.assert_array_equal(found, expected[number])


def test_test_seeds():
    plan = make_plan(test_seed=4)
    first, second = HostNoise(plan, D), HostNoise(plan, D)
    assert first._key.secret_bytes() == NoiseKey.for_testing(4).secret_bytes()
    found, digests = row(first, np.zeros(2))
    np.testing.assert_array_equal(found, straight_run(plan, second)[2])
    assert not np.any(digests)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.invariant(9)
def test_parts_of_a_row_are_the_row_bit_for_bit(name, monkeypatch):
    monkeypatch.setattr(host_noise, "_PART", 4096)
    size = 10_000
    totals = np.arange(size), np.arange(size) + 1
    host = HostNoise(PLANS[name], size)
    state = state_at(host, [3, 4])
    parts, digests = host.bound_to(state, totals[0])
    found = [next(parts)]
    # Another sum's noise is asked for before this one is done.
    others, other_digests = host.bound_to(state, totals[1])
    found.extend(parts)
    for values, bound in ((found, digests), (list(others), other_digests)):
        whole = straight_run(PLANS[name], host, bound, size)[2]
        np.testing.assert_array_equal(np.concatenate(values), whole)
    assert len(found) == (3 if name == "regenerated" else 1)
