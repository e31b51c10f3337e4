"""Configurations with arrays as text."""

import numpy as np
import pytest

from tf_bandmf.files import configs

CONFIG = {"a": 1, "b": [1.5, None, {"c": np.arange(3.0)}], "d": np.eye(2)}


def assert_same(config):
    assert config["a"] == 1
    assert config["b"][:2] == [1.5, None]
    np.testing.assert_array_equal(config["b"][2]["c"], np.arange(3.0))
    np.testing.assert_array_equal(config["d"], np.eye(2))


def test_round_trip_through_a_string():
    assert_same(configs.loads(configs.dumps(CONFIG)))
    assert_same(configs.loads(configs.dumps(CONFIG, indent=2)))


def test_canonical_bytes_notice_every_change():
    changed = {**CONFIG, "d": np.eye(2) + 1e-16 * np.ones((2, 2))}
    reordered = dict(reversed(list(CONFIG.items())))
    assert configs.canonical_bytes(CONFIG) == configs.canonical_bytes(reordered)
    assert configs.canonical_bytes(CONFIG) != configs.canonical_bytes(changed)


def test_nan_is_not_written():
    with pytest.raises(ValueError, match="not JSON compliant"):
        configs.dumps({"a": float("nan")})
