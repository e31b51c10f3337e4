"""In private files, entries are written atomically, and damage is detected."""

import os
import stat
import time

import pytest

from tf_bandmf.files import journal as journal_lib
from tf_bandmf.files import private
from tf_bandmf.files.journal import ENTRY_BYTES, Journal

CONTENT = b"some content"
ENTRIES = [bytes([i]) * ENTRY_BYTES for i in range(1, 4)]


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "secret")


@pytest.fixture
def whole(path):
    """Returns the bytes of a file with entries, and its size before they were added."""
    journal = Journal(path)
    journal.replace(CONTENT)
    size = os.path.getsize(path)
    for entry in ENTRIES:
        journal.append(entry)
    with open(path, "rb") as file:
        return file.read(), size


def write(path, content):
    with open(path, "wb") as file:
        file.write(content)


def test_entries_are_read_after_the_content(path, whole):
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    journal = Journal(path)
    assert journal.read() == (CONTENT, ENTRIES)
    journal.append(ENTRIES[0])
    assert Journal(path).read() == (CONTENT, [*ENTRIES, ENTRIES[0]])
    journal.replace(b"")
    assert Journal(path).read() == (b"", [])
    journal.append(ENTRIES[1])
    assert Journal(path).read() == (b"", [ENTRIES[1]])
    assert os.listdir(os.path.dirname(path)) == ["secret"]


def test_the_old_file_stays_if_writing_fails(path, monkeypatch):
    with pytest.raises(FileNotFoundError):
        Journal(path).read()
    Journal(path).replace(b"old")
    with pytest.raises(TypeError):
        Journal(path).replace(["not bytes"])
    monkeypatch.setattr(private.os, "fsync", lambda _: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        Journal(path).replace(b"half of the n")
    monkeypatch.undo()
    assert Journal(path).read() == (b"old", [])
    assert os.listdir(os.path.dirname(path)) == ["secret"]


def test_every_damaged_byte_is_seen_and_others_may_not_read(path, whole):
    content, size = whole
    damaged = [content[:length] for length in range(size)]
    for place in range(len(content)):
        damaged.append(bytearray(content))
        damaged[-1][place] ^= 1
    for each in damaged:
        write(path, each)
        with pytest.raises(ValueError, match="damaged"):
            Journal(path).read()
    write(path, content)
    os.chmod(path, 0o640)
    with pytest.raises(PermissionError, match="chmod 600"):
        Journal(path).read()


def test_an_entry_is_not_valid_after_different_content_or_at_a_different_place(
    path, whole
):
    content, _ = whole
    other = Journal(path)
    other.replace(CONTENT + b"!")
    with open(path, "rb") as file:
        write(path, file.read() + content[-32:])
    with pytest.raises(ValueError, match="damaged"):
        Journal(path).read()


@pytest.mark.parametrize("fill", [b"", bytes(32), bytes(4096)])
def test_the_end_of_an_interrupted_machine_is_no_entry(path, whole, fill):
    content, size = whole
    for length in range(size, len(content)):
        entries = (length - size) // 32
        # If zeros are appended, the content before them ends with a whole entry.
        end = length if not fill else size + 32 * entries
        write(path, content[:end] + fill)
        journal = Journal(path)
        assert journal.read() == (CONTENT, ENTRIES[:entries])
        journal.append(ENTRIES[2])
        assert Journal(path).read() == (CONTENT, [*ENTRIES[:entries], ENTRIES[2]])


def test_a_full_disk_leaves_whole_entries(path, whole, monkeypatch):
    journal = Journal(path)
    journal.read()
    real = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda number, part: real(number, part[:7]))
        with pytest.raises(OSError, match="full"):
            journal.append(ENTRIES[0])
    journal.append(ENTRIES[0])
    assert Journal(path).read() == (CONTENT, [*ENTRIES, ENTRIES[0]])


def test_syncs_take_a_hundredth_of_the_time(path, whole, monkeypatch):
    now, synced = [0.0], []

    def sync(number):
        synced.append(now[0])
        now[0] += 0.01

    monkeypatch.setattr(journal_lib.os, "fdatasync", sync)
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    journal = Journal(path)
    journal.read()
    for _ in range(1000):
        journal.append(ENTRIES[0])
        now[0] += 0.005
    assert 0.8 <= 0.01 * len(synced) / (0.01 * now[0]) <= 1.2
    assert "secret" in repr(journal)
