"""Tests training in mixed_float16 with `PrivateOptimizer`'s static loss scale."""

import keras
import numpy as np
import pytest
from same_weights import flat, refused
from small_models import (
    compile_model,
    data,
    dtype_policy,
    make_plain_model,
    make_plan,
)

import tf_bandmf
import tf_bandmf.keras


def make_half(plan, scale=1024, optimizer=None):
    """Returns a private model in mixed_float16 with a static loss scale."""
    with dtype_policy("mixed_float16"):
        model = make_plain_model()
    # Compile the model before it becomes private, as a KerasHub task does. Keras wraps
    # the optimizer of this compilation for loss scaling.
    model.compile("sgd", "mse")
    tf_bandmf.keras.make_private(model)
    optimizer = optimizer or tf_bandmf.keras.PrivateOptimizer(
        keras.optimizers.SGD(0.1), plan, loss_scale_factor=scale
    )
    compile_model(model, optimizer)
    return tf_bandmf.keras.make_private(model)


@pytest.mark.invariant(5)
def test_overflow_is_a_noisy_step():
    plan = make_plan()
    model = make_half(plan, scale=2.0**30)
    before = flat(model)
    with pytest.warns(UserWarning, match="lower loss_scale_factor"):
        model.fit(plan.batches(*data), epochs=1, verbose=0)
    assert model.optimizer.steps_taken == 4
    assert np.all(np.isfinite(flat(model))) and np.all(flat(model) != before)


@pytest.mark.invariant(6)
def test_float16_without_a_scale_or_with_a_dynamic_one():
    plan = make_plan()
    inner = tf_bandmf.keras.PrivateOptimizer("sgd", plan)
    dynamic = keras.optimizers.LossScaleOptimizer(inner)
    for options in ({"scale": None}, {"optimizer": dynamic}):
        model = make_half(plan, **options)
        with refused(model, ValueError, "loss_scale_factor=1024"):
            model.fit(plan.batches(*data), verbose=0)
