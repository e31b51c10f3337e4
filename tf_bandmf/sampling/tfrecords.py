"""Examples in TFRecord files that do not fit into memory."""

from __future__ import annotations

import array
import hashlib
import os
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np
import tensorflow as tf
import tqdm

from tf_bandmf.sampling.failing import each_that_works
from tf_bandmf.sampling.purity import may_fail, refused_operation
from tf_bandmf.sampling.record_identity import hash_rows, probed_places
from tf_bandmf.sampling.row_kinds import Block, KeptExamples, RowKinds
from tf_bandmf.sampling.sources import named_parts

# A record in a file: its length, a checksum of the length, its bytes, their checksum.
_BEFORE, _AFTER = 12, 4
_RECORDS_AT_ONCE = 256
_EXAMPLE = "An example must be"


class TFRecordExamples(KeptExamples):
    """The records of TFRecord files, one example each, read by index.

    One pass over the files finds where every record lies (32 bytes of memory for each),
    hashes all of them, and verifies their checksums. Batches then read only their own
    records, and verify them: a file that was changed in the meantime raises an error.
    The order of the files and of their records is the order of the examples. A
    `schedule_id` covers every byte of every record and what `parse` makes of a few of
    them, but neither the files' names nor how the records are spread over them.

    Args:
      files: paths of uncompressed TFRecord files on a mounted file system.
      parse: function from one serialized record, a string scalar, to `x`, `(x, y)` or
        `(x, y, sample_weight)`, of static shapes; it runs in a graph. It must be a pure
        function: state, random numbers and Python code are refused. A record on which
        it fails becomes a row of zeros with weight 0.

    Raises:
      ValueError: if there are no records, a file is not an uncompressed TFRecord file,
        a shape is not static, or `parse` has state or might not terminate.
      FileNotFoundError: if a file is missing.
    """

    _changed = (
        "parse makes something else of record {place} than before. An index must mean one "
        "example: augment in plan.batches(..., map=function)."
    )

    def __init__(
        self,
        files: Sequence[str],
        parse: Callable[[tf.Tensor], Any],
    ) -> None:
        if isinstance(files, (str, os.PathLike)):
            files = [files]
        self._files = [os.fspath(file) for file in files]
        # Converted by AutoGraph, as in `Dataset.map`.
        self._parse = tf.function(parse)
        self._index()
        if not self._lengths.size:
            raise ValueError(f"There are no records in {self._files}.")
        self._spec = self._element_spec()
        blank = tf.nest.map_structure(
            lambda s: np.zeros((1, *s.shape), s.dtype.as_numpy_dtype), self._spec
        )
        super().__init__(RowKinds([blank]), self._lengths.size)
        # What `parse` makes of a few records: another one makes other data.
        places = probed_places(self.num_examples)
        self.gather(tf.constant(places))
        self._sample = self._hashes[places].tobytes()

    def _index(self) -> None:
        """Finds where every record is, and hashes all of them, in one pass."""
        digest = hashlib.blake2b(digest_size=32)
        # File, first byte, length and hash of each record, one after another.
        places = array.array("q")
        shown = tqdm.tqdm(self._files, desc="finding the records", delay=2.0)
        for number, file in enumerate(shown):
            size, end = os.path.getsize(file), 0
            try:
                for batch in tf.data.TFRecordDataset(file).batch(_RECORDS_AT_ONCE):
                    hashes = hash_rows(batch).numpy()
                    for record, hashed in zip(batch.numpy(), hashes):
                        start, length = end + _BEFORE, len(record)
                        places.extend((number, start, length, hashed))
                        end = start + length + _AFTER
                        digest.update(length.to_bytes(8, "little"))
                        digest.update(record)
            except tf.errors.DataLossError as error:
                raise ValueError(
                    f"{file} is damaged, or no uncompressed TFRecord file: compressed ones "
                    f"cannot be read by index. Decompress it."
                ) from error
            if end != size:
                raise ValueError(
                    f"{file} has {size} bytes, its records {end}: it is damaged or was "
                    f"changed while it was read."
                )
        self._digest = digest.digest()
        columns = np.array(places, np.int64).reshape(-1, 4).T
        self._file_of, self._starts, self._lengths, self._record_hashes = columns

    def _element_spec(self) -> dict[str, Any]:
        traced = self._parse.get_concrete_function(tf.TensorSpec([], tf.string))
        state = refused_operation(traced.graph)
        if state is not None:
            raise ValueError(
                f"parse is no pure function of a record: it uses {state}. Examples could "
                f"meet in a variable or in code of the host, and a resumed run would read "
                f"others. Augment by plan.batches(..., map=function), whose seed is "
                f"repeatable; what needs Python goes into sampling.IndexedExamples, which "
                f"checks what it returns."
            )
        may_fail(traced.graph, traced.graph.inputs[:1])  # raises if it may never end

        def checked(tensor: Any) -> tf.TensorSpec:
            if not isinstance(tensor, tf.Tensor):
                raise ValueError(
                    f"parse must return dense tensors, found {type(tensor).__name__}."
                )
            if not tensor.shape.is_fully_defined():
                raise ValueError(
                    f"parse must return tensors of static shape, found {tensor.shape}. "
                    f"Use tf.ensure_shape, or pad."
                )
            return tf.TensorSpec(tensor.shape, tensor.dtype)

        return tf.nest.map_structure(
            checked, named_parts(traced.structured_outputs, _EXAMPLE)
        )

    def read(self, indices: np.ndarray) -> list[bytes]:
        """Serialized records.

        Args:
          indices: int64, shape [N].

        Raises:
          ValueError: if a file was changed since the pass over it.
        """
        records = [b""] * len(indices)
        for file in np.unique(self._file_of[indices]):
            handle = os.open(self._files[file], os.O_RDONLY)
            try:
                for place in np.flatnonzero(self._file_of[indices] == file):
                    i = indices[place]
                    length, start = int(self._lengths[i]), int(self._starts[i])
                    records[place] = os.pread(handle, length, start)
            finally:
                os.close(handle)
        found = hash_rows(tf.constant(records, tf.string, [len(records)])).numpy()
        for i in indices[found != self._record_hashes[indices]]:
            raise ValueError(
                f"{self._files[self._file_of[i]]} was changed while it was in use: record "
                f"{i} is not what it was. Restore the file."
            )
        return records

    def gather(self, indices: tf.Tensor) -> dict[str, Any]:
        records = tf.numpy_function(
            lambda i: np.array([*self.read(i), b""], dtype=object)[:-1],
            [indices],
            tf.string,
        )
        content, works = each_that_works(
            lambda record: named_parts(self._parse(record), _EXAMPLE),
            tf.ensure_shape(records, [None]),
            self._spec,
        )

        def kept(indices: np.ndarray, works: np.ndarray, *leaves: np.ndarray) -> Block:
            with self._lock:
                return self._kept(indices, list(leaves), works)

        return self._kinds.gathered(kept, indices, works, *tf.nest.flatten(content))

    def row_hashes(self) -> np.ndarray:
        """Of the serialized records."""
        return self._record_hashes

    def update_digest(self, update: Callable[[Any], None]) -> None:
        update(b"TFRecord")
        update(self._digest)
        update(self._sample)
