"""Tests what `fit` warns about or refuses before the first step."""

import re
import warnings

import keras
import numpy as np
import pytest
from same_weights import refused
from small_models import data, make_plan, make_private_model

from tf_bandmf import workloads

layers, sgd = keras.layers, keras.optimizers.SGD
COSINE = keras.optimizers.schedules.CosineDecay(0.1, 8)
SCHEDULE = workloads.prefix_sum(8, [float(COSINE(i)) for i in range(8)])
CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
MOMENTUM = "sgd:momentum=0.9"


class Begun(Exception):
    """An exception that stops `fit` before the first step, so nothing is trained."""


class Stops(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        raise Begun


class OwnStop(keras.callbacks.TerminateOnNaN):
    pass


def said(
    inner=None,
    last=None,
    loss=CROSS_ENTROPY,
    dtype="float32",
    first=(),
    callbacks=(),
    y=data[1],
    ranges=None,
    **changes,
):
    """Returns the plan, and all warnings that `fit` raises before the first step."""
    plan = make_plan(**{"mechanism": "identity", **changes})
    last = layers.Dense(3) if last is None else last()
    model = keras.Sequential([layers.Input((5,), dtype=dtype), *first, last])
    options = {"model": model, "loss": loss}
    make_private_model(plan, inner() if inner else sgd(1e-3), **options)
    with warnings.catch_warnings(record=True) as caught, pytest.raises(Begun):
        warnings.simplefilter("always")
        x = np.abs(data[0] * 50).astype(dtype)
        model.fit(
            plan.batches(x, y, ranges=ranges),
            epochs=1,
            verbose=0,
            callbacks=[*callbacks, Stops()],
        )
    caught = [one for one in caught if one.category is UserWarning]
    assert all(one.filename == __file__ for one in caught)
    return plan, [str(one.message) for one in caught]


LAMBDA = {"mechanism": "lambda_cgd"}
LOSS = {"loss": "sparse_categorical_crossentropy"}
FOUR = {**LOSS, "y": np.arange(22) % 4}
SOFT = {"last": lambda: layers.Dense(3, "softmax")}
SCALED = {"dtype": "uint8", "first": [layers.Rescaling(1 / 255)]}


@pytest.mark.parametrize(
    ("mistake", "words", "repaired"),
    [
        (
            {"inner": lambda: sgd(0.1, momentum=0.9), **LAMBDA},
            'another optimizer.*workload="sgd:momentum=0.9"',
            {"inner": lambda: sgd(0.1, momentum=0.9), **LAMBDA, "workload": MOMENTUM},
        ),
        (
            {"inner": lambda: sgd(COSINE), **LAMBDA},
            r"another optimizer.*learning_rates=\[float\(",
            {"inner": lambda: sgd(COSINE), **LAMBDA, "workload": SCHEDULE},
        ),
        # If the optimizer clips gradients, there is no warning about the learning rate.
        (
            {"inner": lambda: sgd(1000.0), **LAMBDA},
            "times the .* that tf_bandmf.advise",
            {"inner": lambda: sgd(1000.0, clipnorm=1.0), **LAMBDA},
        ),
        (LOSS, "from_logits=True", {**SOFT, **LOSS}),
        (
            {**SOFT, **FOUR},
            "none of the classes",
            {"last": lambda: layers.Dense(4, "softmax"), **FOUR},
        ),
        ({"dtype": "uint8"}, "Divide by 255", SCALED),
    ],
)
def test_a_mistake_is_warned_of_until_it_is_repaired(mistake, words, repaired):
    _, (text,) = said(**mistake)
    assert re.search(words, text)
    assert said(**repaired)[1] == []


SPARSE = keras.losses.SparseCategoricalCrossentropy
SOFTMAX = (3, "softmax")


@pytest.mark.parametrize(
    ("outputs", "loss", "options", "message"),
    [
        ((1, "softmax"), "binary_crossentropy", {}, "always 1"),
        ((1,), SPARSE(), {}, "one output per class"),
        (SOFTMAX, SPARSE(), {"ranges": {"y": (0, 9)}}, "declared label: 9"),
    ],
)
def test_what_learns_nothing_is_refused(outputs, loss, options, message):
    with pytest.raises(ValueError, match=f"{message}.*Nothing was trained"):
        # The self-check would also fail for the labels of these cases, but with
        # TensorFlow's error.
        said(last=lambda: layers.Dense(*outputs), loss=loss, **options)


@pytest.mark.invariant(18)
def test_callbacks_that_act_on_the_training_data(tmp_path):
    callbacks = [
        keras.callbacks.TerminateOnNaN(),
        OwnStop(),
        keras.callbacks.ReduceLROnPlateau("loss"),
        keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", save_best_only=True),
        keras.callbacks.EarlyStopping("val_loss"),
        keras.callbacks.EarlyStopping("private_accuracy"),
        keras.callbacks.ModelCheckpoint(tmp_path / "all.keras", monitor="loss"),
        keras.callbacks.History(),
    ]
    _, texts = said(callbacks=callbacks)
    names = ["TerminateOnNaN", "OwnStop", "ReduceLROnPlateau"]
    assert [text.split()[0] for text in texts] == names
    assert all("acts on 'loss'" in text for text in texts)


def test_a_backup_that_no_run_can_resume_from(tmp_path):
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    _, (text,) = said(callbacks=[backup])
    assert "private_state='run.private'" in text


@pytest.mark.parametrize("trains", [True, False])
def test_weights_that_the_loss_does_not_depend_on(trains):
    """Asserts that trainable weights that no loss depends on are refused.

    Only the noise would move such weights.
    """
    (x, y), plan = data, make_plan()
    inputs = keras.Input((5,))
    spare = layers.Dense(2, name="spare", trainable=trains)(inputs)
    model = keras.Model(inputs, {"kind": layers.Dense(3)(inputs), "spare": spare})
    loss = {"kind": CROSS_ENTROPY, "spare": None}
    make_private_model(plan, model=model, loss=loss)
    batches = plan.batches(x, {"kind": y})
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        if not trains:
            model.fit(batches, epochs=1, verbose=0)
            return
        with refused(model, UserWarning, "weights spare/kernel, spare/bias: they"):
            model.fit(batches, epochs=1, verbose=0)
