"""Functions for the private attributes and modules of Keras that this package uses.

The private step reads a layer's original variables, which adapters such as LoRA hide,
and the components of a compiled loss. Keras has no public names for these.

Tests that fail if this breaks: the tests of the callers, such as those in
`tests/keras/clipping/losses`. Changes in Keras that would raise no error are found by
`tests/keras/compat/test_keras_objects.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import keras
from keras.src.backend import compute_output_spec
from keras.src.backend.common import global_state as global_state
from keras.src.backend.tensorflow.rnn import rnn as rnn
from keras.src.losses.losses import LossFunctionWrapper as LossFunctionWrapper
from keras.src.models.functional import Functional as Functional
from keras.src.trainers.compile_utils import CompileLoss as CompileLoss

# Attributes that Keras adds to tensors. Their values are tensors with one row for each
# example.
MASK, LOGITS = "_keras_mask", "_keras_logits"
EXTRAS = (MASK, LOGITS)
# Entries of Keras' `global_state` that make up the context of a call.
CALL_CONTEXT, AUTOCAST_SCOPE = "current_call_ctx", "autocast_scope"


def all_layers(
    layer: keras.Layer, include_self: bool = True, recursive: bool = True
) -> list[Any]:
    """Returns a layer or model, and all layers inside it.

    Args:
      layer: the layer or model.
      include_self: False to leave out `layer` itself.
      recursive: False to leave out the layers inside inner layers.
    """
    return list(layer._flatten_layers(include_self=include_self, recursive=recursive))


def adapted_layers(layer: keras.Layer) -> list[Any]:
    """Returns the layers whose statistics or vocabulary are set by `adapt`."""
    return list(filter(_was_adapted, all_layers(layer)))


def _was_adapted(layer: Any) -> bool:
    if isinstance(layer, keras.layers.Normalization):
        return layer.input_mean is None
    if isinstance(layer, keras.layers.Discretization):
        return layer.summary is not None
    # `TextVectorization` contains one of these layers, so it needs no case of its own.
    if isinstance(layer, (keras.layers.StringLookup, keras.layers.IntegerLookup)):
        words = layer.get_vocabulary(include_special_tokens=False)
        return not layer._has_input_vocabulary and bool(len(words))
    return False


def own_trainable_variables(layer: keras.Layer) -> list[Any]:
    """The layer's own trainable variables, without those of layers inside it."""
    return layer._trainable_variables


def added_losses(layer: keras.Layer) -> list[Any]:
    """The losses that `add_loss` and activity regularizers added in a call."""
    return layer._losses


def takes_training(layer: Any) -> bool:
    """Returns whether `layer.call` accepts `training`; True for non-layers."""
    return getattr(layer, "_call_has_training_arg", True)


def remat_mode(layer: keras.Layer) -> Any:
    """Keras' rematerialization mode of a layer's activations, or None."""
    return getattr(layer, "_remat_mode", None)


def kernel_of(layer: keras.Layer) -> Any:
    """The kernel variable of a dense or convolution layer, without the LoRA adapter."""
    return layer._kernel


def embeddings_of(layer: keras.Layer) -> Any:
    """The table variable of an `Embedding` layer, without the LoRA adapter."""
    return layer._embeddings


def bias_of(layer: keras.Layer) -> Any:
    """The bias variable of KerasHub's `ReversibleEmbedding`."""
    return layer._bias


def tensorflow_value(variable: keras.Variable) -> Any:
    """The `tf.Variable` of a Keras variable."""
    return variable._value


def compile_loss(model: keras.Model) -> CompileLoss | None:
    """The loss that the model was compiled with, or None."""
    return getattr(model, "_compile_loss", None)


def loss_parts(loss: CompileLoss | None) -> list[Any]:
    """The loss and loss weight of each output; empty until the loss is built."""
    return getattr(loss, "_flat_losses", None) or []


def copied_loss(source: CompileLoss, copy_class: type[CompileLoss]) -> CompileLoss:
    """Copies `source` to a new `copy_class` object.

    The copy is built if `source` is built.
    """
    copy, not_shared = copy_class(None), ("_metrics", "_tracker")
    vars(copy).update({k: v for k, v in vars(source).items() if k not in not_shared})
    return copy


def loss_arguments(loss: LossFunctionWrapper) -> Any:
    """The keyword arguments with which the loss calls its function."""
    return loss._fn_kwargs


def loss_tracker(model: keras.Model) -> keras.metrics.Mean:
    """The metric that tracks the mean loss."""
    return model._loss_tracker


def compiled_arguments(model: keras.Model) -> dict[str, Any]:
    """The arguments as passed to `model.compile`; empty if it was not called."""
    return dict(model._compile_config.config) if model.compiled else {}


def is_distributed(model: keras.Model) -> bool:
    """Returns whether a model was created in the scope of a `tf.distribute` strategy."""
    return model._distribute_strategy is not None


def build_from(model: keras.Model, batch: Any, outputs: Any = None) -> None:
    """Builds metrics and loss from a batch, as `fit` does.

    Args:
      model: a built and compiled model.
      batch: inputs, targets and sample weights, tensors [B, ...] or None.
      outputs: the model's outputs for such a batch, as symbolic tensors of any batch
        size; if None, Keras calls the model to find them.
    """
    if outputs is None:
        model._symbolic_build(data_batch=batch)
        return
    size = keras.tree.flatten(batch)[0].shape[0]

    def spec(leaf: Any) -> Any:
        kind = keras.backend.standardize_dtype(leaf.dtype)
        return keras.KerasTensor((size, *leaf.shape[1:]), kind)

    x, y, sample_weight, y_pred = keras.tree.map_structure(
        spec, (*batch, outputs), none_is_leaf=False
    )
    for compute in (model.compute_metrics, model._compute_loss):
        compute_output_spec(compute, x, y, y_pred, sample_weight)


class BuiltBefore:
    """Mixin that stops Keras from building a model whose optimizer is already built.

    For this, Keras would average the batches of all replicas, which fails if they have
    different sizes.
    """

    optimizer: Any

    def _maybe_symbolic_build(self, *args: Any, **kwargs: Any) -> None:
        if not self.optimizer.built:
            super()._maybe_symbolic_build(*args, **kwargs)  # type: ignore[misc]


def given_learning_rate(optimizer: keras.optimizers.Optimizer) -> Any:
    """An optimizer's learning rate: a schedule, a variable, or None."""
    return getattr(optimizer, "_learning_rate", None)


def uses_weight_decay(optimizer: keras.optimizers.Optimizer, variable: Any) -> bool:
    """Returns whether the weight decay of an optimizer would apply to a variable."""
    # Keras 3.16 introduced this method.
    if hasattr(optimizer, "_is_excluded_from_weight_decay"):
        return not optimizer._is_excluded_from_weight_decay(variable)
    return bool(optimizer._use_weight_decay(variable))


def second_moments(optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """The running means of squared gradients in Adam and similar optimizers."""
    return optimizer._velocities


def copy_config_mark(source: Any, target: Any) -> None:
    """Marks `target` as Keras' default `get_config` if `source` has this mark."""
    target._is_default = getattr(source, "_is_default", False)


def calls_of(model: Any) -> Iterator[tuple[Any, list[Any], list[Any]]]:
    """The calls in the graph of a functional model, in order of execution.

    Yields:
      The operation or layer, its input tensors and its output tensors.
    """
    for depth in sorted(model._nodes_by_depth, reverse=True):
        for node in model._nodes_by_depth[depth]:
            if not node.is_input:
                inputs = keras.tree.flatten(node.arguments.keras_tensors)
                yield node.operation, inputs, keras.tree.flatten(node.output_tensors)


def maker_of(tensor: keras.KerasTensor) -> Any:
    """The operation or layer whose call created a symbolic tensor."""
    return tensor._keras_history.operation


def metric_handles(model: Any) -> set[int]:
    """Ids of the resource handles of all metric variables.

    The result includes the variables of metrics that were passed to `compile` and are
    not built yet.
    """
    variables = list(model.metrics_variables)
    compiled = getattr(model, "_compile_metrics", None)
    names = "_user_metrics", "_user_weighted_metrics"
    for metric in keras.tree.flatten([getattr(compiled, n, None) for n in names]):
        # Metrics that are names or functions have no variables yet.
        if isinstance(metric, keras.metrics.Metric):
            variables.extend(metric.variables)
    return handles(variables)


def handles(variables: Iterable[Any]) -> set[int]:
    """Ids of the resource handles of variables, on each replica."""
    raw = [tensorflow_value(variable) for variable in variables]
    parts = [part for value in raw for part in (value, *getattr(value, "values", ()))]
    return {id(getattr(part, "handle", None)) for part in parts}
