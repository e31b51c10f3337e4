"""Program states on disk: private, whole, of the structure that they were saved with."""

import asyncio
import collections
import os
import time

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tf_bandmf.files import private as private_files
from tf_bandmf_federated import PrivateProgramStateManager


class Counter:
    """Saved as TFF's own serializable objects are."""

    def __init__(self, count):
        self.count = count

    def to_bytes(self):
        return b"%d" % self.count

    @classmethod
    def from_bytes(cls, buffer):
        return cls(int(buffer))


def state(value):
    return collections.OrderedDict(
        weights=[np.full([2, 3], value, np.float32), tf.constant([value, value])],
        keys=np.array([[2**63 + 1, 5]], np.uint64),
        empty=np.zeros([0], np.float32),
        round=value,
        is_done=False,
        counter=Counter(value),
    )


def run(coroutine):
    return asyncio.run(coroutine)


def test_a_state_is_loaded_as_it_was_saved(tmp_path):
    manager = PrivateProgramStateManager(str(tmp_path / "states"))
    assert run(manager.get_versions()) is None
    assert run(manager.load_latest(state(0))) == (None, 0)
    run(manager.save(state(7), version=3))
    loaded, version = run(manager.load_latest(state(0)))
    assert version == 3
    assert (loaded["round"], loaded["is_done"]) == (7, False)
    assert loaded["counter"].count == 7
    for name in ("keys", "empty"):
        np.testing.assert_array_equal(loaded[name], state(7)[name])
        assert loaded[name].dtype == state(7)[name].dtype
    np.testing.assert_array_equal(loaded["weights"][0], np.full([2, 3], 7.0))
    np.testing.assert_array_equal(loaded["weights"][1], [7, 7])


def test_a_cancelled_save_does_not_go_on_writing(tmp_path, monkeypatch):
    """The program may have been started again meanwhile, and skipped the round."""
    manager = PrivateProgramStateManager(str(tmp_path))
    real, ended = private_files.write, []

    def slow(*arguments):
        time.sleep(0.1)
        real(*arguments)
        ended.append(True)

    monkeypatch.setattr(private_files, "write", slow)

    async def program():
        saving = asyncio.create_task(manager.save(state(0), version=1))
        await asyncio.sleep(0.01)
        saving.cancel()
        await asyncio.wait({saving})
        at_once = len(ended)
        await asyncio.sleep(0.3)
        assert len(ended) == at_once

    run(program())


def test_files_are_private_and_old_versions_go(tmp_path):
    directory = tmp_path / "states"
    manager = PrivateProgramStateManager(str(directory), keep_total=2)
    for version in range(4):
        run(manager.save(state(version), version))
    assert run(manager.get_versions()) == [2, 3]
    assert directory.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}
    with pytest.raises(tff.program.ProgramStateNotFoundError):
        run(manager.load(1, state(0)))
    with pytest.raises(tff.program.ProgramStateExistsError):
        run(manager.save(state(3), 3))
    run(manager.remove_all())
    assert run(manager.get_versions()) is None


def test_damage_other_readers_and_other_structures_are_refused(tmp_path):
    manager = PrivateProgramStateManager(str(tmp_path))
    run(manager.save(state(1), 1))
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    with pytest.raises(ValueError, match="of another process"):
        run(manager.load(1, {"weights": 0}))
    for wrong in (np.zeros([1], np.float64), np.zeros([1, 1], np.float32)):
        other = collections.OrderedDict(state(0), empty=wrong)
        with pytest.raises(ValueError, match="of another process: empty has dtype"):
            run(manager.load(1, other))
    os.chmod(path, 0o640)
    with pytest.raises(PermissionError, match="chmod 600"):
        run(manager.load(1, state(0)))
    os.chmod(path, 0o600)
    for position in range(0, len(whole), 97):
        damaged = bytearray(whole)
        damaged[position] ^= 255
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="damaged"):
            run(manager.load(1, state(0)))


def test_what_cannot_be_saved_is_refused(tmp_path):
    manager = PrivateProgramStateManager(str(tmp_path))
    with pytest.raises(TypeError, match="object"):
        run(manager.save({"x": object()}, 0))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="keep_total"):
        PrivateProgramStateManager(str(tmp_path), keep_total=0)
