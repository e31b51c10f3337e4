"""Some modules can be imported without TensorFlow Federated or Flower installed."""

import importlib
import pathlib

import pytest
from children import printed

import tf_bandmf_federated

ROOT = pathlib.Path(tf_bandmf_federated.__file__).parent
ENGINES = ("tensorflow_federated", "tensorflow_privacy", "flwr")
# This lists all modules that import none of the packages in `ENGINES`.
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
import importlib
import sys

# Importing a module that is None raises ModuleNotFoundError.
sys.modules.update(tensorflow_federated=None, tensorflow_privacy=None, flwr=None)
import tf_bandmf_federated

for name in sys.argv[1].split():
    importlib.import_module("tf_bandmf_federated." + name)
for name in sys.argv[2].split():
    getattr(tf_bandmf_federated, name)
print("imported")
"""


def test_they_import_without_an_engine():
    names = " ".join(FREE), " ".join(PUBLIC)
    assert printed("-c", _PROGRAM, *names).split() == ["imported"]


def test_what_needs_the_engine_says_so():
    if importlib.util.find_spec("tensorflow_federated"):
        pytest.skip("TensorFlow Federated is installed")
    with pytest.raises(ModuleNotFoundError, match="tensorflow_federated"):
        tf_bandmf_federated.build_fed_avg  # noqa: B018
