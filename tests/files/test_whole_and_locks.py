"""Writes of files are atomic, and a lock ends when the process that holds it ends."""

import gc
import os
import shutil
import signal

import pytest
from children import finish, start

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


def locks_in_a_child(path):
    """Returns whether another process can lock the path."""
    code, _, error = finish(*start(lambda say: locks.hold(path)))
    assert code == 0 or "Another process uses" in error, error
    return code == 0


def child_that_holds(path):
    """Starts a child that locks the path until it is killed."""

    def hold(say):
        held = locks.hold(path)
        say(f"{held} is held")
        signal.pause()

    child = start(hold)
    assert os.read(child[1], 1)
    return child


def kill(child):
    os.kill(child[0], signal.SIGKILL)
    finish(*child)


@pytest.mark.invariant(19)
def test_a_copy_that_the_process_makes_does_not_end_its_lock(tmp_path):
    path = str(tmp_path / "folder" / "run.private")
    os.mkdir(os.path.dirname(path))
    held = locks.hold(path)
    shutil.copytree(tmp_path / "folder", tmp_path / "copy")
    assert not locks_in_a_child(path)
    del held
    # As a control, another process can lock the path once the lock is released.
    assert locks_in_a_child(path)


def test_a_fork_that_lives_on_does_not_keep_the_lock(tmp_path):
    path = str(tmp_path / "run.private")
    held = locks.hold(path)
    # The child locks another file, and inherits the lock of this process.
    other = child_that_holds(str(tmp_path / "other"))
    del held
    try:
        assert locks_in_a_child(path)
    finally:
        kill(other)


@pytest.mark.invariant(19)
def test_a_lock_is_of_one_process_until_it_ends(tmp_path):
    path = str(tmp_path / "run.private")
    held, again = locks.hold(path), locks.hold(path)
    assert held is again
    assert not locks_in_a_child(path)
    del held
    gc.collect()
    assert not locks_in_a_child(path)
    del again
    gc.collect()
    assert locks_in_a_child(path)
    other = child_that_holds(path)
    with pytest.raises(BlockingIOError, match=r"Another process uses .*run\.private"):
        locks.hold(path)
    kill(other)
    assert locks.hold(path) is not None
