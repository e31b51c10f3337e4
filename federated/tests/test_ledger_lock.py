"""Only one program can use a ledger, even if files are copied, linked or deleted."""

import os
import shutil
import signal
import subprocess
import sys

import pytest
from children import fork
from ledgers import COHORT, RUN, begin_round, rounds_of

from tf_bandmf_federated import Ledger


@pytest.fixture
def folder(path):
    return os.path.dirname(path)


class Other:
    """A process, forked before any ledger is open, that opens a ledger on request."""

    def __init__(self, path):
        (reading, self._told), (self._answer, writing) = os.pipe(), os.pipe()
        self._child = fork()
        if self._child:
            return
        while os.read(reading, 1):
            try:
                rounds_of(path)
                os.write(writing, b"opened")
            except BlockingIOError:
                os.write(writing, b"refused")
            except BaseException as error:
                os.write(writing, repr(error).encode())
        os._exit(0)

    def opens(self):
        os.write(self._told, b"x")
        return os.read(self._answer, 1000).decode()

    def end(self):
        os.kill(self._child, signal.SIGKILL)
        os.waitpid(self._child, 0)


@pytest.mark.attack(
    "Two programs of one run (federated training)",
    tried="While a program runs, it copies its folder and reads its ledger's file: a "
    "second program is still refused.",
    area="faults",
)
@pytest.mark.invariant(8)
def test_a_copy_that_the_program_makes_does_not_end_its_lock(path, folder):
    other = Other(path)
    try:
        with Ledger(path, RUN) as ledger:
            begin_round(ledger, 0, COHORT)
            assert other.opens() == "refused"
            shutil.copytree(folder, folder + " copied")
            with open(path, "rb") as file:
                file.read()
            assert other.opens() == "refused"
        # As a control, the other process can open the closed ledger.
        assert other.opens() == "opened"
    finally:
        other.end()


def test_a_link_is_the_file_that_it_leads_to(path, tmp_path):
    link, other = str(tmp_path / "link"), Other(str(tmp_path / "link"))
    try:
        with Ledger(path, RUN) as ledger:
            os.symlink(path, link)
            shutil.copy2(path, path + ".copied")
            assert other.opens() == "refused"
            begin_round(ledger, 0, COHORT)
        assert other.opens() == "opened"
        assert len(rounds_of(link)) == 1
    finally:
        other.end()


def test_a_ledger_with_another_name_is_refused(path, folder):
    name = folder + ".linked"
    other = Other(name)
    try:
        with Ledger(path, RUN) as ledger:
            os.link(path, name)
            # Copying the file releases SQLite's locks.
            shutil.copy2(path, path + ".copied")
            assert "a second name (a hard link)" in other.opens()
            begin_round(ledger, 0, COHORT)
        with pytest.raises(OSError, match="a second name"):
            rounds_of(path)
        os.unlink(path + ".copied")
        os.unlink(name)
        assert len(rounds_of(path)) == 1
    finally:
        other.end()


PROGRAM = f"""
import gc, os, sys
from tf_bandmf_federated import Ledger

ledger = Ledger(sys.argv[1], {RUN!r})
ledger.finished(-1, {{"a": 0}})
ledger.released(-1)
child = os.fork()
if child == 0:
    ledger.close()
    del ledger
    gc.collect()  # as at the end of a program
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
ledger.started(0, ("a", "b"))
"""


def test_a_fork_that_ends_leaves_the_journal_to_the_program(path):
    # Run the program in a new process, because a fork of this process could not free
    # TensorFlow's objects.
    subprocess.run([sys.executable, "-c", PROGRAM, path], check=True)
    assert len(rounds_of(path)) == 1


@pytest.mark.parametrize("end", ["", "-wal"], ids=["the ledger", "its journal"])
@pytest.mark.parametrize("how", ["deleted", "replaced"])
def test_a_round_does_not_begin_in_a_file_that_is_gone(path, end, how):
    with Ledger(path, RUN) as ledger:
        begin_round(ledger, 0, COHORT)
        if how == "deleted":
            os.unlink(path + end)
        else:
            shutil.copy2(path + end, path + ".new")
            os.replace(path + ".new", path + end)
        with pytest.raises(OSError, match="deleted, moved or replaced"):
            ledger.finished(0, {"a": 1})
        with pytest.raises(ValueError, match="is closed"):
            ledger.finished(0, {"a": 1})
