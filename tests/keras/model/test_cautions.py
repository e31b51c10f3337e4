"""Warnings and refusals before the first step, such as for a run that cannot learn."""

import math
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
    """Raised before the first step, so that nothing is trained."""


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
    """Returns the plan, and all warnings that `fit` gives before the first step."""
    plan = make_plan(**{"mechanism": "identity", **changes})
    last = layers.Dense(3) if last is None else last
    model = keras.Sequential([layers.Input((5,), dtype=dtype), *first, last])
    options = {"model": model, "loss": loss}
    make_private_model(plan, inner or sgd(1e-3), **options)
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


@pytest.mark.parametrize(
    ("inner", "workload", "message"),
    [
        (lambda: sgd(0.1, momentum=0.9), None, 'workload="sgd:momentum=0.9"'),
        (lambda: sgd(0.1), MOMENTUM, "momentum=0 instead of 0.9"),
        (lambda: sgd(0.1, weight_decay=0.5), None, 'workload="sgd:decay=0.95"'),
        (lambda: sgd(COSINE), None, "learning_rates=[float("),
        (lambda: sgd(0.1), SCHEDULE, 'workload="prefix"'),
        (lambda: sgd(COSINE, momentum=0.5), MOMENTUM, "momentum=0.5, learning_rates="),
    ],
)
def test_a_workload_that_is_not_what_sgd_does(inner, workload, message):
    _, (text,) = said(inner(), mechanism="lambda_cgd", workload=workload)
    assert "another optimizer" in text and message in text


@pytest.mark.parametrize(
    ("inner", "mechanism", "workload"),
    [
        (lambda: sgd(0.1), "bsr", None),
        (lambda: sgd(0.1, momentum=0.9, nesterov=True), "bsr", MOMENTUM),
        (lambda: sgd(COSINE), "lambda_cgd", SCHEDULE),
        (lambda: sgd(0.1, weight_decay=0.5), "lambda_cgd", "sgd:decay=0.95"),
        # Such a weak weight decay does not matter within one run.
        (lambda: sgd(0.1, weight_decay=1e-3), "bsr", None),
        # Independent noise is the same for every workload; Adam has no workload.
        (lambda: sgd(0.1, momentum=0.9), "identity", None),
        (lambda: keras.optimizers.Adam(), "bsr", MOMENTUM),
        # The rule for learning rates does not cover these optimizers.
        (lambda: keras.optimizers.Adam(100.0), "lambda_cgd", None),
        (lambda: sgd(100.0, clipnorm=1.0), "lambda_cgd", None),
    ],
)
def test_an_optimizer_that_fits_is_not_talked_about(inner, mechanism, workload):
    assert said(inner(), mechanism=mechanism, workload=workload)[1] == []


def test_a_rate_that_noise_would_undo():
    plan, (text,) = said(sgd(1000.0), mechanism="lambda_cgd", l2_norm_clip=1.5)
    noise, size = plan.rmse() / plan.expected_batch_size, 5 * 3 + 3
    rule = 0.8 / math.sqrt(noise) / (1 + noise * math.sqrt(size) / 12) / 1.5
    assert f"{1000 / rule:.2g} times the {rule:.2g} that tf_bandmf.advise" in text
    below, above = 3.9 * rule, 4.1 * rule
    assert not said(sgd(below), mechanism="lambda_cgd", l2_norm_clip=1.5)[1]
    assert said(sgd(above), mechanism="lambda_cgd", l2_norm_clip=1.5)[1]


def test_outputs_without_probabilities():
    loss = "sparse_categorical_crossentropy"
    _, (text,) = said(loss=loss)
    assert "from_logits=True" in text
    assert not said(last=layers.Dense(3, "softmax"), loss=loss)[1]


SPARSE = keras.losses.SparseCategoricalCrossentropy
SOFTMAX = (3, "softmax")


@pytest.mark.parametrize(
    ("outputs", "loss", "options", "message"),
    [
        ((1, "softmax"), "binary_crossentropy", {}, "always 1"),
        ((1,), SPARSE(), {}, "one output per class"),
        (SOFTMAX, SPARSE(), {"ranges": {"y": (0, 9)}}, "declared up to 9"),
    ],
)
def test_what_learns_nothing_is_refused(outputs, loss, options, message):
    with pytest.raises(ValueError, match=f"{message}.*Nothing was trained"):
        # The self-check would also fail for such labels, but with a TensorFlow error.
        said(last=layers.Dense(*outputs), loss=loss, **options)


@pytest.mark.parametrize("classes", [3, 4])
def test_labels_without_an_output_are_named(classes):
    y = np.arange(22) % 4
    _, texts = said(last=layers.Dense(classes, "softmax"), loss=SPARSE(), y=y)
    assert len(texts) == (classes == 3)
    for text in texts:
        assert text.startswith(f"{100 * np.mean(y == 3):.2g}% of 22 examples")
        assert "none of the classes" in text


def test_bytes_that_nothing_scales():
    _, (text,) = said(dtype="uint8")
    assert "Divide by 255" in text
    assert not said(dtype="uint8", first=[layers.Rescaling(1 / 255)])[1]


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
    """Such weights belong to an output without a loss: only noise would train them."""
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
