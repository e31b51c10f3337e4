"""Selects the tests that this environment can run, and kills TFF's workers.

Tests that import TensorFlow Federated (TFF) or Flower run only if it is installed. All
other tests always run. TFF's worker processes are killed after the tests, because a
worker that still runs keeps the output pipe open.
"""

import atexit
import importlib.util
import os
import pathlib
import re

import pytest

# The plugin `marks` defines the markers `attack`, `invariant` and `slow_cases`.
pytest_plugins = ["marks"]

# Tests must neither read nor write the user's cache of optimized strategies.
os.environ["TF_BANDMF_CACHE"] = "off"

if importlib.util.find_spec("tensorflow_federated"):
    import psutil

    @atexit.register
    def end_workers():
        """Kills TFF's workers, because TFF may wait forever for them to end."""
        for child in psutil.Process().children(recursive=True):
            if child.name() == "worker_binary":
                child.kill()

else:
    engines = re.compile("import tensorflow_(federated|privacy)")
    files = pathlib.Path(__file__).parent.glob("test_*.py")
    collect_ignore = [f.name for f in files if engines.search(f.read_text("utf-8"))]

# Tests that need Flower are in the folder `flower`, which has its own conftest.
if not importlib.util.find_spec("flwr"):
    collect_ignore = [*globals().get("collect_ignore", []), "flower"]


@pytest.fixture
def ledger(tmp_path):
    from tf_bandmf_federated import Ledger

    with Ledger(str(tmp_path / "ledger"), {}) as actual:
        yield actual


@pytest.fixture
def path(tmp_path):
    """Returns the path for a ledger, in a new private folder."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    return str(folder / "ledger.sqlite3")
