"""Tests of `RoundNoise`, the noise of a server without TensorFlow Federated."""

import numpy as np
import pytest
import tensorflow as tf
from plans import min_sep_plan

from tf_bandmf import noise
from tf_bandmf_federated import round_noise
from tf_bandmf_federated.round_noise import RoundNoise

N, D = 8, 5


PLANS = {
    "ring buffer": min_sep_plan("bsr:3", N, 3, 2),
    "regenerated": min_sep_plan("bisr:3", N, 3, 2),
    "geometric": min_sep_plan("blt", N, 3, 2),
}


class Made:
    """Generates noise with `RoundNoise` and, for comparison, with `NoiseGenerator`."""

    def __init__(self, plan, size=D, state=None):
        self.plan, self.size, self.noise = plan, size, RoundNoise(plan, size)
        self.state = self.noise.initial_state() if state is None else state

    def after(self, digests):
        return {**self.state, "digests": np.array(digests, np.int64)}

    def row(self, digests, point=""):
        """Returns the noise of the next round, and the digests including this round.

        Args:
          digests: digests of the rounds before.
          point: text to which the noise is bound.
        """
        parts, after = self.noise.bound_to(self.after(digests), np.zeros(D), point)
        return np.concatenate(list(parts)), after["digests"]

    def straight(self, digests):
        """Returns the noise of all rounds, as `NoiseGenerator` generates it in order.

        Args:
          digests: the numbers to which the keys of the first rounds are bound.
        """
        generator = noise.NoiseGenerator(self.plan.strategy, self.size)
        keys = generator.step_keys(self.noise._key)
        keys[: len(digests)] = generator.bound_key(keys[: len(digests)], digests)
        state = generator.initial_state(self.noise._key)
        state = state._replace(step_keys=tf.constant(keys))
        rows = []
        for step in range(N):
            values, state = generator.next(state, tf.constant(step))
            rows.append(values.numpy())
        return np.stack(rows)


@pytest.mark.parametrize("name", PLANS)
def test_any_round_is_the_core_s_bit_for_bit(name):
    made, other = Made(PLANS[name]), Made(PLANS[name])
    digests = np.arange(N) + 3
    # Rounds are requested in order, twice in a row, with gaps, and backwards.
    for number in (0, 1, 4, 4, 2, 7, 0):
        actual, after = made.row(digests[:number], point=f"{number}")
        np.testing.assert_array_equal(actual, made.straight(after)[number])
        assert not np.any(actual == other.row(digests[:number])[0])


@pytest.mark.invariant(8)
def test_every_bit_of_a_large_sum_is_in_its_digest():
    made = Made(PLANS["regenerated"])
    # These float64 numbers take slightly more than 1 MiB.
    total = np.random.default_rng(0).normal(size=(1 << 17) + 50)

    def digest(values=total, number=0, of=made):
        state = of.after(np.zeros(number))
        return of.noise.after(state, values, "")["digests"][-1]

    actual = {digest()}
    assert actual == {digest(total.copy())}
    words = total.view(np.int64)
    for position in (0, 77, (1 << 17) - 1, 1 << 17, total.size - 1):
        for bit in (0, 31, 32, 62):
            words[position] ^= 1 << bit
            actual.add(digest())
            words[position] ^= 1 << bit
    actual |= {digest(np.roll(total, 1 << 16)), digest(number=1)}
    actual.add(digest(of=Made(PLANS["regenerated"])))
    assert len(actual) == 1 + 20 + 3


@pytest.mark.invariant(11)
def test_a_state_brings_its_key(tmp_path):
    """A saved state contains its key, and gives the same noise in another instance."""
    made = Made(PLANS["ring buffer"])
    _, digests = made.row([], point="drawn")
    second, _ = made.row(digests, point="more")
    other = Made(PLANS["ring buffer"])
    assert not np.any(other.row(digests, point="more")[0] == second)
    other.state = made.state
    actual, _ = other.row(digests, point="more")
    np.testing.assert_array_equal(actual, second)
    name = made.noise.name_of(made.state)
    assert other.noise.name_of(made.state) == name
    assert other.noise.name_of(Made(PLANS["ring buffer"]).state) != name
    secret = bytes(made.state["key"])
    assert len(secret) == 32 and secret.hex() != name


def test_what_does_not_fit_into_memory_is_refused_before_it_is_allocated():
    with pytest.raises(MemoryError, match="stores 2 vectors"):
        RoundNoise(PLANS["ring buffer"], 10**13)
    RoundNoise(PLANS["regenerated"], 10**9)


@pytest.mark.invariant(1)
def test_horizon():
    made = Made(PLANS["ring buffer"])
    for rounds in (N, N + 3):
        with pytest.raises(ValueError, match="8 rounds"):
            made.row(np.zeros(rounds))
        with pytest.raises(ValueError, match="8 rounds"):
            made.noise.after(made.after(np.zeros(rounds)), np.zeros(D), "")


def test_an_interrupted_row_does_not_spoil_the_next_one():
    made = Made(PLANS["ring buffer"])
    digests = np.arange(N) + 3
    made.row(digests[:2])
    working = made.noise._row

    def interrupted(*arguments):
        # The interrupt comes after the ring buffer has changed.
        working(*arguments)
        raise KeyboardInterrupt

    made.noise._row = interrupted
    with pytest.raises(KeyboardInterrupt):
        made.row(digests[:3])
    made.noise._row = working
    for number in (3, 4):
        actual, after = made.row(digests[:number])
        np.testing.assert_array_equal(actual, made.straight(after)[number])


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.invariant(9)
def test_parts_of_a_row_are_the_row_bit_for_bit(name, monkeypatch):
    monkeypatch.setattr(round_noise, "_PART", 4096)
    size = 10_000
    made = Made(PLANS[name], size)
    state = made.after([3, 4])
    parts, after = made.noise.bound_to(state, np.arange(size), "")
    actual = [next(parts)]
    # Request the noise for another sum before all parts of this noise are read.
    others, other = made.noise.bound_to(state, np.arange(size) + 1, "")
    actual.extend(parts)
    for values, bound in ((actual, after), (list(others), other)):
        whole = made.straight(bound["digests"])[2]
        np.testing.assert_array_equal(np.concatenate(values), whole)
    assert len(actual) == (3 if name == "regenerated" else 1)
