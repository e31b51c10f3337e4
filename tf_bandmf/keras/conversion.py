"""From a Keras model to a private one, in place, and back to a plain one."""

from __future__ import annotations

import keras

from tf_bandmf.keras.clipping import check_supported
from tf_bandmf.keras.model import PrivateTraining, without_dynamic_scale


@keras.saving.register_keras_serializable(package="tf_bandmf")
class PrivateSequential(PrivateTraining, keras.Sequential):
    """A `keras.Sequential` that trains privately."""


@keras.saving.register_keras_serializable(package="tf_bandmf")
class PrivateFunctional(PrivateTraining, keras.src.models.functional.Functional):
    """A functional `keras.Model` that trains privately."""


def make_private(
    model: keras.Model,
    self_check: bool = True,
    *,
    microbatch_size: int | None = None,
) -> keras.Model:
    """Makes a Keras model train privately, in place.

    The model gets a private class, which saving and loading keep: a reloaded model
    cannot train without privacy by accident. Compile it with a `PrivateOptimizer`,
    before or after. `to_plain` gives the released model. (`keras.models.clone_model` of a
    Sequential makes a plain one with new weights, whatever the class. Compiled as the
    original was it refuses to train: make it private too.)

    Args:
      model: a Sequential or functional model. For a subclass of `keras.Model`, derive it
        from `PrivateTraining` too.
      self_check: compare the gradients of a few made-up examples, of the shapes of the
        data, with those that each has by itself, once before the first step of `fit`. The
        second line after the analysis of the model's graph.
      microbatch_size: if given, the step takes its batch in groups of this many examples
        one after the other, and memory is that of one group: for large logical batches.
        Gradients are clipped by example and noise is drawn once for the batch, as
        without it; the plan's budget counts batches, not groups.

    Returns:
      The same model.

    Raises:
      ValueError: if microbatch_size is not a positive integer.
      TypeError: for other models.
      UnsupportedModelError: if a layer mixes examples (batch normalization) or its
        per-example gradients cannot be had.
    """
    if microbatch_size is not None and (
        not isinstance(microbatch_size, int) or microbatch_size < 1
    ):
        raise ValueError(
            f"microbatch_size must be an integer >= 1 or None, found {microbatch_size!r}."
        )
    if isinstance(model, PrivateTraining):
        if microbatch_size is not None:
            model._microbatch_size = microbatch_size
            model.train_function = None
        return model
    if type(model) is keras.Sequential:
        private_class: type = PrivateSequential
    elif type(model) in (keras.Model, keras.src.models.functional.Functional):
        private_class = PrivateFunctional
    else:
        raise TypeError(
            f"make_private takes Sequential and functional models, found "
            f"{type(model).__name__}. Derive the class from both: class "
            f"{type(model).__name__}(tf_bandmf.keras.PrivateTraining, keras.Model)."
        )
    optimizer = getattr(model, "optimizer", None)
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        model.optimizer = without_dynamic_scale(optimizer, optimizer.inner_optimizer)
    if model.built:
        check_supported(model)
    model.__class__ = private_class
    model.train_function = None
    model._self_check_is_due = self_check
    model._microbatch_size = microbatch_size
    return model


def to_plain(model: keras.Model) -> keras.Model:
    """The trained model without anything private about it: to release, serve, share.

    Args:
      model: what `make_private` returned, trained or not.

    Returns:
      A new `keras.Sequential` or functional model with the same weights, not compiled.

    Raises:
      TypeError: if the model was not made private by `make_private`.
    """
    plain_classes = {
        PrivateSequential: keras.Sequential,
        PrivateFunctional: keras.Model,
    }
    if type(model) not in plain_classes:
        raise TypeError(
            f"to_plain takes a model that make_private made private, found "
            f"{type(model).__name__}."
        )
    plain = plain_classes[type(model)].from_config(model.get_config())
    if model.built:
        if not plain.built:
            plain.build(model.input_shape)
        plain.set_weights(model.get_weights())
    return plain
