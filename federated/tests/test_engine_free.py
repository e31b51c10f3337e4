"""Engine-independent modules import no engine."""

import ast
import importlib
import pathlib
import subprocess
import sys

import pytest

import tf_bandmf_federated

ROOT = pathlib.Path(tf_bandmf_federated.__file__).parent
ENGINES = ("tensorflow_federated", "tensorflow_privacy", "flwr")
# Modules that must not depend on an engine.
FREE = sorted(
    path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
    for path in ROOT.rglob("*.py")
    if not any(
        f"import {e}" in (t := path.read_text()) or f"from {e}" in t for e in ENGINES
    )
)
PUBLIC = (
    "FederatedAveraging",
    "Ledger",
    "RoundRecord",
    "measured_guarantee",
    "write_report",
)

_PROGRAM = """
import ast
import importlib
import sys

ENGINES = ("tensorflow_federated", "tensorflow_privacy", "flwr")

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ENGINES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import tf_bandmf_federated

for name in sys.argv[1].split():
    importlib.import_module("tf_bandmf_federated." + name)
for name in sys.argv[2].split():
    getattr(tf_bandmf_federated, name)
print("imported")
"""


def test_they_import_without_an_engine():
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, " ".join(FREE), " ".join(PUBLIC)],
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["imported"], done.stderr[-2000:]


def test_what_needs_the_engine_says_so():
    if importlib.util.find_spec("tensorflow_federated"):
        pytest.skip("TensorFlow Federated is here")
    with pytest.raises(ModuleNotFoundError, match="tensorflow_federated"):
        tf_bandmf_federated.build_fed_avg  # noqa: B018


# Layers, from engines down to devices: a file imports only files of lower layers.
LAYERS = [
    "flower tff",
    "averaging rounds",
    "cohorts round_noise server_optimizers",
    "ledger health report",
    "accounting ledger_lock state_rows",
    "device_store exact_sum",
    "clipping device_policy",
    "eligibility large_vectors plan_checks",
    "__init__",
    "_version",
]


def test_files_import_only_what_is_below_them():
    root = ROOT
    layer = {name: i for i, line in enumerate(LAYERS) for name in line.split()}
    files = {path.stem for path in root.iterdir() if path.suffix == ".py"}
    assert set(layer) == {*files, "flower", "tff"}
    for path in root.rglob("*.py"):
        place = path.relative_to(root).with_suffix("").parts[0]
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.ImportFrom):
                continue
            package, _, module = (node.module or "").partition(".")
            if package == "tf_bandmf_federated":
                below = (module or node.names[0].name).split(".")[0]
                assert below == place or layer[below] > layer[place], (path, below)
