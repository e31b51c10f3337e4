"""Examples in TFRecord files that do not fit into memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tqdm

from tf_bandmf.sampling.sources import INPUTS, ExampleSource

# A record in a file: its length, a checksum of the length, its bytes, their checksum.
_BEFORE, _AFTER = 12, 4
_AT_ONCE = 256


class TFRecordExamples(ExampleSource):
    """The records of TFRecord files, one example each, read by index.

    One pass over the files finds where every record lies, verifies their checksums and
    hashes them (some 50 bytes of memory for each). Batches then read only their own
    records: a file that was changed in the meantime raises an error. The order of the
    files and of their records is the order of the examples. A `schedule_id` covers every
    record and what `parse` makes of a few of them, but neither the files' names nor how
    the records are spread over them.

    Args:
      files: paths of uncompressed TFRecord files on a mounted file system.
      parse: function from one serialized record, a string scalar, to `x`, `(x, y)` or
        `(x, y, sample_weight)`, of static shapes; it runs in a graph. It must be a pure
        function, as `map` of `Plan.batches`. A record on which it fails becomes a row of
        zeros with weight 0.

    Raises:
      ValueError: if there are no records, or a file is not an uncompressed TFRecord file.
      FileNotFoundError: if a file is missing.
    """

    may_fail = False
    _changed = (
        "A TFRecord file was changed while it was in use: record {place} is not what it "
        "was. Restore the file."
    )

    def __init__(self, files: Sequence[str], parse: Callable[[tf.Tensor], Any]) -> None:
        if isinstance(files, (str, os.PathLike)):
            files = [files]
        self.parse, self._files = parse, [os.fspath(file) for file in files]
        # File, first byte and length of each record.
        places: list[tuple[int, int, int]] = []
        shown = tqdm.tqdm(self._files, desc="finding the records", delay=2.0)
        for number, file in enumerate(shown):
            size, end = os.path.getsize(file), 0
            try:
                for batch in tf.data.TFRecordDataset(file).batch(_AT_ONCE):
                    for length in tf.strings.length(batch).numpy().tolist():
                        places.append((number, end + _BEFORE, length))
                        end += _BEFORE + length + _AFTER
            except tf.errors.DataLossError:
                end = -1
            if end != size:
                raise ValueError(
                    f"{file} is damaged, changes, or is no uncompressed TFRecord file: "
                    f"compressed ones cannot be read by index. Decompress it."
                )
        if not places:
            raise ValueError(f"There are no records in {self._files}.")
        self._places = np.array(places, np.int64)
        super().__init__(len(places), {INPUTS: np.array([b""], object)})
        self.read_all()

    def _read(self, indices: np.ndarray) -> list[np.ndarray]:
        records = np.empty(len(indices), object)
        numbers = self._places[indices, 0]
        for number in np.unique(numbers):
            with open(self._files[number], "rb") as file:
                for place in np.flatnonzero(numbers == number):
                    _, start, length = self._places[indices[place]]
                    file.seek(start)
                    records[place] = file.read(length)
        return [records]
