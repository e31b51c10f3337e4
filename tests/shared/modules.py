"""Files of the repository as modules, whatever folder they stand in."""

import importlib.util
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]


def module_at(path):
    """The module of a file, whose path begins at the root of the repository."""
    path = ROOT / path
    spec = importlib.util.spec_from_file_location(f"loaded_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
