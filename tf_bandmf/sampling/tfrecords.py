"""Examples in TFRecord files that do not fit into memory."""

from __future__ import annotations

import functools
import hashlib
import os
import zlib
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np
import tensorflow as tf
import tqdm

from tf_bandmf.graphs.mapping import map_each
from tf_bandmf.sampling.failing import (
    FailedRecords,
    at_once_or_each,
    each_that_works,
    with_weights,
)
from tf_bandmf.sampling.purity import may_fail, refused_operation
from tf_bandmf.sampling.record_identity import SeenRecords, probed_places
from tf_bandmf.sampling.sources import (
    INPUTS,
    ExampleSource,
    named_parts,
    one_row_each,
)

# A record in a file: its length, a checksum of the length, its bytes, their checksum.
_BEFORE, _AFTER = 12, 4
_RECORDS_AT_ONCE = 256
_ROWS = "parse must return one row per record."
# By whose results two functions `parse` are told apart, for a resumed run.
_PROBED = 8


class TFRecordExamples(ExampleSource):
    """The records of TFRecord files, one example each, read by index.

    One pass over the files finds where every record lies (20 bytes of memory for each),
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
      batched: whether `parse` takes many records at once, strings of shape [N], as
        `tf.io.parse_example` does, which is faster. It must treat each record by
        itself: the library tests this with a few records only.
      index_file: None, or a file in which to keep the result of the pass for the next
        time. It is as private as the data (it has checksums), and written with mode
        0600.
      progress: whether to show the progress of passes that take longer than 2 seconds.

    Raises:
      ValueError: if there are no records, a file is not an uncompressed TFRecord file,
        a shape is not static, or `parse` has state or might not terminate.
      FileNotFoundError: if a file is missing.
    """

    def __init__(
        self,
        files: Sequence[str],
        parse: Callable[[tf.Tensor], Any],
        *,
        batched: bool = False,
        index_file: str | None = None,
        progress: bool = False,
    ) -> None:
        if isinstance(files, (str, os.PathLike)):
            files = [files]
        self._files = [os.fspath(file) for file in files]
        # Converted by AutoGraph, as in `Dataset.map`.
        self._parse, self._batched = tf.function(parse), batched
        sizes = np.array([os.path.getsize(file) for file in self._files], np.int64)
        index = _saved_index(index_file, self._files, sizes)
        if index is None:
            index = _index(self._files, sizes, progress)
            if index_file is not None:
                _save_index(index_file, self._files, sizes, index)
        self._lengths, self._checksums = index["lengths"], index["checksums"]
        counts = index["counts"]
        self._digest = index["digest"].tobytes()
        self.num_examples = int(counts.sum())
        if not self.num_examples:
            raise ValueError(f"There are no records in {self._files}.")
        self._file_of = np.repeat(np.arange(counts.size, dtype=np.int32), counts)
        ends = np.cumsum(self._lengths + (_BEFORE + _AFTER))
        first = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        self._starts = ends - self._lengths - _AFTER - first[self._file_of]
        self._may_fail = False
        self._spec = self._element_spec()
        self.failed = FailedRecords(self.num_examples)
        self._seen = SeenRecords(self.num_examples)

    def _element_spec(self) -> dict[str, Any]:
        shape = [None] if self._batched else []
        traced = self._parse.get_concrete_function(tf.TensorSpec(shape, tf.string))
        state = refused_operation(traced.graph)
        if state is not None:
            raise ValueError(
                f"parse is no pure function of a record: it uses {state}. Examples could "
                f"meet in a variable or in code of the host, and a resumed run would read "
                f"others. Augment by plan.batches(..., map=function), whose seed is "
                f"repeatable; what needs Python goes into sampling.IndexedExamples, which "
                f"checks what it returns."
            )
        self._may_fail = may_fail(traced.graph, traced.graph.inputs[:1])
        skipped = len(shape)

        def checked(tensor: Any) -> tf.TensorSpec:
            if not isinstance(tensor, tf.Tensor):
                raise ValueError(
                    f"parse must return dense tensors, found {type(tensor).__name__}."
                )
            rest = tensor.shape[skipped:] if tensor.shape.rank is not None else None
            if rest is None or not rest.is_fully_defined():
                raise ValueError(
                    f"parse must return tensors of static shape, found {tensor.shape}. "
                    f"Use tf.ensure_shape, or pad."
                )
            return tf.TensorSpec(rest, tensor.dtype)

        return tf.nest.map_structure(checked, _contents(traced.structured_outputs))

    @functools.cached_property
    def _probe(self) -> bytes:
        """What `parse` makes of a few records.

        Raises:
          ValueError: if a record becomes something else beside others than alone.
        """
        parse = tf.function(self.gather, autograph=False)
        count = min(_PROBED, self.num_examples)
        places = np.linspace(0, self.num_examples - 1, count).astype(np.int64)
        leaves = [leaf.numpy() for leaf in tf.nest.flatten(parse(places))]
        for i in range(count if self._batched else 0):
            alone = tf.nest.flatten(parse(places[i : i + 1]))
            if not all(_alike(a[i], b[0].numpy()) for a, b in zip(leaves, alone)):
                raise ValueError(
                    f"parse(batched=True) must treat each record by itself: it makes "
                    f"something else of record {places[i]} beside others than alone. Let "
                    f"no operation go along the first axis."
                )
        return b"".join(
            b"\0".join(leaf.ravel()) if leaf.dtype == object else leaf.tobytes()
            for leaf in leaves
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
                    record = os.pread(handle, length, start)
                    if (
                        len(record) != length
                        or zlib.crc32(record) != self._checksums[i]
                    ):
                        raise ValueError(
                            f"{self._files[file]} was changed while it was in use: record "
                            f"{i} is not what it was. Restore the file."
                        )
                    records[place] = record
            finally:
                os.close(handle)
        return records

    def gather(self, indices: tf.Tensor) -> dict[str, Any]:
        content, works = self._parsed(indices)
        seen = self._seen.noted(content[INPUTS], indices, works)
        if self._may_fail:
            content = with_weights(content, self.failed.noted(works, indices))
        with tf.control_dependencies([seen]):
            return tf.nest.map_structure(tf.identity, content)

    def _parsed(self, indices: tf.Tensor) -> tuple[dict[str, Any], tf.Tensor]:
        """What `parse` makes of records, and of which it does not fail."""
        records = tf.numpy_function(
            lambda i: np.array([*self.read(i), b""], dtype=object)[:-1],
            [indices],
            tf.string,
        )
        records = tf.ensure_shape(records, [None])
        works = tf.fill(tf.shape(records), True)
        if self._may_fail:
            mapped = at_once_or_each if self._batched else each_that_works
            content, works = mapped(
                lambda record: _contents(self._parse(record)), records, self._spec
            )
        elif self._batched:
            content = _contents(self._parse(records))
        else:
            content = map_each(
                lambda record: _contents(self._parse(record)), records, self._spec
            )
        return one_row_each(content, records, _ROWS), works

    def recognized_by(self) -> Callable[[], np.ndarray]:
        places = tf.constant(probed_places(self.num_examples))
        content, works = self._parsed(places)
        self._seen.noted(content[INPUTS], places, works)
        return self._seen.hashes

    def update_digest(self, update: Callable[[Any], None]) -> None:
        update(b"TFRecord")
        update(self._digest)
        update(self._probe)


def _alike(first: Any, second: Any) -> bool:
    """Whether rows are equal, up to what vector instructions round otherwise."""
    first, second = np.asarray(first), np.asarray(second)
    if first.dtype.kind != "f":
        return bool(np.array_equal(first, second))
    scale = float(np.max(np.abs(first), initial=0.0, where=np.isfinite(first)))
    return bool(np.allclose(first, second, 1e-3, 1e-5 * scale, equal_nan=True))


def _contents(example: Any) -> dict[str, Any]:
    parts = example if isinstance(example, tuple) else (example,)
    return named_parts(parts, "An example must be")


def _index(
    files: Sequence[str], sizes: np.ndarray, progress: bool
) -> dict[str, np.ndarray]:
    """Lengths and checksums of all records, and a hash of them, in one pass."""
    digest = hashlib.blake2b(digest_size=32)
    lengths: list[int] = []
    checksums: list[int] = []
    counts: list[int] = []
    shown = tqdm.tqdm(
        zip(files, sizes),
        desc="finding the records",
        total=len(files),
        delay=2.0,
        disable=not progress,
    )
    for file, size in shown:
        before = len(lengths)
        try:
            for batch in tf.data.TFRecordDataset(file).batch(_RECORDS_AT_ONCE):
                for record in batch.numpy():
                    lengths.append(len(record))
                    checksums.append(zlib.crc32(record))
                    digest.update(len(record).to_bytes(8, "little"))
                    digest.update(record)
        except tf.errors.DataLossError as error:
            raise ValueError(
                f"{file} is damaged, or no uncompressed TFRecord file: compressed ones "
                f"cannot be read by index. Decompress it."
            ) from error
        counts.append(len(lengths) - before)
        found = sum(lengths[before:]) + counts[-1] * (_BEFORE + _AFTER)
        if found != size:
            raise ValueError(
                f"{file} has {size} bytes, its records {found}: it is damaged or was "
                f"changed while it was read."
            )
    return {
        "lengths": np.array(lengths, np.int64),
        "checksums": np.array(checksums, np.uint32),
        "counts": np.array(counts, np.int64),
        "digest": np.frombuffer(digest.digest(), np.uint8),
    }


def _save_index(
    path: str, files: Sequence[str], sizes: np.ndarray, index: dict[str, np.ndarray]
) -> None:
    names = [os.path.basename(file) for file in files]
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        np.savez(file, names=names, sizes=sizes, **index)  # type: ignore[arg-type]


def _saved_index(
    path: str | None, files: Sequence[str], sizes: np.ndarray
) -> dict[str, np.ndarray] | None:
    """What `_save_index` wrote, if it is of these files."""
    if path is None or not os.path.exists(path):
        return None
    try:
        with np.load(path, allow_pickle=False) as saved:
            index = {name: saved[name] for name in saved.files}
    except (ValueError, OSError, zlib.error) as error:
        raise ValueError(
            f"{path} is no index of TFRecord files: delete it, or give another index_file."
        ) from error
    names = [os.path.basename(file) for file in files]
    if index.pop("names").tolist() != names or index.pop("sizes").tolist() != list(
        sizes
    ):
        return None
    return index
