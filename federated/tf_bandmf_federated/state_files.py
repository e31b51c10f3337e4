"""Program states in files that are private, whole and on the disk when `save` returns.

A state may hold the key of the noise: who may read it is the owner alone.
"""

from __future__ import annotations

import io
import os
import re
import zipfile
from typing import Any, BinaryIO

import numpy as np
import tensorflow as tf
import tree

from tf_bandmf.accounting.checks import whole_number
from tf_bandmf.files import private as private_files

_NAME = re.compile(r"state-(\d{8})$")


class StateFiles:
    """The states of one program, by version.

    Files have mode 0600 and a SHA-256, and are replaced as a whole. Leaves of a state
    are arrays and numbers.

    Args:
      directory: for the states of one program alone; it is created with mode 0700.
      keep_total: how many versions are kept, at least 1.

    Raises:
      ValueError: if `keep_total` is below 1.
    """

    def __init__(self, directory: str, keep_total: int = 2) -> None:
        whole_number("keep_total", keep_total)
        os.makedirs(directory, mode=0o700, exist_ok=True)
        private_files.remove_unfinished(directory)
        self._directory = directory
        self._keep_total = keep_total

    def versions(self) -> list[int]:
        """The versions that are there, in their order."""
        found = map(_NAME.match, os.listdir(self._directory))
        return sorted(int(match.group(1)) for match in found if match)

    def load(self, version: int, structure: Any) -> Any:
        """The state of a version, in the structure of `structure`.

        Raises:
          FileNotFoundError: if there is none.
          PermissionError: if others than the owner may read the file.
          ValueError: if it is damaged, or of another structure.
        """
        path = self._path(version)
        content = private_files.read(path)
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            leaves = [archive[f"leaf_{i}"] for i in range(len(archive.files) - 1)]
            names = archive["names"].tobytes().decode()
        other = f"{path} is the state of another process: "
        if names != _names(structure):
            raise ValueError(f"{other}it holds {names}, expected {_names(structure)}.")
        loaded = [
            _restored(other + name, template, value)
            for name, template, value in zip(
                names.split(" "), tree.flatten(structure), leaves
            )
        ]
        return tree.unflatten_as(structure, loaded)

    def load_latest(self, structure: Any) -> tuple[Any, int]:
        """The newest state and its version; (None, 0) if there is none.

        Raises:
          PermissionError, ValueError: as `load`.
        """
        versions = self.versions()
        if not versions:
            return None, 0
        return self.load(versions[-1], structure), versions[-1]

    def save(self, program_state: Any, version: int) -> None:
        """Saves a state; it is on the disk when this returns.

        Raises:
          FileExistsError: if there is a state of the version.
          TypeError: if a leaf cannot be saved.
        """
        path = self._path(version)
        leaves = [_array(leaf) for leaf in tree.flatten(program_state)]
        if os.path.exists(path):
            raise FileExistsError(f"There is a state of version {version}: {path}.")
        named = {f"leaf_{i}": leaf for i, leaf in enumerate(leaves)}
        names = np.frombuffer(_names(program_state).encode(), np.uint8)
        # In no thread: it would go on writing after this call was cancelled.
        with private_files.written(path) as file:
            _write_archive(file, {"names": names, **named})
        for old in self.versions()[: -self._keep_total]:
            os.unlink(self._path(old))

    def _path(self, version: int) -> str:
        return os.path.join(self._directory, f"state-{int(version):08d}")


def _write_archive(file: BinaryIO, arrays: dict[str, np.ndarray]) -> None:
    """As `np.savez`, which copies large arrays before it writes them."""
    with zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        for name, value in arrays.items():
            value = np.asarray(value, order="C")
            header = np.lib.format.header_data_from_array_1_0(value)
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array_header_1_0(entry, header)
                entry.write(value.reshape(-1).view(np.uint8).data)


def _array(leaf: Any) -> np.ndarray:
    if isinstance(leaf, tf.Tensor):
        leaf = leaf.numpy()
    value = np.asarray(leaf)
    if value.dtype.hasobject:
        raise TypeError(
            f"A program state has arrays and numbers, found {type(leaf).__name__}."
        )
    return value


def _restored(where: str, template: Any, value: np.ndarray) -> Any:
    """A leaf that was saved; raises ValueError if the template is of another kind."""
    expected = np.asarray(template)
    is_plain = isinstance(template, (bool, int, float))  # such a number has no dtype
    same_dtype = is_plain or expected.dtype == value.dtype
    if not same_dtype or expected.ndim != value.ndim:
        raise ValueError(
            f"{where} has dtype {value.dtype} and shape {value.shape}, expected "
            f"{expected.dtype} and as many dimensions as {expected.shape}."
        )
    return type(template)(value) if is_plain else value


def _names(state: Any) -> str:
    """A line that is equal for states of one structure."""
    paths = [".".join(map(str, path)) for path, _ in tree.flatten_with_path(state)]
    return " ".join(paths)
