"""Runs the scripts in this folder, and writes them as notebooks with outputs.

    make notebooks
    python docs/notebooks/make.py [NAME ...]

The scripts are the source; `tests/docs/test_notebooks.py` runs them and checks that each
notebook matches its script.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import tempfile

import jupytext
import nbclient
import nbformat

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="of scripts; all by default")
    names = parser.parse_args().names
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{ROOT / 'federated'}"
    for path in sorted(HERE.glob("*.py")):
        if path.name == "make.py" or (names and path.stem not in names):
            continue
        made = path.with_suffix(".ipynb")
        nbformat.write(executed(path), made)
        print(made.relative_to(ROOT))


def executed(path: pathlib.Path) -> nbformat.NotebookNode:
    """Runs a script in an empty folder and returns its notebook."""
    notebook = jupytext.read(path)
    notebook.metadata = {
        "kernelspec": {
            "name": "python3",
            "display_name": "Python 3",
            "language": "python",
        }
    }
    with tempfile.TemporaryDirectory() as folder:
        client = nbclient.NotebookClient(
            notebook,
            timeout=900,
            kernel_name="python3",
            resources={"metadata": {"path": folder}},
        )
        client.execute()
    for i, cell in enumerate(notebook.cells):
        # Removes everything that differs from run to run.
        cell.id = f"cell-{i}"
        cell.metadata = {}
        if cell.cell_type == "code":
            # Log lines of TensorFlow.
            cell.outputs = [o for o in cell.outputs if o.get("name") != "stderr"]
    notebook.metadata.pop("language_info", None)
    return notebook


if __name__ == "__main__":
    main()
