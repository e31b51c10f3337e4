"""Program states on disk, as TFF's programs want them.

TFF's `FileProgramStateManager` writes a SavedModel that anybody may read, without a
checksum, and does not wait for the disk. A state of a private process may hold the key.
"""

from __future__ import annotations

from typing import Any

import tensorflow_federated as tff

from tf_bandmf_federated.state_files import StateFiles


class PrivateProgramStateManager(StateFiles, tff.program.ProgramStateManager):
    """A `tff.program.ProgramStateManager` for states that hold secrets: `StateFiles`."""

    async def load(self, version: int, structure: Any) -> Any:
        """As `StateFiles.load`.

        Raises:
          tff.program.ProgramStateNotFoundError: if there is none.
          PermissionError, ValueError: as there.
        """
        try:
            return await super().load(version, structure)
        except FileNotFoundError as error:
            raise tff.program.ProgramStateNotFoundError(version) from error

    async def save(self, program_state: Any, version: int) -> None:
        """As `StateFiles.save`.

        Raises:
          tff.program.ProgramStateExistsError: if there is another state of the version.
          TypeError: as there.
        """
        state = await tff.program.materialize_value(program_state)
        try:
            await super().save(state, version)
        except FileExistsError as error:
            raise tff.program.ProgramStateExistsError(
                version=version, path=self._path(version)
            ) from error
