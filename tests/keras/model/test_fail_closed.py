"""Tests that misuse that breaks privacy raises an error that names the fix."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from same_weights import assert_same, refused
from small_models import (
    Custom,
    centred,
    compile_model,
    data,
    make_min_sep_plan,
    make_plain_model,
    make_plan,
    make_private_model,
    plan_and_model,
)

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf.keras.clipping.independence.layers import LAYERS
from tf_bandmf.keras.clipping.independence.registration import vouched
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError

# Errors that a training step may raise inside its graph.
IN_GRAPH = (tf.errors.InvalidArgumentError, RuntimeError)


def fit(model, plan, data, **kwargs):
    return model.fit(plan.batches(*data), verbose=0, **kwargs)


@pytest.mark.parametrize("private", [False, True], ids=["SGD", "PrivateOptimizer"])
@pytest.mark.invariant(6)
def test_a_plain_model_does_not_train_on_a_plans_batches(private):
    plan = make_plan()
    optimizer = tf_bandmf.keras.PrivateOptimizer("sgd", plan) if private else "sgd"
    model = compile_model(make_plain_model(), optimizer)
    before, batches = model.get_weights(), plan.batches(*data)
    first = next(iter(batches))
    # Keras raises this error. It quotes the `plan.batches` object, whose text names the
    # fix.
    with pytest.raises(ValueError, match=r"tf_bandmf\.keras\.make_private"):
        model.fit(batches, verbose=0)
    for train in (
        lambda: model.fit(batches.dataset(), verbose=0),
        lambda: model.fit(iter(batches), verbose=0),
        lambda: model.fit((batch for batch in batches), verbose=0),
        lambda: model.train_on_batch(first),
    ):
        with pytest.raises(ValueError, match=r"plan_id|Unrecognized data type"):
            train()
    if private:
        with pytest.raises(RuntimeError, match="make_private"):
            model.fit(*data, verbose=0)
    assert_same(model, before)


@pytest.mark.invariant(2)
def test_a_plans_batches_are_for_fit():
    plan, model = plan_and_model()
    for use in (model.evaluate, model.predict):
        with pytest.raises(ValueError, match="for fit of a model"):
            use(plan.batches(*data), verbose=0)


@pytest.mark.invariant(6)
def test_a_private_model_with_another_optimizer():
    plan, model = plan_and_model()
    model.compile("sgd", "mse")
    for train in (
        lambda: model.fit(*data, verbose=0),
        lambda: model.train_on_batch(*data),
        lambda: model.private_gradients(next(iter(plan.batches(*data)))),
    ):
        with pytest.raises(TypeError, match="PrivateOptimizer"):
            train()


@pytest.mark.invariant(6)
def test_gradients_from_elsewhere():
    model = make_plain_model()
    optimizer = tf_bandmf.keras.PrivateOptimizer("sgd", make_plan())
    gradients = [tf.ones(v.shape) for v in model.trainable_variables]
    pairs = list(zip(gradients, model.trainable_variables))
    for call in (
        lambda: optimizer.apply_gradients(pairs),
        lambda: optimizer.apply(gradients, model.trainable_variables),
        lambda: optimizer.scale_loss(tf.constant(1.0)),
        lambda: optimizer.stateless_apply(None, None, None),
    ):
        with pytest.raises(RuntimeError, match="make_private"):
            call()


@pytest.mark.invariant(1)
def test_fit_asks_for_more_than_the_plan():
    plan, model = plan_and_model()
    with refused(model, ValueError, "12 steps, but only 8"):
        fit(model, plan, data, epochs=3)
    fit(model, plan, data, epochs=2)
    with pytest.raises(ValueError, match="0 of the plan's 8 steps"):
        fit(model, plan, data, epochs=1)


@pytest.mark.slow_cases("changes1")
@pytest.mark.parametrize("changes", [{}, {"jit_compile": True}])
@pytest.mark.invariant(1)
def test_a_step_past_the_plan(changes):
    model = make_private_model(make_min_sep_plan(num_steps=3), **changes)
    batch = data[0][:4], data[1][:4]
    model.train_on_batch(*batch)
    for _ in range(2):
        model.optimizer.apply_noisy(model.private_gradients(batch))
    for step in (
        lambda: model.train_on_batch(*batch),
        lambda: model.private_gradients(batch),
    ):
        with refused(model, IN_GRAPH, "3 steps"):
            step()
    assert model.optimizer.steps_taken == 3


@pytest.mark.invariant(1)
def test_within_several_steps_per_execution():
    model = make_private_model(make_min_sep_plan(num_steps=3), steps_per_execution=2)
    stream = tf.data.Dataset.from_tensor_slices(data).batch(4).repeat()
    with pytest.raises(IN_GRAPH, match="3 steps"):
        model.fit(stream, steps_per_epoch=4, verbose=0)
    assert model.optimizer.steps_taken == 3


@pytest.mark.invariant(2)
def test_data_that_the_accountant_did_not_analyse():
    plan, model = plan_and_model()
    x, y = data
    other = make_plan("identity")
    min_sep = make_private_model(make_min_sep_plan())
    for call, message in (
        (lambda: model.train_on_batch(x[:4], y[:4]), "plan.batches"),
        (lambda: model.fit(other.batches(x, y)), "another plan"),
        (lambda: model.fit(plan.batches(x), y), "plan.batches"),
        (lambda: min_sep.fit(x, y), "shuffle"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            call()


@pytest.mark.invariant(2)
def test_a_batch_at_the_wrong_step():
    plan, model = plan_and_model(batch_size=11)
    first, second, *_ = plan.batches(*data)
    model.train_on_batch(first)
    for wrong in (first, {**second, "plan_id": tf.constant(5, tf.int64)}):
        with refused(model, tf.errors.InvalidArgumentError, "plan"):
            model.train_on_batch(wrong)
    model.train_on_batch(second)


SGD = keras.optimizers.SGD


@pytest.mark.parametrize(
    ("inner", "message"),
    [
        (lambda: SGD(gradient_accumulation_steps=2), "accumulation"),
        (lambda: SGD(loss_scale_factor=2.0), "loss_scale"),
        (lambda: keras.optimizers.LossScaleOptimizer(SGD()), "LossScaleOptimizer"),
    ],
)
@pytest.mark.invariant(7)
def test_accumulation_and_loss_scaling_inside(inner, message):
    with pytest.raises(ValueError, match=message):
        tf_bandmf.keras.PrivateOptimizer(inner(), make_plan())


def test_accumulation_that_is_set_late_is_refused():
    plan, model = plan_and_model()
    inner = model.optimizer.inner_optimizer
    for _ in range(2):
        inner.gradient_accumulation_steps = 2
        with pytest.raises(ValueError, match="gradient_accumulation_steps"):
            fit(model, plan, data)
        inner.gradient_accumulation_steps = None
        fit(model, plan, data, steps_per_epoch=1)


@pytest.mark.invariant(2)
def test_other_data_or_another_order_within_a_run():
    plan, model = plan_and_model()
    fit(model, plan, data, epochs=1)
    reshuffled = tuple(array[::-1].copy() for array in data)
    with refused(model, ValueError, "other data"):
        fit(model, plan, reshuffled, epochs=1)
    batch = list(plan.batches(*reshuffled))[4]
    with refused(model, tf.errors.InvalidArgumentError, "other data"):
        model.train_on_batch(batch)
    fit(model, plan, data, epochs=1)


@pytest.mark.invariant(6)
def test_every_way_in_runs_the_self_check(monkeypatch):
    monkeypatch.setitem(LAYERS, Custom, vouched)

    def make(plan):
        layers = [keras.Input((5,)), keras.layers.Dense(3), Custom(centred)]
        return make_private_model(plan, model=keras.Sequential(layers))

    plan, min_sep = make_plan(), make_min_sep_plan()
    stream = tf.data.Dataset.from_tensor_slices(data).batch(4)
    batch = next(iter(plan.batches(*data)))
    for call in (
        lambda: make(min_sep).fit(stream, verbose=0),
        lambda: make(min_sep).fit((item for item in stream), verbose=0),
        lambda: make(min_sep).train_on_batch(data[0][:4], data[1][:4]),
        lambda: fit(make(plan), plan, data),
        lambda: make(plan).train_on_batch(batch),
        lambda: make(plan).private_gradients(batch),
    ):
        with pytest.raises(RuntimeError, match=r"one at a time|not checked"):
            call()


@pytest.mark.invariant(16)
def test_a_refused_preparation_is_repeated():
    plan, model = plan_and_model()
    model.add(Custom(centred))
    compile_model(model, model.optimizer)
    first, train = next(iter(plan.batches(*data))), model.make_train_function()
    for _ in range(2):
        with refused(model, UnsupportedModelError, "mixes"):
            train(iter([first]))


@pytest.mark.invariant(9)
def test_a_run_keeps_its_weights():
    plan, model = plan_and_model("bsr:2", batch_size=11)
    fit(model, plan, data, epochs=1)
    model.layers[0].trainable = False
    # After a change of `trainable`, Keras requires `compile`, which retraces the step.
    compile_model(model, model.optimizer)
    with refused(model, ValueError, "not those that the run began with"):
        fit(model, plan, data, epochs=1)
    batches = model.begin_run(plan.batches(*data))
    batch = next(iter(batches.dataset(model.optimizer.steps_taken)))
    with refused(model, ValueError, "not those that the run began with"):
        model.private_gradients(batch)
    # Otherwise, weights that other code sets next would not be compared with the seal.
    assert not model.optimizer.run.takes_steps
    model.layers[0].trainable = True
    compile_model(model, model.optimizer)
    fit(model, plan, data, epochs=1)


@pytest.mark.invariant(6)
def test_layers_added_after_the_check_are_checked(monkeypatch):
    monkeypatch.setitem(LAYERS, Custom, vouched)
    plan, model = plan_and_model(batch_size=22)
    fit(model, plan, data, epochs=1)
    model.add(Custom(centred))
    compile_model(model, model.optimizer)
    batch = list(plan.batches(*data))[1]
    for call in (
        lambda: fit(model, plan, data, epochs=1),
        lambda: model.train_on_batch(batch),
        lambda: model.private_gradients(batch),
    ):
        with refused(model, RuntimeError, "one at a time|not checked"):
            call()


@pytest.mark.parametrize(
    ("batches", "changes", "message"),
    [
        (2, {"epochs": 3, "steps_per_epoch": 1}, "of 2 batches 2 times"),
        (3, {"epochs": 3}, "of 3 batches 3 times"),
        (3, {"epochs": 2}, None),
    ],
)
@pytest.mark.invariant(2)
def test_passes_that_the_separation_does_not_permit(batches, changes, message):
    plan = make_min_sep_plan(num_steps=9, sampling=tf_bandmf.MinSep(3, 2))
    model = make_private_model(plan)
    stream = tf.data.Dataset.from_tensor_slices(data).batch(4).take(batches)
    if message is None:
        model.fit(stream, verbose=0, **changes)
        assert model.optimizer.steps_taken == 6
        # The second call of `fit` repeats the data too early, which is detected when
        # its first batch returns.
        with pytest.warns(UserWarning, match="more often, than MinSep.*3.*2"):
            model.fit(stream, verbose=0)
        assert "A batch returned sooner" in str(model.privacy_statement())
        return
    with refused(model, ValueError, message):
        model.fit(stream, verbose=0, **changes)


@pytest.mark.invariant(6)
def test_a_private_model_as_a_layer_of_a_plain_one():
    inner = tf_bandmf.keras.make_private(make_plain_model())
    outer = keras.Sequential([inner, keras.layers.Dense(3)])
    outer.compile("sgd", "sparse_categorical_crossentropy")
    outer.build((None, *data[0].shape[1:]))
    with refused(outer, RuntimeError, "without privacy"):
        outer.fit(*data, verbose=0)
    # Prediction is allowed, and so is training around a frozen private model.
    outer.predict(data[0][:4], verbose=0)
    outer.evaluate(*data, verbose=0)
    inner.trainable = False
    outer.compile("sgd", "sparse_categorical_crossentropy")
    frozen = inner.get_weights()
    outer.fit(*data, verbose=0)
    assert_same(inner, frozen)


@pytest.mark.parametrize(
    "how", ["compile", "attribute", "the step itself", "functions"]
)
@pytest.mark.invariant(16)
def test_steps_that_run_eagerly_are_refused(how):
    plan, model = plan_and_model(run_eagerly=how == "compile")
    if how == "attribute":
        model.run_eagerly = True
    tf.config.run_functions_eagerly(how == "functions")
    try:
        said = "cannot train eagerly|run_functions_eagerly|no train_step"
        with refused(model, RuntimeError, said):
            if how == "the step itself":
                model.train_step(next(iter(plan.batches(*data))))
            else:
                fit(model, plan, data)
    finally:
        tf.config.run_functions_eagerly(False)


class SeesInputs(keras.layers.Layer):
    seen = ()

    def call(self, x):
        if not tf.is_symbolic_tensor(x) and isinstance(x, tf.Tensor):
            SeesInputs.seen = (*self.seen, x.numpy())
        return x


@pytest.mark.invariant(16)
def test_a_model_is_built_with_made_up_examples():
    model = keras.Sequential([SeesInputs(), keras.layers.Dense(3)])
    plan, model = plan_and_model(model=model, epochs=1)
    fit(model, plan, data)
    assert SeesInputs.seen
    assert not any(np.isin(data[0], rows).any() for rows in SeesInputs.seen)
