"""Loads files of the repository as modules."""

import importlib.util
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]


def module_at(path):
    """Loads a file as a module; the path is relative to the repository root."""
    path = ROOT / path
    spec = importlib.util.spec_from_file_location(f"loaded_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
