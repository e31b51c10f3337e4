"""Selects the tests that this environment can run, and ends TFF's workers.

Modules that do not depend on an engine are tested wherever the core runs; the others need
TensorFlow Federated. Its worker must not outlive the tests: it would keep output open.
"""

import atexit
import importlib.util
import os
import pathlib
import re
import sys

import pytest

# The plugins define the markers `attack`, `invariant` and `slow_cases`, and their options.
pytest_plugins = ["attack_report", "invariant_marks", "slow_marks"]

# The user's cache is the user's.
os.environ["TF_BANDMF_CACHE"] = "off"

# Tests share modules of this folder, such as `simulated`.
sys.path.insert(0, str(pathlib.Path(__file__).parent))

if importlib.util.find_spec("tensorflow_federated"):
    import psutil

    @atexit.register
    def end_workers():
        """Kills TFF's workers, since TFF's own way of ending them may wait for ever."""
        for child in psutil.Process().children(recursive=True):
            if child.name() == "worker_binary":
                child.kill()

else:
    engines = re.compile("import tensorflow_(federated|privacy)")
    files = pathlib.Path(__file__).parent.glob("test_*.py")
    collect_ignore = [f.name for f in files if engines.search(f.read_text("utf-8"))]

# Tests that need Flower are in a folder because they need their own conftest.
if not importlib.util.find_spec("flwr"):
    collect_ignore = [*globals().get("collect_ignore", []), "flower"]


@pytest.fixture
def path(tmp_path):
    """Path of a ledger in a folder of its own."""
    folder = tmp_path / "run"
    folder.mkdir(mode=0o700)
    return str(folder / "ledger.sqlite3")
