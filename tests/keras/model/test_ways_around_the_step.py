"""Tests that attempts to bypass the private step by loops, threads or state fail."""

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
from rows import record_file
from same_weights import refused
from small_models import (
    built,
    data,
    make_min_sep_plan,
    make_plan,
    make_private_model,
    plan_and_model,
)

import tf_bandmf.keras
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.sampling import TFRecordExamples

MOMENTS = {
    "moments": lambda: keras.optimizers.Adam(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "averages": lambda: keras.optimizers.SGD(0.1, use_ema=True),
}


@pytest.mark.slow_cases("averages", "moments")
@pytest.mark.attack(
    "Data in the state of the inner optimizer",
    tried="Changes the optimizer's moments, momentum or averages between steps.",
    area="inputs",
)
@pytest.mark.parametrize("kind", MOMENTS)
@pytest.mark.invariant(19)
def test_state_of_the_optimizer_that_something_else_changed(kind):
    # If all batches have the same size, the step is traced only once, which saves time.
    plan, model = plan_and_model(batch_size=11, inner=MOMENTS[kind]())
    batches = list(plan.batches(*data))
    model.train_on_batch(batches[0])
    state = model.optimizer.inner_optimizer.variables[-1]
    state.assign(state + 1.0)
    for step in (model.train_on_batch, model.private_gradients):
        with refused(model, tf.errors.InvalidArgumentError, "inner optimizer"):
            step(batches[1])
    model.optimizer.vouch_for_weights("the averages began anew")
    model.train_on_batch(batches[1])
    model.optimizer.learning_rate = 0.05  # A new learning rate is always allowed.
    noisy = model.private_gradients(batches[2])
    state.assign(state + 1.0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="inner optimizer"):
        model.optimizer.apply_noisy(noisy)


@pytest.mark.attack(
    "Two threads at once",
    tried="Calls private_gradients from two threads at once, on two batches.",
    area="inputs",
)
@pytest.mark.invariant(8)
def test_threads_do_not_share_noise():
    model = make_private_model(make_min_sep_plan())
    x, y = (tf.constant(part) for part in data)
    built(model)
    start, outcomes = threading.Barrier(2), []

    def take(sign):
        start.wait()
        try:
            outcomes.append(model.private_gradients((sign * x, y)))
        except tf.errors.InvalidArgumentError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=take, args=(sign,)) for sign in (1.0, -1.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(actual, Exception) for actual in outcomes) == 1
    assert model.optimizer.steps_taken == 1


def by_hand(model, iterator):
    batch = next(iterator)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(batch["x"]))
    weights = model.trainable_variables
    actual = tape.gradient(loss, [weight.value for weight in weights])
    for weight, gradient in zip(weights, actual, strict=True):
        weight.assign_sub(gradient)
    return {"loss": loss}


class Loop:
    def make_train_function(self, force=False):
        self.train_function = lambda iterator: by_hand(self, iterator)
        return self.train_function


class Own(tf_bandmf.keras.extending.PrivateTraining, keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, x):
        return self.dense(x)


@pytest.mark.attack(
    "A custom training function",
    tried="Overrides make_train_function, train_step or compute_loss, in a class, a "
    "mixin or a plain model that is made private.",
    area="inputs",
)
@pytest.mark.parametrize("name", ["make_train_function", "train_step", "compute_loss"])
@pytest.mark.invariant(6)
def test_a_training_function_of_ones_own_is_refused(name):
    given = {name: Loop.make_train_function}
    for bases, members in (((type("Mixin", (), given), Own), {}), ((Own,), given)):
        with pytest.raises(UnsupportedModelError, match=f"overrides `{name}`"):
            type("Mine", bases, members)
    model = type("Mine", (keras.Model,), given)()
    with pytest.raises(UnsupportedModelError, match=f"overrides `{name}`"):
        tf_bandmf.keras.make_private(model)
    assert not isinstance(model, tf_bandmf.keras.extending.PrivateTraining)


@pytest.mark.invariant(6)
def test_an_assigned_training_function_is_not_used():
    plan, model = plan_and_model("identity", epochs=1, model=Own())
    for name in ("make_train_function", "train_step"):
        with pytest.raises(UnsupportedModelError, match=f"overrides `{name}`"):
            setattr(model, name, lambda force=False: None)
    model.train_function = lambda iterator: by_hand(model, iterator)
    model.fit(plan.batches(*data), epochs=1, verbose=0)
    assert model.optimizer.steps_taken == plan.num_steps


@pytest.mark.attack(
    "A resumed run that parses its records differently",
    tried="Uses another parse function, which would reuse noise for other data.",
    area="inputs",
)
@pytest.mark.invariant(11)
def test_a_run_is_not_resumed_with_another_parse(tmp_path):
    rows = np.column_stack(data).astype("f4")
    records = [tf.io.serialize_tensor(row).numpy() for row in rows]
    file = record_file(tmp_path / "a.tfrecord", records)
    plan, width = make_plan(), data[0].shape[1]

    def parse(factor):
        def of(record):
            row = tf.io.parse_tensor(record, tf.float32)
            row = tf.ensure_shape(row, [width + 1])
            return factor * row[:width], tf.cast(row[width], tf.int32)

        return plan.batches(TFRecordExamples([file], of))

    state = tmp_path / "run.private"
    make_private_model(plan).begin_run(parse(1.0), state)
    with pytest.raises(ValueError, match="other data"):
        make_private_model(plan).begin_run(parse(3.0), state)
