"""States on disk, of any engine: private, whole, and never written over."""

import collections
import os

import numpy as np
import pytest

from tf_bandmf_federated.state_files import StateFiles


def state(value):
    return collections.OrderedDict(
        round=np.int64(value), weights=[np.full([2, 3], value, np.float32)]
    )


def test_the_newest_one_is_loaded_and_the_oldest_go(tmp_path):
    files = StateFiles(str(tmp_path), keep_total=2)
    assert files.load_latest(state(0)) == (None, 0)
    for version in range(4):
        files.save(state(version), version)
    assert files.versions() == [2, 3]
    found, version = files.load_latest(state(0))
    assert version == 3 and found["round"] == 3
    np.testing.assert_array_equal(found["weights"][0], state(3)["weights"][0])


def test_missing_existing_and_damaged_are_errors(tmp_path):
    files = StateFiles(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        files.load(1, state(0))
    files.save(state(1), 1)
    with pytest.raises(FileExistsError, match="version 1"):
        files.save(state(2), 1)
    with pytest.raises(ValueError, match="another process"):
        files.load(1, {"else": np.zeros(3)})
    path = tmp_path / "state-00000001"
    assert path.stat().st_mode & 0o077 == 0
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="damaged"):
        files.load(1, state(0))
    os.chmod(path, 0o644)
    with pytest.raises(PermissionError):
        files.load(1, state(0))


def test_objects_without_a_file_format_are_refused(tmp_path):
    with pytest.raises(TypeError, match="arrays and numbers"):
        StateFiles(str(tmp_path)).save({"a": object()}, 0)


def test_arrays_of_every_layout_come_back(tmp_path):
    files = StateFiles(str(tmp_path))
    rng = np.random.default_rng(0)
    saved = {
        "large": rng.normal(size=[700, 900]).astype(np.float32),  # hashed by a thread
        "columns first": np.asfortranarray(rng.normal(size=[3, 4])),
        "every second": rng.integers(9, size=[4, 6])[:, ::2],
        "none": np.zeros([0, 2], np.float32),
        "scalar": np.float32(0.5),
        "flag": np.array([True, False]),
    }
    files.save(saved, 0)
    found = files.load(0, saved)
    for name, value in saved.items():
        assert found[name].dtype == value.dtype and found[name].shape == value.shape
        np.testing.assert_array_equal(found[name], value)


def test_numbers_keep_their_kind_and_other_structures_are_refused(tmp_path):
    files = StateFiles(str(tmp_path))
    saved = {"round": 7, "is_done": False, "keys": np.array([2**63 + 1], np.uint64)}
    files.save(saved, 0)
    found = files.load(0, {**saved, "round": 0})
    assert (found["round"], found["is_done"]) == (7, False)
    assert found["keys"].dtype == np.uint64 and found["keys"][0] == 2**63 + 1
    for wrong in (np.zeros([1], np.float64), np.zeros([1, 1], np.uint64)):
        with pytest.raises(ValueError, match="of another process: keys has dtype"):
            files.load(0, {**saved, "keys": wrong})
    with pytest.raises(ValueError, match="keep_total"):
        StateFiles(str(tmp_path), keep_total=0)
