"""Writes are atomic, and locks end with their process."""

import gc
import os
import shutil
import signal

import pytest
from children import fork

from tf_bandmf.files import locks, private


def test_a_file_is_replaced_as_a_whole(tmp_path):
    path = tmp_path / "a.weights.h5"
    for text in ("first", "second"):
        with private.replaced(path) as unfinished:
            assert unfinished.endswith(".weights.h5")
            assert os.path.dirname(unfinished) == str(tmp_path)
            with open(unfinished, "w") as file:
                file.write(text)
        assert path.read_text() == text
    with pytest.raises(KeyboardInterrupt), private.replaced(path) as unfinished:
        with open(unfinished, "w") as file:
            file.write("half")
        raise KeyboardInterrupt
    assert path.read_text() == "second"
    assert os.listdir(tmp_path) == ["a.weights.h5"]


HELD, NOT_LOCKED, REFUSED = 0, 1, 3


def in_a_child(path, hold_on=False):
    """Locks the path in a child; returns its exit code, or its id if it keeps the lock."""
    ready, begun = os.pipe()
    child = fork()
    if child == 0:
        try:
            held = locks.hold(path)
        except BlockingIOError:
            os._exit(REFUSED)
        os.write(begun, b"x")
        if hold_on:
            signal.pause()
        os._exit(NOT_LOCKED if held is None else HELD)
    if hold_on:
        assert os.read(ready, 1) == b"x"
        return child
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.invariant(19)
def test_a_copy_that_the_process_makes_does_not_end_its_lock(tmp_path):
    path = str(tmp_path / "folder" / "run.private")
    os.mkdir(os.path.dirname(path))
    held = locks.hold(path)
    shutil.copytree(tmp_path / "folder", tmp_path / "copy")
    assert in_a_child(path) == REFUSED
    del held
    assert in_a_child(path) == HELD  # the control


def test_a_fork_that_lives_on_does_not_keep_the_lock(tmp_path):
    path = str(tmp_path / "run.private")
    held = locks.hold(path)
    # The child holds its own lock, and inherits this process's lock.
    other = in_a_child(str(tmp_path / "other"), hold_on=True)
    del held
    try:
        assert in_a_child(path) == HELD
    finally:
        os.kill(other, signal.SIGKILL)
        os.waitpid(other, 0)


@pytest.mark.invariant(19)
def test_a_lock_is_of_one_process_until_it_ends(tmp_path):
    path = str(tmp_path / "run.private")
    held, again = locks.hold(path), locks.hold(path)
    assert held is again
    assert in_a_child(path) == 3
    del held
    gc.collect()
    assert in_a_child(path) == 3
    del again
    gc.collect()
    assert in_a_child(path) == 0
    other = in_a_child(path, hold_on=True)
    with pytest.raises(BlockingIOError, match=r"Another process uses .*run\.private"):
        locks.hold(path)
    os.kill(other, signal.SIGKILL)
    os.waitpid(other, 0)
    assert locks.hold(path) is not None
