"""mixed_float16 with the static loss scale of `PrivateOptimizer`."""

import keras
import numpy as np
import pytest

import tf_bandmf
import tf_bandmf.keras


@pytest.fixture
def make_half(make_plain_model, compile_model):
    """A private model under mixed_float16; compiled after or before it was made so."""

    def make(
        plan,
        compile_first=False,
        scale=1024,
        optimizer=None,
        **changes,
    ):
        keras.config.set_dtype_policy("mixed_float16")
        try:
            model = make_plain_model()
        finally:
            keras.config.set_dtype_policy("float32")
        if optimizer is None:
            optimizer = tf_bandmf.keras.PrivateOptimizer(
                keras.optimizers.SGD(0.1), plan, loss_scale_factor=scale
            )
        if not compile_first:
            # As tasks of KerasHub do by themselves; Keras wraps this optimizer.
            model.compile("sgd", "mse")
            tf_bandmf.keras.make_private(model)
        compile_model(model, optimizer, **changes)
        return tf_bandmf.keras.make_private(model)

    return make


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
def test_float16_trains_like_float32(
    compile_first, changes, data, make_plan, make_half, straight_weights
):
    plan, full = make_plan("bsr", epochs=1), straight_weights("bsr", epochs=1)
    size = changes.get("microbatch")
    compiled = {k: v for k, v in changes.items() if k != "microbatch"}
    half = make_half(plan, compile_first, **compiled)
    if size:
        tf_bandmf.keras.make_private(half, microbatch_size=size)
    # Keras' own wrapper, whose scale depends on the data, is not there.
    assert type(half.optimizer) is tf_bandmf.keras.PrivateOptimizer
    half.fit(plan.batches(*data), verbose=0)
    assert half.optimizer.steps_taken == plan.num_steps
    for a, b in zip(full, half.get_weights(), strict=True):
        assert b.dtype == np.float32
        np.testing.assert_allclose(a, b, atol=2e-3)


@pytest.mark.invariant(5)
def test_overflow_is_a_noisy_step(data, make_plan, make_half):
    plan = make_plan()
    model = make_half(plan, scale=2.0**30)
    before = model.get_weights()
    with pytest.warns(UserWarning, match="lower loss_scale_factor"):
        model.fit(plan.batches(*data), epochs=1, verbose=0)
    assert model.optimizer.steps_taken == 4
    for a, b in zip(before, model.get_weights(), strict=True):
        assert np.all(np.isfinite(b)) and np.all(a != b)


@pytest.mark.invariant(6)
def test_float16_without_a_scale(data, make_plan, make_half):
    plan = make_plan()
    model = make_half(plan, scale=None)
    before = model.get_weights()
    with pytest.raises(ValueError, match="loss_scale_factor=1024"):
        model.fit(plan.batches(*data), verbose=0)
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.invariant(6)
def test_a_dynamic_scale(data, make_plan, make_half):
    plan = make_plan()
    inner = tf_bandmf.keras.PrivateOptimizer("sgd", plan)
    model = make_half(plan, optimizer=keras.optimizers.LossScaleOptimizer(inner))
    with pytest.raises(TypeError, match="depends on the data"):
        model.fit(plan.batches(*data), verbose=0)


@pytest.mark.parametrize("scale", [0.5, 1000.0, float("nan")])
def test_a_scale_that_rounds_is_refused(scale, make_plan):
    with pytest.raises(ValueError, match="power of two"):
        tf_bandmf.keras.PrivateOptimizer("sgd", make_plan(), loss_scale_factor=scale)


def test_the_scale_is_that_of_the_run(make_plan):
    optimizer = tf_bandmf.keras.PrivateOptimizer(
        "sgd", make_plan(), loss_scale_factor=1024
    )
    with pytest.raises(AttributeError, match="whole run"):
        optimizer.loss_scale_factor = 512


@pytest.mark.invariant(11)
def test_a_run_goes_on_with_its_scale(data, make_plan, make_half, tmp_path):
    plan, path = make_plan("bsr", test_seed=None), tmp_path / "run.private"
    straight = make_half(plan)
    callbacks = [keras.callbacks.ModelCheckpoint(str(tmp_path / "m" / "{epoch}.keras"))]
    straight.fit(
        plan.batches(*data),
        epochs=2,
        private_state=path,
        callbacks=callbacks,
        verbose=0,
    )
    again = keras.models.load_model(tmp_path / "m" / "1.keras")
    assert again.optimizer.loss_scale_factor == 1024
    again.fit(plan.batches(*data), epochs=2, private_state=path, verbose=0)
    for a, b in zip(again.get_weights(), straight.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
