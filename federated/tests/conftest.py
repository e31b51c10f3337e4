"""Which tests run here, and the end of TFF's workers.

Modules that know no engine are tested wherever the core runs; the others need TensorFlow
Federated. Its worker must not outlive the tests: it would keep their output open.
"""

import atexit
import importlib.util
import os
import pathlib
import re
import sys

# The marker `attack`, for the page "what was attacked"; `invariant`, and its option;
# `slow_cases`.
pytest_plugins = ["attack_report", "invariant_marks", "slow_marks"]

# The user's cache is the user's.
os.environ["TF_BANDMF_CACHE"] = "off"

# Tests share modules of this folder, such as `simulated`.
sys.path.insert(0, str(pathlib.Path(__file__).parent))

if importlib.util.find_spec("tensorflow_federated"):
    import psutil

    @atexit.register
    def end_workers():
        """TFF's own way of ending its worker may wait for ever."""
        for child in psutil.Process().children(recursive=True):
            if child.name() == "worker_binary":
                child.kill()

else:
    engines = re.compile("import tensorflow_(federated|privacy)")
    files = pathlib.Path(__file__).parent.glob("test_*.py")
    collect_ignore = [f.name for f in files if engines.search(f.read_text("utf-8"))]

# On Flower's stack only; a folder, because it has a conftest of its own.
if not importlib.util.find_spec("flwr"):
    collect_ignore = [*globals().get("collect_ignore", []), "flower"]
