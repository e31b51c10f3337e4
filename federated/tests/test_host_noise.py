"""Noise that the host makes."""

import collections
import itertools
import stat
import threading

import numpy as np
import pytest
import tensorflow as tf

import tf_bandmf
from tf_bandmf import noise
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf_federated import HostNoise, host_noise
from tf_bandmf_federated.sum_chunks import CHUNK_BYTES

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
            ready_for=np.int64(-1),
            digests=np.zeros([N], np.int64),
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


@pytest.mark.invariant(8)
def test_a_round_that_is_prepared_again_has_independent_noise():
    plan = make_plan()
    host = HostNoise(plan, 2000)
    first = host.prepare(state_at(0))
    with pytest.raises(ValueError, match="begun already"):
        host.prepare(state_at(0))
    again = host.prepare(state_at(0), replay=True)
    difference = again["noise"]["values"] - first["noise"]["values"]
    assert 1.25 < np.std(difference) < 1.6  # of two independent normals: sqrt(2)
    # The same inputs, as a ledger tells them, have the same noise.
    told = [host.prepare(state_at(0), replay=True, inputs="a") for _ in range(2)]
    values = [state["noise"]["values"] for state in told]
    np.testing.assert_array_equal(*values)
    # Of 2000 pairs of independent normals in float32, one is equal in 50,000 runs.
    assert np.mean(values[0] == first["noise"]["values"]) < 0.01
    key_id = int(first["noise"]["key_id"])
    host.prepare(state_at(3, key_id=key_id))  # rounds may be skipped
    with pytest.raises(ValueError, match="begun already"):
        host.prepare(state_at(2, key_id=key_id))
    # Another initialize is another run, with noise of its own.
    other = host.prepare(state_at(0, run_id=6))
    assert np.mean(other["noise"]["values"] == first["noise"]["values"]) < 0.01


def test_later_rounds_go_on_from_the_noise_that_was_prepared():
    host = HostNoise(PLANS["ring buffer"], D)
    prepared = host.prepare(state_at(0))
    digests = prepared["noise"]["digests"]
    assert digests[0] != 0 and not np.any(digests[1:])
    after = state_at(1, key_id=int(prepared["noise"]["key_id"]))
    after["noise"]["digests"] = digests
    second = host.prepare(after)["noise"]
    np.testing.assert_array_equal(
        host.values(5, 1, second["digests"][:2]), second["values"]
    )
    resumed = HostNoise(PLANS["ring buffer"], D, NoiseKey(host.key.secret_bytes()))
    np.testing.assert_array_equal(
        resumed.values(5, 1, second["digests"][:2]), second["values"]
    )


def test_a_skipped_round_is_not_prepared():
    host = HostNoise(PLANS["ring buffer"], D)
    skipped = host.skip(state_at(0))  # begun, say, before a crash
    assert skipped["round"] == 1 and skipped["noise"]["values"].size == 0
    with pytest.raises(ValueError, match="begun already"):
        host.prepare(state_at(0))
    found = host.prepare(skipped)["noise"]
    np.testing.assert_array_equal(
        found["values"], host.values(5, 1, found["digests"][:2])
    )


@pytest.mark.invariant(8)
def test_every_bit_of_a_large_sum_is_in_its_digest():
    host = HostNoise(PLANS["regenerated"], D)
    total = np.random.default_rng(0).normal(size=(1 << 17) + 50)  # 8 bytes each
    assert total.nbytes > CHUNK_BYTES
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
    found = resumed.prepare(state_at(1, key_id=key_id))["noise"]
    np.testing.assert_array_equal(
        found["values"], host.values(5, 1, found["digests"][:2])
    )
    with pytest.raises(ValueError, match="never had noise"):
        host.prepare(state_at(2))


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


def test_a_kept_buffer_continues_bit_for_bit(tmp_path):
    # The next round, and the last one again: its state may not have been saved.
    for (name, plan), goes_on in itertools.product(PLANS.items(), (5, 4)):
        folder = tmp_path / f"{name} {goes_on}"
        host = kept_in(folder, plan)
        host.values(9, 4)
        if host._ring is not None:
            host._ring.flush()  # a kill may lose the last row
        expected = straight_run(plan, host.run_key(9))
        resumed = kept_in(folder, plan)
        assert resumed.key.secret_bytes() == host.key.secret_bytes()
        steps = steps_of(resumed)
        np.testing.assert_array_equal(resumed.values(9, goes_on), expected[goes_on])
        assert steps == [goes_on]  # nothing is made again
        for round_number in (6, 2):
            found = resumed.values(9, round_number)
            np.testing.assert_array_equal(found, expected[round_number])
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        for path in folder.iterdir():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def kept_in(folder, plan=PLANS["ring buffer"]):
    host = HostNoise(plan, D)
    host.keep_in(str(folder))
    return host


def steps_of(host):
    """The steps whose rows are made from now on."""
    steps, real = [], host._next_row

    class Recorded:
        get_concrete_function = real.get_concrete_function

        def __call__(self, step):
            steps.append(int(step))
            return real(step)

    host._next_row = Recorded()
    return steps


def test_a_damaged_missing_or_foreign_buffer_is_made_again(tmp_path):
    """The file is a cache: whatever becomes of it, the noise is the same."""
    host = kept_in(tmp_path)
    host.values(9, 5)
    host._ring.flush()
    expected = straight_run(PLANS["ring buffer"], host.run_key(9))
    path = tmp_path / "noise.ring"
    whole = path.read_bytes()
    slot = len(whole) // 4  # two rows are needed, two are spare
    another = kept_in(tmp_path / "another")
    another.values(9, 5)
    another._ring.flush()
    damages = {
        "missing": b"",
        "cut": whole[:slot],
        "of another key": (tmp_path / "another" / "noise.ring").read_bytes(),
        "rows exchanged": b"".join(
            whole[i * slot : (i + 1) * slot] for i in (1, 0, 3, 2)
        ),
    }
    for position in range(70, len(whole), slot):  # one bit in each row
        changed = bytearray(whole)
        changed[position] ^= 1
        damages[position] = bytes(changed)
    made_again = {}
    for name, content in damages.items():
        path.write_bytes(content)
        resumed = kept_in(tmp_path)
        steps = steps_of(resumed)
        found = [resumed.values(9, t) for t in (6, 7)]
        np.testing.assert_array_equal(found, expected[6:])
        made_again[name] = steps[0]
        resumed._ring.flush()  # or it writes into the next one's file
    # The row of round 5 is in slot 1: the one before it will do then.
    assert made_again.pop(70 + slot) == 5
    assert made_again.pop(70 + 3 * slot) == 6  # of round 3, which is not needed
    assert made_again.pop(70 + 2 * slot) == 6  # of round 2
    assert set(made_again.values()) == {0}


def test_damaged_and_foreign_folders_are_refused(tmp_path):
    host = kept_in(tmp_path)
    host.prepare(state_at(0))
    other = HostNoise(PLANS["ring buffer"], D)
    other.prepare(state_at(0))
    with pytest.raises(ValueError, match="noise of another key already"):
        other.keep_in(str(tmp_path))
    for name in ("noise.key",):
        path = tmp_path / name
        content = path.read_bytes()
        for damaged in (content[:-1], b"", content[:-1] + b"?"):
            path.write_bytes(damaged)
            with pytest.raises(ValueError, match="damaged"):
                kept_in(tmp_path)
        path.write_bytes(content)
        path.chmod(0o644)
        with pytest.raises(PermissionError, match="others may read it"):
            kept_in(tmp_path)
        path.chmod(0o600)
    (tmp_path / "noise.ring").chmod(0o640)
    with pytest.raises(PermissionError, match="others may read it"):
        kept_in(tmp_path).values(5, 1)


def test_of_many_threads_one_begins_a_round():
    host = HostNoise(PLANS["ring buffer"], D)
    found, refused = [], []

    def prepare(barrier):
        for t in range(N):
            barrier.wait()
            key_id = host.key_id(5) if t else 0
            try:
                prepared = host.prepare(state_at(t, key_id=key_id))
                found.append((t, prepared["noise"]))
            except ValueError:
                refused.append(t)

    barrier = threading.Barrier(8)
    threads = [threading.Thread(target=prepare, args=(barrier,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(t for t, _ in found) == list(range(N))
    assert len(refused) == 7 * N
    for t, found_noise in found:
        again = host.values(5, t, found_noise["digests"][: t + 1])
        np.testing.assert_array_equal(found_noise["values"], again)


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
