"""Tests that a private step runs on a simulated GPU, as a few compiled programs."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from same_weights import assert_same
from small_models import make_private_model
from small_plans import small_plan
from tensorflow.python.framework import op_callbacks

from tf_bandmf.keras.model import programs as programs_lib

EXAMPLES, BATCH = 32, 8


def convolutional():
    return [
        keras.Input((8, 8, 1)),
        layers.Conv2D(4, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
        layers.Dropout(0.5),
        layers.Dense(10),
    ]


def table():
    return [
        keras.Input((6,), dtype="int32"),
        layers.Embedding(50, 8),
        layers.GlobalAveragePooling1D(),
        layers.Dense(10),
    ]


def private_model(
    make,
    mechanism="lambda_cgd",
    optimizer=None,
    jit_compile="auto",
    test_seed=None,
):
    """Returns a private model and the batches on which to train it."""
    sizes = EXAMPLES, BATCH, 2
    plan = small_plan(mechanism, *sizes, epsilon=8, delta=1e-4, test_seed=test_seed)
    compiled = {"metrics": ["accuracy"], "jit_compile": jit_compile}
    inner = optimizer or keras.optimizers.Adam(0.01)
    model = make_private_model(plan, inner, model=make(), **compiled)
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 10, size=(EXAMPLES, *model.input_shape[1:]))
    x = x.astype(model.inputs[0].dtype)
    return model, plan.batches(x, rng.integers(0, 10, EXAMPLES))


def traces(program):
    return program.function._list_all_concrete_functions()


@pytest.fixture
def as_on_a_gpu(monkeypatch):
    """Makes the package choose tensor layouts and digests as it does with a GPU."""
    devices = tf.config.list_logical_devices
    monkeypatch.setattr(
        tf.config,
        "list_logical_devices",
        lambda kind=None: ["GPU:0"] if kind == "GPU" else devices(kind),
    )


def integers_on_the_host(create, **arguments):
    """Creates int32 variables on "CPU:0", and others on "CPU:1", which simulates a GPU.

    TensorFlow also keeps int32 variables in host memory if there is a real GPU.
    """
    value = arguments["initial_value"]
    value = value() if callable(value) else value
    kind = tf.dtypes.as_dtype(
        arguments.get("dtype") or tf.convert_to_tensor(value).dtype
    )
    with tf.device("CPU:0" if kind == tf.int32 else "CPU:1"):
        return create(**{**arguments, "initial_value": value})


@pytest.mark.parametrize("jit_compile", ["auto", True])
@pytest.mark.parametrize("mechanism", ["identity", "bsr", "blt:2"])
@pytest.mark.slow_cases("*identity*", "*blt*")
@pytest.mark.on_cpu
def test_a_step_runs_where_integers_stay_on_the_host(
    mechanism, jit_compile, as_on_a_gpu
):
    # A compiled program cannot read a variable on another device.
    with tf.variable_creator_scope(integers_on_the_host), tf.device("CPU:1"):
        model, batches = private_model(
            convolutional, mechanism, jit_compile=jit_compile
        )
        model.fit(batches, epochs=1, verbose=0)
    assert model.optimizer.steps_taken == EXAMPLES // BATCH
    devices = [weight.value.device[-1] for weight in model.trainable_variables]
    assert set(devices) == {"1"}


class Starts(keras.callbacks.Callback):
    """A callback that records the operations that the host starts in the last step."""

    def __init__(self):
        super().__init__()
        self.names, self.of_step = [], []

    def __call__(
        self, operation, inputs, attributes, outputs, op_name=None, graph=None
    ):
        if graph is None:
            self.names.append(tf.compat.as_str(operation))

    def on_train_batch_begin(self, batch, logs=None):
        self.names.clear()

    def on_train_batch_end(self, batch, logs=None):
        self.of_step = list(self.names)


@pytest.mark.on_cpu
def test_on_an_accelerator_a_step_is_four_programs(monkeypatch):
    monkeypatch.setattr(programs_lib, "device_kind", lambda: "GPU")
    model, batches = private_model(convolutional, jit_compile=True)
    starts = Starts()
    op_callbacks.add_op_callback(starts)
    try:
        model.fit(batches, epochs=1, verbose=0, callbacks=[starts])
    finally:
        op_callbacks.clear_op_callbacks()
    programs = model._training.programs[1]
    started = [n for n in starts.of_step if not re.search("IteratorGetNext|facts", n)]
    compiled = [programs._clip, programs._noise, programs._update, programs._measure]
    assert all(program.function._jit_compile for program in compiled)
    names = {
        tf.compat.as_str(trace.name)
        for program in compiled
        for trace in traces(program)
    }
    assert len(started) == 4 and set(started) <= names


@pytest.mark.parametrize("mechanism", ["bsr", "lambda_cgd"])
@pytest.mark.on_cpu
def test_programs_of_an_accelerator_take_the_same_steps(mechanism, monkeypatch):
    weights = []
    for kind in ("CPU", "GPU"):
        keras.utils.set_random_seed(0)
        monkeypatch.setattr(programs_lib, "device_kind", lambda kind=kind: kind)
        model, batches = private_model(
            table, mechanism, keras.optimizers.SGD(0.1), jit_compile=True, test_seed=3
        )
        model.fit(batches, epochs=2, verbose=0)
        weights.append(model.get_weights())
    assert_same(*weights, atol=1e-5)
