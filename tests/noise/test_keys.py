"""Tests noise keys: the keys derived from them, their secrecy, and fixed values."""

import copy
import pickle

import numpy as np
import pytest

from tf_bandmf.noise.keys import NoiseKey


def test_step_keys_do_not_depend_on_the_horizon():
    key = NoiseKey.for_testing(3)
    np.testing.assert_array_equal(key.step_keys(10), key.step_keys(50)[:10])


def test_step_keys_are_distinct_across_steps_and_runs():
    first = NoiseKey.from_operating_system().step_keys(2000)
    second = NoiseKey.from_operating_system().step_keys(2000)
    both = np.concatenate([first, second])
    assert len(np.unique(both, axis=0)) == 4000


def test_step_keys_are_the_same_on_every_machine():
    # This value must never change: saved runs need it to regenerate their noise.
    expected = [[4384573516408593201, 13888297300822307851]]
    words = NoiseKey(bytes(range(32))).step_keys(1)
    assert words.tolist() == expected


def test_a_key_hides_and_does_not_travel():
    key = NoiseKey.from_operating_system()
    assert len(key.secret_bytes()) == 32
    assert key.secret_bytes().hex() not in repr(key)
    for leak in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="secret"):
            leak(key)
