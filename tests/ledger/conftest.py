"""Provides ledgers in SQLite files and on a temporary PostgreSQL server."""

import glob
import itertools
import os
import pathlib
import shutil
import subprocess
import tempfile

import pytest

import tf_bandmf

pytest.importorskip("sqlalchemy")

BACKENDS = ("sqlite", "postgresql")


def server_programs():
    """Returns the folder that contains `initdb` and `pg_ctl`, or None."""
    folders = sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True)
    path = os.pathsep.join([os.environ["PATH"], *folders])
    program = shutil.which("pg_ctl", path=path)
    return pathlib.Path(program).resolve().parent if program else None


class Server:
    """A PostgreSQL server that listens only on a Unix socket in its own folder."""

    def __init__(self, programs):
        # PostgreSQL refuses to run as root.
        user = "nobody" if os.geteuid() == 0 else None
        self._programs, self._user = programs, user
        # Operating systems limit the length of a socket's path, so the path is short.
        self.folder = tempfile.mkdtemp(prefix="tf-bandmf-pg-", dir="/tmp")
        if user:
            shutil.chown(self.folder, user)
        self._run(
            "initdb", "-D", f"{self.folder}/data", "-U", "tester", "-A", "trust", "-N"
        )
        options = f"-k {self.folder} -c listen_addresses='' -c fsync=off"
        self._run(
            *("pg_ctl", "-D", f"{self.folder}/data", "-o", options),
            *("-l", f"{self.folder}/log", "-w", "start"),
        )
        self._numbers = itertools.count()

    def _run(self, program, *arguments):
        subprocess.run(
            [str(self._programs / program), *arguments],
            check=True,
            cwd=self.folder,
            timeout=300,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **({"user": self._user} if self._user else {}),
        )

    def stop(self):
        self._run("pg_ctl", "-D", f"{self.folder}/data", "-m", "immediate", "stop")
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database):
        return f"postgresql://tester@/{database}?host={self.folder}"

    def new_database(self):
        import psycopg

        name = f"ledger_{next(self._numbers)}"
        place = f"host={self.folder} user=tester dbname=postgres"
        with psycopg.connect(place, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.url(name)


@pytest.fixture(scope="session")
def postgresql():
    pytest.importorskip("psycopg")
    programs = server_programs()
    if programs is None:
        pytest.skip("no PostgreSQL server is installed (Debian: postgresql)")
    server = Server(programs)
    yield server
    server.stop()


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/privacy.db"


@pytest.fixture(params=BACKENDS)
def each_url(request, url):
    if request.param == "sqlite":
        return url
    return request.getfixturevalue("postgresql").new_database()


@pytest.fixture
def ledger(each_url):
    return tf_bandmf.Ledger(each_url, who="tester")


@pytest.fixture
def file_ledger(url):
    return tf_bandmf.Ledger(url, who="tester")
