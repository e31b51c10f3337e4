"""Which tests run here, and the end of TFF's workers.

Modules that know no engine are tested wherever the core runs; the others need TensorFlow
Federated. Its worker must not outlive the tests: it would keep their output open.
"""

import atexit
import importlib.util
import os
import pathlib
import sys

# The marker `attack`, for the page "what was attacked"; `invariant`, and its option;
# `slow_cases`.
pytest_plugins = ["attack_report", "invariant_marks", "slow_marks"]

# The user's cache is the user's.
os.environ["TF_BANDMF_CACHE"] = "off"

# Tests of modules that import neither TensorFlow Federated nor TensorFlow Privacy.
ENGINE_FREE = {
    "test_accounting.py",
    "test_clipping.py",
    "test_cohorts.py",
    "test_device_store.py",
    "test_engine_free.py",
    "test_exact_sum.py",
    "test_golden_reports.py",
    "test_round_noise.py",
    "test_large_vectors.py",
    "test_ledger.py",
    "test_report.py",
    "test_reuse.py",
    "test_run_killed.py",
    "test_running.py",
    "test_secret_words.py",
    "test_server_optimizers.py",
}

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
    files = pathlib.Path(__file__).parent.glob("test_*.py")
    collect_ignore = [file.name for file in files if file.name not in ENGINE_FREE]

# On Flower's stack only; a folder, because it has a conftest of its own.
if not importlib.util.find_spec("flwr"):
    collect_ignore = [*globals().get("collect_ignore", []), "flower"]
