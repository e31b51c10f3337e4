"""Examples that can be read by index, which is what every sampler needs."""

from __future__ import annotations

import abc
import hashlib
from typing import Any, Callable

import numpy as np
import tensorflow as tf

# Keys of the contents of a batch.
INPUTS, TARGETS, SAMPLE_WEIGHT = "x", "y", "sample_weight"
_EXAMPLES_AT_ONCE = 4096


def hash_rows(tensor: tf.Tensor) -> tf.Tensor:
    """FarmHash64 of each row, int64, shape [N]; its kernel is for the host."""
    with tf.device("/CPU:0"):
        return tf.bitcast(tf.fingerprint(tensor), tf.int64)


class ExampleSource(abc.ABC):
    """A data set of known size whose examples can be read in any order.

    Attributes:
      num_examples: m.
    """

    num_examples: int

    @abc.abstractmethod
    def gather(self, indices: tf.Tensor) -> dict[str, Any]:
        """Examples, in a graph too: `x`, and `y` and `sample_weight` where there are any.

        Args:
          indices: int64, shape [N], N >= 0.

        Returns:
          Structures of tensors whose first dimension is N.
        """

    @abc.abstractmethod
    def update_digest(self, update: Callable[[Any], None]) -> None:
        """Feeds bytes to a hash that differ if the data do, or their order."""

    def example_hashes(self) -> np.ndarray:
        """Hashes of the examples' inputs, uint64, by which another run's are recognized.

        Unless overridden: one hash of all data.
        """
        digest = hashlib.blake2b(digest_size=8)
        self.update_digest(digest.update)
        return np.frombuffer(digest.digest(), np.uint64)


class ArrayExamples(ExampleSource):
    """Examples in arrays.

    Arrays in memory become tensors on the host. An `np.memmap`, such as
    `np.load(path, mmap_mode="r")`, stays on disk: each batch reads its own rows.

    Args:
      x: array or nested structure of arrays whose first dimension is the example.
      y: targets, likewise, or None.
      sample_weight: shape [num_examples] or None.
      num_examples: m that every array must have.

    Raises:
      TypeError: if the data are not arrays.
      ValueError: if an array has another number of examples.
    """

    def __init__(self, x: Any, y: Any, sample_weight: Any, num_examples: int) -> None:
        self.num_examples = num_examples
        arrays = {INPUTS: x, TARGETS: y, SAMPLE_WEIGHT: sample_weight}
        self._arrays = {
            key: tf.nest.map_structure(self._checked, value)
            for key, value in arrays.items()
            if value is not None
        }

    def _checked(self, array: Any) -> Any:
        if isinstance(array, tf.data.Dataset):
            raise TypeError(
                "A schedule needs arrays, or examples that can be read by index, found a "
                "tf.data.Dataset: only then can the library enforce which examples each "
                "step uses. Write it to files once: plan.batches("
                "tf_bandmf.sampling.cache_dataset(dataset, directory))."
            )
        if isinstance(array, str) or callable(array):
            raise TypeError(
                f"A schedule needs arrays, found {type(array).__name__}: only then can the "
                f"library enforce which examples each step uses. For TFRecord files use "
                f"tf_bandmf.sampling.TFRecordExamples(files, parse)."
            )
        if isinstance(array, np.memmap):
            shape: tuple[int | None, ...] = array.shape
        else:
            # On the host: a data set need not fit the accelerator's memory.
            with tf.device("/CPU:0"):
                array = tf.convert_to_tensor(array)
            shape = tuple(array.shape)
        if not shape or shape[0] != self.num_examples:
            raise ValueError(
                f"The plan is for {self.num_examples} examples, found an array of shape "
                f"{shape}. Make a plan for this data set."
            )
        return array

    def gather(self, indices: tf.Tensor) -> dict[str, Any]:
        def rows(array: Any) -> tf.Tensor:
            if not isinstance(array, np.memmap):
                return tf.gather(array, indices)
            found = tf.numpy_function(
                lambda i: np.asarray(array[i]), [indices], array.dtype
            )
            return tf.ensure_shape(found, [None, *array.shape[1:]])

        return tf.nest.map_structure(rows, self._arrays)

    def example_hashes(self) -> np.ndarray:
        arrays = tf.nest.flatten(self._arrays[INPUTS])
        found = []
        for start in range(0, self.num_examples, _EXAMPLES_AT_ONCE):
            rows = slice(start, start + _EXAMPLES_AT_ONCE)
            parts = [hash_rows(tf.convert_to_tensor(array[rows])) for array in arrays]
            found.append(hash_rows(tf.stack(parts, axis=1)).numpy())
        return np.concatenate(found).view(np.uint64)

    def update_digest(self, update: Callable[[Any], None]) -> None:
        for tensor in tf.nest.flatten(self._arrays):
            on_disk = isinstance(tensor, np.memmap)
            array = np.ascontiguousarray(tensor if on_disk else tensor.numpy())
            update(f"{array.dtype} {array.shape}".encode())
            is_text = array.dtype == object
            update(b"\0".join(array.ravel()) if is_text else array.data)
