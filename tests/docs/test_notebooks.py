"""The notebooks' scripts run, and each notebook matches its script and has outputs."""

import json
import sys
import types
import warnings

import pytest
from modules import ROOT

pytest.importorskip("keras", minversion="3.12")
pytest.importorskip("sklearn")
matplotlib = pytest.importorskip("matplotlib")

from tf_bandmf.keras.run import admission  # noqa: E402

FOLDER = ROOT / "docs" / "notebooks"
NAMES = sorted(p.stem for p in FOLDER.glob("*.py") if p.stem != "make")
# For each notebook script, text replacements that make it faster. Each text to be
# replaced must occur in the script.
SMALLER = {
    "first_private_model": {"EPOCHS = 10": "EPOCHS = 1"},
    "lora": {
        "EPOCHS = 12": "EPOCHS = 1",
        "sentences(8000, PRIVATE)": "sentences(800, PRIVATE)",
        "epochs=10": "epochs=1",
    },
}


def test_there_are_notebooks():
    assert {"choosing_a_mechanism", "federated", "first_private_model"} <= set(NAMES)
    assert set(SMALLER) <= set(NAMES)
    assert NAMES == sorted(p.stem for p in FOLDER.glob("*.ipynb"))


def script_of(cells):
    """Returns a notebook's cells as a script in jupytext's percent format."""
    parts = []
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            lines = [f"# {line}".rstrip() for line in source.split("\n")]
            parts.append("\n".join(["# %% [markdown]", *lines]))
        else:
            parts.append(f"# %%\n{source}")
    return parts


def without_empty_lines(text):
    return [line for line in text.split("\n") if line.strip()]


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_its_script_with_outputs(name):
    notebook = json.loads((FOLDER / f"{name}.ipynb").read_text("utf-8"))
    made = "\n".join(script_of(notebook["cells"]))
    script = (FOLDER / f"{name}.py").read_text("utf-8")
    assert without_empty_lines(made) == without_empty_lines(script), (
        f"{name}.ipynb does not match {name}.py. Run: make notebooks"
    )
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert not any(o["output_type"] == "error" for o in outputs)
    assert any("image/png" in o.get("data", {}) for o in outputs)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_script_of_a_notebook_runs(name, tmp_path, monkeypatch):
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "federated"))
    if name == "lora":
        pytest.importorskip("keras_hub")
    code = (FOLDER / f"{name}.py").read_text("utf-8")
    for old, new in SMALLER.get(name, {}).items():
        assert old in code
        code = code.replace(old, new)
    module = types.ModuleType("notebook")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    admission.forget()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(code, f"{name}.py", "exec"), vars(module))
    admission.forget()
    matplotlib.pyplot.close("all")
