"""Keeps secrets out of the app bundle that Flower sends to every node."""

from __future__ import annotations

import pathlib

# The pyproject.toml of every Flower app has this section.
_APP = "tool.flwr"


def check_outside_of_apps(folder: str, what: str) -> None:
    """Raises ValueError if a folder is the folder of a Flower app, or is inside it.

    `flwr run` bundles the files in an app's folder and sends them to every SuperNode.

    Args:
      folder: folder for private files.
      what: description of the folder, for the error message.
    """
    place = pathlib.Path(folder).resolve()
    for parent in (place, *place.parents):
        project = parent / "pyproject.toml"
        if project.is_file() and _APP in project.read_text(errors="replace"):
            raise ValueError(
                f"{what} must be outside of a Flower app, but found {folder} in the "
                f"app at {parent}. `flwr run` sends an app's files to every node. "
                f"Choose a folder outside of the app."
            )
