"""Caches a `tf.data.Dataset` in files, which can be read by index."""

from __future__ import annotations

import json
import os
from typing import Any

import tensorflow as tf
import tqdm

from tf_bandmf.sampling.passes import AS_FILES, read_each, refuse_batchwise
from tf_bandmf.sampling.tfrecords import TFRecordExamples

_MANIFEST = "examples.json"
_FEATURE = "tensors"
_FORMAT = 1


def cache_dataset(
    dataset: tf.data.Dataset,
    directory: str,
    *,
    examples_per_file: int = 10_000,
) -> TFRecordExamples:
    """Writes the examples of a data set to TFRecord files, once.

    The order in which the data set yields the examples now is kept for good: the data
    set may shuffle, but nothing later depends on that. The files hold the data as they
    are, unencrypted; the directory gets mode 0700.

    Args:
      dataset: finite, not batched; yields `x`, `(x, y)` or `(x, y, sample_weight)` of
        static shapes.
      directory: a directory that does not exist yet, or is empty.
      examples_per_file: number of examples in each file except the last.

    Returns:
      What `plan.batches` takes; `open_cache(directory)` gives it again.

    Raises:
      TypeError: if it is not a `tf.data.Dataset`.
      ValueError: if the data set is infinite or has no static shapes, a function of it
        sees several examples, or the directory is in use.
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(
            f"dataset must be a tf.data.Dataset, found {type(dataset).__name__}. "
            f"tf.data.Dataset.from_generator makes one of a function."
        )
    if int(dataset.cardinality()) == tf.data.INFINITE_CARDINALITY:
        raise ValueError(
            "The data set is infinite: leave repeat() out. The plan's epochs repeat it."
        )
    refuse_batchwise(dataset, batched=False)
    if examples_per_file < 1:
        raise ValueError(f"examples_per_file must be >= 1, found {examples_per_file}.")
    spec = dataset.element_spec
    encoded = _encode(spec)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    if os.listdir(directory):
        raise ValueError(
            f"{directory} is not empty. Use tf_bandmf.sampling.open_cache(directory) if it "
            f"holds these examples, or give another directory."
        )
    files: list[str] = []
    writer: Any = None
    shown = tqdm.tqdm(dataset, desc="writing examples", delay=2.0)
    try:
        for number, example in enumerate(read_each(shown, "example", AS_FILES)):
            if number % examples_per_file == 0:
                if writer is not None:
                    writer.close()
                files.append(f"examples-{len(files):05d}.tfrecord")
                writer = tf.io.TFRecordWriter(os.path.join(directory, files[-1]))
            writer.write(_serialize(example))
    finally:
        if writer is not None:
            writer.close()
    if not files:
        raise ValueError("The data set has no examples.")
    # Last: a directory without it is an interrupted attempt.
    path = os.path.join(directory, _MANIFEST)
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump({"format": _FORMAT, "files": files, "spec": encoded}, file)
    os.replace(path + ".new", path)
    return open_cache(directory)


def open_cache(directory: str) -> TFRecordExamples:
    """The examples that `cache_dataset` wrote.

    Raises:
      ValueError: if the directory holds none, or not all of them.
    """
    path = os.path.join(directory, _MANIFEST)
    if not os.path.exists(path):
        raise ValueError(
            f"{directory} holds no complete cache. Remove it and use "
            f"tf_bandmf.sampling.cache_dataset(dataset, directory) again."
        )
    with open(path, encoding="utf-8") as file:
        manifest = json.load(file)
    if manifest.get("format") != _FORMAT:
        raise ValueError(
            f"{path} has format {manifest.get('format')!r}; this version of tf-bandmf "
            f"reads format {_FORMAT}."
        )
    spec = _decode(manifest["spec"])
    leaves = tf.nest.flatten(spec)

    def parse(record: tf.Tensor) -> Any:
        feature = tf.io.FixedLenFeature([len(leaves)], tf.string)
        parts = tf.io.parse_single_example(record, {_FEATURE: feature})[_FEATURE]
        tensors = [
            tf.ensure_shape(tf.io.parse_tensor(parts[i], leaf.dtype), leaf.shape)
            for i, leaf in enumerate(leaves)
        ]
        return tf.nest.pack_sequence_as(spec, tensors)

    return TFRecordExamples(
        [os.path.join(directory, name) for name in manifest["files"]],
        parse,
    )


def _serialize(example: Any) -> bytes:
    parts = [tf.io.serialize_tensor(t).numpy() for t in tf.nest.flatten(example)]
    feature = tf.train.Feature(bytes_list=tf.train.BytesList(value=parts))
    features = tf.train.Features(feature={_FEATURE: feature})
    return tf.train.Example(features=features).SerializeToString()


def _encode(spec: Any) -> Any:
    if isinstance(spec, dict):
        return {"dict": {name: _encode(item) for name, item in spec.items()}}
    if isinstance(spec, (tuple, list)):
        return {"tuple": [_encode(item) for item in spec]}
    if not isinstance(spec, tf.TensorSpec) or not spec.shape.is_fully_defined():
        raise ValueError(
            f"The examples must be dense tensors of static shape, found {spec}. Pad them, "
            f"make them dense by tf.sparse.to_dense, or use unbatch() if the data set is "
            f"batched."
        )
    return {"dtype": spec.dtype.name, "shape": spec.shape.as_list()}


def _decode(config: Any) -> Any:
    if "dict" in config:
        return {name: _decode(item) for name, item in config["dict"].items()}
    if "tuple" in config:
        return tuple(_decode(item) for item in config["tuple"])
    return tf.TensorSpec(config["shape"], tf.as_dtype(config["dtype"]))
