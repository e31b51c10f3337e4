"""What `Plan.batches` was given, as a source of examples."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import scipy.sparse
import tensorflow as tf

from tf_bandmf.sampling.indexed import IndexedExamples
from tf_bandmf.sampling.sources import INPUTS, ArrayExamples, ExampleSource, made_here
from tf_bandmf.sampling.streamed import StreamedExamples, is_stream


def source_of(x: Any, y: Any, sample_weight: Any, num_examples: int) -> ExampleSource:
    """The source of the examples.

    Args:
      x: a source; or a data set that is read in its own order (`tf.data.Dataset`,
        `PyDataset`, a function that returns an iterator); or arrays. A sparse matrix of
        SciPy becomes dense batch by batch.
      y: targets of arrays, or None.
      sample_weight: of arrays, or None.
      num_examples: m.

    Raises:
      TypeError: if it is none of these.
      ValueError: if it has another number of examples, or targets are given beside data
        that hold theirs.
    """
    holds_all = isinstance(x, ExampleSource) or is_stream(x)
    if holds_all and (y is not None or sample_weight is not None):
        raise ValueError(
            f"A {type(x).__name__} holds its targets and weights itself: leave y and "
            f"sample_weight out, and let it yield (x, y) or (x, y, sample_weight)."
        )
    if isinstance(x, ExampleSource):
        return made_here(x)
    if is_stream(x):
        return StreamedExamples(x, num_examples)
    if scipy.sparse.issparse(x):
        return _of_sparse(x, y, sample_weight, num_examples)
    return ArrayExamples(x, y, sample_weight, num_examples)


def _of_sparse(x: Any, y: Any, sample_weight: Any, num_examples: int) -> ExampleSource:
    if x.shape[0] != num_examples:
        raise ValueError(
            f"The plan is for {num_examples} examples, found a sparse matrix of shape "
            f"{x.shape}. Make a plan for this data set."
        )
    rows = x.tocsr()
    parts = [np.asarray(part) for part in (y, sample_weight) if part is not None]
    if y is None and sample_weight is not None:
        raise ValueError("sample_weight needs y beside a sparse matrix.")
    for part in parts:
        if not part.ndim or part.shape[0] != num_examples:
            raise ValueError(
                f"The plan is for {num_examples} examples, found an array of shape "
                f"{part.shape}. Make a plan for this data set."
            )

    def fetch(indices: np.ndarray) -> Any:
        found = (rows[indices].toarray(), *(part[indices] for part in parts))
        return found if parts else found[0]

    return IndexedExamples(fetch, num_examples)


# How many neighboring examples are looked at, and the share that must overlap.
_NEIGHBORS, _MOST = 64, 0.9
# Sources of which reading some examples changes nothing.
_READ = (ArrayExamples, StreamedExamples)


def refuse_overlap(source: ExampleSource) -> None:
    """Raises ValueError if neighboring examples are windows of one series that overlap.

    A value of the series is in several examples then, and what hides one example does not
    hide it. Windows that were shuffled, or have one value in common, are not recognized.

    Args:
      source: of which the first examples are read, eagerly.
    """
    if not isinstance(source, _READ) or source.num_examples < 3:
        return
    count = min(_NEIGHBORS, source.num_examples)
    found = source.gather(tf.range(count, dtype=tf.int64))[INPUTS]
    if any(_windows(leaf.numpy()) for leaf in tf.nest.flatten(found)):
        raise ValueError(
            "The examples are windows of a series, and neighbors overlap: a moment of the "
            "series is in several examples. Say what the guarantee is to hide: "
            "tf_bandmf.plan(..., unit='one window') hides one window, and not what happens "
            "at one moment; for whole series give plan.batches(x, y, users=series_ids, "
            "rows_per_user=...) and unit='one series'; or cut windows that do not overlap "
            "(sequence_stride=sequence_length)."
        )


def warn_of_repetitions(source: ExampleSource) -> None:
    """Warns if examples are equal, which may be several rows of one record.

    Args:
      source: of the caller's rows. What is read by index, by the caller's code, is judged
        by the examples that were read when it was made.
    """
    hashes = source.row_hashes()
    repeated = len(hashes) - len(np.unique(hashes))
    if repeated:
        some = " that were looked at" if len(hashes) < source.num_examples else ""
        warnings.warn(
            f"{repeated} of {len(hashes)} examples{some} repeat others. If one record "
            f"comes several times (over-sampled, or repeated), the statement does not hold "
            f"for it: it hides one example. Remove the repetitions, weigh classes by "
            f"fit(..., class_weight=...), or make a plan whose unit is one user. Equal "
            f"records of different people are in order.",
            stacklevel=4,
        )


def _windows(rows: np.ndarray) -> bool:
    if rows.ndim < 2 or rows.shape[1] < 2:
        return False
    differ = np.any(rows[1:] != rows[:-1], axis=tuple(range(1, rows.ndim)))
    if differ.mean() < _MOST:
        return False
    for stride in range(1, rows.shape[1] - 1):
        common = rows[1:, :-stride]
        axes = tuple(range(1, rows.ndim))
        same = (common == rows[:-1, stride:]).all(axis=axes)
        # Margins of zeros are the same in many examples.
        varies = (common != common[:, :1]).any(axis=axes)
        if (same & varies).mean() >= _MOST:
            return True
    return False
