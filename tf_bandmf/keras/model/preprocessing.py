"""Preprocessors of models (the tasks of KerasHub), applied to each example by itself.

A task of KerasHub turns raw data into what its layers take: strings into tokens,
targets and token weights. Keras applies this to whole batches. A private model applies
it to each example alone, after the batch is drawn and before the step: what an example
becomes is a function of that example. So the preprocessor is traced once and analysed
as `map` is: it must keep no state, run no Python code, terminate, and need no memory
whose size depends on values. Preprocessors of KerasHub, with the methods that it gave
them, may do two more things: keep the tokens of earlier words, and loop until all pairs
are merged. An example on which the preprocessor fails becomes a row of zeros with
weight 0, and the step continues.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Callable

import keras
import numpy as np
import tensorflow as tf

from tf_bandmf.graphs.definitions import (
    is_code_of,
    is_defined_by,
    replaced_methods,
)
from tf_bandmf.graphs.functions import all_nodes
from tf_bandmf.graphs.mapping import map_each
from tf_bandmf.keras.clipping import (
    NotIndependent,
    Same,
    is_random,
    refuse_state,
)
from tf_bandmf.keras.compat.keras_objects import all_layers, tensorflow_value
from tf_bandmf.keras.compat.seeds import used_generators
from tf_bandmf.keras.model.training_state import state_of
from tf_bandmf.sampling.batches import (
    EDITED,
    INPUTS,
    ROWS,
    SAMPLE_WEIGHT,
    TARGETS,
    is_scheduled_batch,
)
from tf_bandmf.sampling.failing import each_that_works, with_weights
from tf_bandmf.sampling.fingerprints import is_as_drawn, with_fingerprint
from tf_bandmf.sampling.purity import may_fail, may_stop

_CONTENT = (INPUTS, TARGETS, SAMPLE_WEIGHT)
# Operations that keep state or run Python code.
_UNREPEATABLE = ("Assign", "Rng", "PyFunc", "EagerPyFunc")
_HUB = frozenset({"keras_hub"})
# They wrap methods of layers when these are made.
_BUILDERS = frozenset({"keras", "keras_hub"})
Preprocess = Callable[..., Any]


def preprocess_of(model: Any) -> Preprocess | None:
    """The model's preprocessor of raw data for training; None if it has none.

    Args:
      model: private, of any class.
    """
    if getattr(model, "preprocessor", None) is None:
        return None
    return getattr(model, "preprocess_samples", None)


def preprocessed(model: Any, dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Batches of a `BatchSchedule` as the model's step takes them.

    If it has a preprocessor, each example is preprocessed by itself.

    Raises:
      ValueError: if steps may be taken again and random numbers are drawn; if it is no
        function of one example, or does not return one for one.
      UnsupportedModelError: see `Traces.refuse_late`.
      InvalidArgumentError: by the dataset, if a batch was changed since it was made.
    """
    if preprocess_of(model) is None:
        return dataset
    mapped = tf.autograph.experimental.do_not_convert(
        lambda batch: preprocessed_batch(model, batch)
    )
    return dataset.map(mapped, num_parallel_calls=2, deterministic=True).prefetch(2)


def preprocessed_batch(model: Any, batch: Any) -> Any:
    """One batch, see `preprocessed`; unchanged if it is not of a schedule."""
    preprocess = preprocess_of(model)
    if preprocess is None or not is_scheduled_batch(batch):
        return batch
    # Steps that may be taken again must see the same batches then.
    repeats = state_of(model).run_file is not None
    if ROWS in batch:
        raise ValueError(
            "The preprocessor of a model takes examples, not units of several rows (views, "
            "users). Preprocess the data before and set model.preprocessor = None."
        )
    drawn = tf.debugging.Assert(is_as_drawn(batch), [EDITED])
    content = {name: batch[name] for name in _CONTENT if name in batch}
    with tf.control_dependencies([drawn] if drawn is not None else []):
        content = tf.nest.map_structure(tf.identity, content)
    own_weight = content.pop(SAMPLE_WEIGHT, None)

    specs = tf.nest.map_structure(
        lambda t: tf.TensorSpec(t.shape[1:], t.dtype), content
    )
    key = ("preprocess", Same(_preprocessor(preprocess)), repeats, specs)
    traced, stops = model.optimizer.run.traces.of(
        key, lambda: _traced(preprocess, specs, repeats)
    )
    signature = tf.nest.map_structure(
        lambda t: tf.TensorSpec(t.shape, t.dtype), traced.structured_outputs
    )
    works = None
    if stops:
        made, works = each_that_works(lambda row: traced(row), content, signature)
    else:
        made = map_each(lambda row: traced(row), content, signature)
    if own_weight is not None:
        made[SAMPLE_WEIGHT] = _weighted(made.get(SAMPLE_WEIGHT), own_weight)
    if works is not None:
        made = with_weights(made, works)
    rest = {name: value for name, value in batch.items() if name not in _CONTENT}
    return with_fingerprint({**rest, **made})


def _traced(preprocess: Preprocess, specs: Any, repeats: bool) -> tuple[Any, bool]:
    """The preprocessor of one example, and whether some example stops it."""

    def one(example: dict[str, Any]) -> dict[str, Any]:
        alone = tf.nest.map_structure(lambda t: t[None], example)
        results = preprocess(alone[INPUTS], alone.get(TARGETS))
        parts = zip(_CONTENT, keras.utils.unpack_x_y_sample_weight(results))
        return {
            name: tf.nest.map_structure(_only_row, part)
            for name, part in parts
            if part is not None
        }

    with tf.init_scope(), used_generators() as generators:
        traced = tf.function(one, autograph=False).get_concrete_function(specs)
    if repeats:
        _refuse_randomness(traced.graph)
    inputs = traced.graph.inputs[: len(tf.nest.flatten(specs))]
    parts = _parts_of_hub(preprocess)
    return traced, _checked(traced.graph, inputs, generators, parts)


def _checked(
    graph: Any,
    inputs: Sequence[Any],
    generators: Sequence[Any],
    parts_of_hub: Sequence[Any] | None,
) -> bool:
    """Whether some example stops a preprocessor that is a function of one example.

    Args:
      graph: of the preprocessor.
      inputs: of the graph, that hold an example.
      generators: the generators that it drew from.
      parts_of_hub: what it is made of, if that is KerasHub's.

    Raises:
      ValueError: if it is none.
    """
    seeds = {id(tensorflow_value(generator.state).handle) for generator in generators}
    outside = {id(inner): id(outer) for outer, inner in graph.captures}

    def is_seed(handle: Any) -> bool:
        return outside.get(id(handle), id(handle)) in seeds

    caches = {
        id(table) for table in map(_table, parts_of_hub or ()) if table is not None
    }

    def is_cache(handle: Any) -> bool:
        return outside.get(id(handle), id(handle)) in caches

    try:
        refuse_state(graph.get_operations(), inputs, is_seed, lambda _: False, is_cache)
        if parts_of_hub is not None:
            return may_stop(graph, inputs)
        return may_fail(graph, inputs)
    except NotIndependent as error:
        op = error.operation
        reason = f"operation {op.name!r} ({op.type}) {error.reason}."
    except ValueError as error:
        reason = f"{error}"
    raise ValueError(
        f"The preprocessor is no function of one example that ends: {reason} Examples "
        f"could meet in what it keeps, and one could stop the run. Write it with "
        f"operations of TensorFlow, or preprocess the data before and set "
        f"model.preprocessor = None."
    )


def _preprocessor(preprocess: Preprocess) -> Any:
    return getattr(getattr(preprocess, "__self__", None), "preprocessor", None)


def kept_from_preprocessing(plain_class: type) -> dict[str, Any]:
    """Keeps a task of KerasHub from preprocessing what `fit` has preprocessed.

    Args:
      plain_class: of models; its private class gets what is returned.
    """
    original = getattr(plain_class, "preprocess_samples", None)
    if original is None:
        return {}

    def preprocess_samples(self: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
        """As the plain class', but for batches of a schedule, which are ready."""
        return x if is_scheduled_batch(x) else original(self, x, *args, **kwargs)

    return {"preprocess_samples": preprocess_samples}


def _parts_of_hub(preprocess: Preprocess) -> list[Any] | None:
    """What a preprocessor is made of; None if that, or what calls it, is not KerasHub's.

    KerasHub's are objects whose class it defines, with the methods of that class.
    """
    model, found = getattr(preprocess, "__self__", None), _preprocessor(preprocess)
    if not isinstance(found, keras.layers.Layer):
        return None
    parts = all_layers(found)
    parts += [
        part
        for layer in parts
        for part in vars(layer).values()
        if is_defined_by(type(part), _HUB)
    ]
    callers = [
        vars(kind)["preprocess_samples"]
        for kind in type(model).__mro__
        if "preprocess_samples" in vars(kind)
    ]
    known = "preprocess_samples" not in vars(model) and all(
        is_defined_by(c, _HUB) or is_code_of(c, sys.modules[__name__]) for c in callers
    )
    known &= all(
        is_defined_by(type(part), _HUB) and not replaced_methods(part, _BUILDERS)
        for part in parts
    )
    return parts if known else None


def _table(part: Any) -> Any:
    """The handle of KerasHub's cache of tokens; None of other objects.

    Its keys must be what KerasHub makes of words: with other ones words could meet.
    """
    if type(part).__qualname__ != "BytePairTokenizerCache":
        return None
    if not np.array_equal(part.factors, 256 ** np.arange(8, dtype=np.int64)):
        return None
    return part.id2value.resource_handle


def _only_row(tensor: Any) -> tf.Tensor:
    tensor = tf.convert_to_tensor(tensor)
    row = tensor.shape[1:]
    if not tensor.shape.rank or not row.is_fully_defined():
        raise ValueError(
            f"The preprocessor must return one row of a fixed shape for one example, found "
            f"a tensor of shape {tensor.shape}. Give it a fixed sequence_length, or "
            f"preprocess the data before and set model.preprocessor = None."
        )
    # Nothing is raised that would depend on the example: no row is one of zeros.
    return tf.concat([tensor, tf.zeros([1, *row], tensor.dtype)], axis=0)[0]


def _weighted(found: tf.Tensor | None, own: tf.Tensor) -> tf.Tensor:
    """Weights of the preprocessor (of tokens) times those of the examples."""
    if found is None:
        return own
    found = tf.cast(found, own.dtype)
    rank = max(found.shape.rank - own.shape.rank, 0)
    shape = tf.concat([tf.shape(own), tf.ones([rank], tf.int32)], axis=0)
    return found * tf.reshape(own, shape)


def _refuse_randomness(graph: Any) -> None:
    """Refuses what may give another result when it runs again, in functions too."""
    types = {
        node.op
        for node in all_nodes(graph)
        if node.op.startswith(_UNREPEATABLE) or is_random(node.op)
    }
    if types:
        raise ValueError(
            f"The preprocessor may give other results when it is run again "
            f"({', '.join(sorted(types))}): steps that a resumed run takes again would "
            f"see other batches under the same noise. Preprocess the data before and set "
            f"model.preprocessor = None, or train without private_state."
        )
