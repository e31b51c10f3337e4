"""Configurations with arrays on disk and in strings."""

import json

import numpy as np
import pytest

from tf_bandmf import storage

CONFIG = {"a": 1, "b": [1.5, None, {"c": np.arange(3.0)}], "d": np.eye(2)}


def assert_same(found):
    assert found["a"] == 1
    assert found["b"][:2] == [1.5, None]
    np.testing.assert_array_equal(found["b"][2]["c"], np.arange(3.0))
    np.testing.assert_array_equal(found["d"], np.eye(2))


def test_round_trip_through_files(tmp_path):
    path = str(tmp_path / "config.json")
    storage.save(path, CONFIG)
    assert_same(storage.load(path))
    assert json.load(open(path))["a"] == 1


def test_round_trip_through_a_string():
    assert_same(storage.loads(storage.dumps(CONFIG)))


def test_canonical_bytes_notice_every_change():
    changed = {**CONFIG, "d": np.eye(2) + 1e-16 * np.ones((2, 2))}
    reordered = dict(reversed(list(CONFIG.items())))
    assert storage.canonical_bytes(CONFIG) == storage.canonical_bytes(reordered)
    assert storage.canonical_bytes(CONFIG) != storage.canonical_bytes(changed)


def test_missing_arrays_and_broken_files_are_reported(tmp_path):
    path = str(tmp_path / "config.json")
    storage.save(path, CONFIG)
    (tmp_path / "config.npz").unlink()
    with pytest.raises(FileNotFoundError, match=r"config\.npz"):
        storage.load(path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match="not a JSON"):
        storage.load(path)


def test_nan_is_not_written():
    with pytest.raises(ValueError):
        storage.dumps({"a": float("nan")})
