"""Files with secrets: mode, checksum and atomic writes."""

import os
import stat

import pytest

from tf_bandmf.files import private as private_files
from tf_bandmf.files.journal import Journal


def test_what_was_written_is_read_and_only_the_owner_may(tmp_path):
    path = str(tmp_path / "secret")
    Journal(path).replace(b"first")
    Journal(path).replace(b"")
    assert Journal(path).read()[0] == b""
    Journal(path).replace(b"second")
    assert Journal(path).read()[0] == b"second"
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert os.listdir(tmp_path) == ["secret"]


def test_the_old_file_stays_if_writing_fails(tmp_path, monkeypatch):
    path = str(tmp_path / "secret")
    Journal(path).replace(b"old")
    with pytest.raises(TypeError):
        Journal(path).replace(["not bytes"])
    monkeypatch.setattr(private_files.os, "fsync", lambda _: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        Journal(path).replace(b"half of the n")
    monkeypatch.undo()
    assert Journal(path).read()[0] == b"old"
    assert os.listdir(tmp_path) == ["secret"]


def test_no_file_is_a_file_not_found(tmp_path):
    with pytest.raises(FileNotFoundError):
        Journal(str(tmp_path / "none")).read()
