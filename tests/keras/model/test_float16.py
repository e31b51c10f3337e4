"""Training in mixed_float16 with the static loss scale of `PrivateOptimizer`."""

import keras
import numpy as np
import pytest
from same_weights import assert_same, flat, refused
from small_models import (
    compile_model,
    data,
    make_plain_model,
    make_plan,
    straight_weights,
)

import tf_bandmf
import tf_bandmf.keras


def make_half(plan, compile_first=False, scale=1024, optimizer=None, **changes):
    """Returns a private model in mixed_float16, compiled after or before `make_private`."""
    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = make_plain_model()
    finally:
        keras.config.set_dtype_policy("float32")
    settings = {"microbatch_size": changes.pop("microbatch", None)}
    if not compile_first:
        # Compile the model first, as a KerasHub task does; Keras wraps its optimizer.
        model.compile("sgd", "mse")
        tf_bandmf.keras.make_private(model, **settings)
    optimizer = optimizer or tf_bandmf.keras.PrivateOptimizer(
        keras.optimizers.SGD(0.1), plan, loss_scale_factor=scale
    )
    compile_model(model, optimizer, **changes)
    return tf_bandmf.keras.make_private(model, **settings)


@pytest.mark.parametrize(
    ("compile_first", "changes"),
    [
        (False, {}),
        (True, {}),
        (True, {"jit_compile": True}),
        (False, {"microbatch": 4}),
    ],
)
@pytest.mark.slow_cases("True-changes2", "False-changes3")
def test_float16_trains_like_float32(compile_first, changes):
    plan, full = make_plan("bsr", epochs=1), straight_weights("bsr", epochs=1)
    half = make_half(plan, compile_first, **changes)
    # Keras' wrapper has been removed, because its loss scale depends on the data.
    assert type(half.optimizer) is tf_bandmf.keras.PrivateOptimizer
    half.fit(plan.batches(*data), verbose=0)
    assert half.optimizer.steps_taken == plan.num_steps
    assert flat(half).dtype == np.float32
    assert_same(half, full, atol=2e-3)


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
    for options, message in (
        ({"scale": None}, "loss_scale_factor=1024"),
        ({"optimizer": dynamic}, "depends on the data"),
    ):
        model = make_half(plan, **options)
        with refused(model, (ValueError, TypeError), message):
            model.fit(plan.batches(*data), verbose=0)
