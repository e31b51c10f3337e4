"""Any inner optimizer is post-processing; SGD's workload is compared with the plan's."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf import workloads

schedules = keras.optimizers.schedules

INNER = {
    "sgd": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "sgd_clipnorm": lambda: keras.optimizers.SGD(0.1, clipnorm=0.1),
    "sgd_ema": lambda: keras.optimizers.SGD(
        0.1, use_ema=True, ema_overwrite_frequency=3
    ),
    "sgd_decay": lambda: keras.optimizers.SGD(0.1, weight_decay=0.1),
    "adam": lambda: keras.optimizers.Adam(schedules.CosineDecay(0.01, 8)),
    "adamw": lambda: keras.optimizers.AdamW(0.01, global_clipnorm=1.0),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, clipvalue=0.5),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "lion": lambda: keras.optimizers.Lion(0.01),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1),
}


@pytest.mark.parametrize("name", INNER)
@pytest.mark.slow_cases(
    "ftrl", "lion", "sgd", "adagrad", "rmsprop", "adamw", "sgd_decay", "sgd_ema", "adam"
)
def test_any_inner_optimizer_gets_the_noisy_gradients_and_nothing_else(
    name, data, make_plan, make_plain_model, make_private_model
):
    plan, seen = make_plan("bsr:2", epochs=1, batch_size=8), []
    model = make_private_model(plan, INNER[name]())
    for batch in plan.batches(*data):
        noisy = model.private_gradients(batch)
        seen.append(noisy.gradients)
        model.optimizer.apply_noisy(noisy)
    plain, optimizer = make_plain_model(), INNER[name]()
    for gradients in seen:
        optimizer.apply(gradients, plain.trainable_variables)
    assert len(seen) == plan.num_steps
    # The private update is a graph, whose operations are rounded otherwise.
    for a, b in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert int(model.optimizer.iterations) == plan.num_steps


def test_gradients_applied_past_the_wrapper_stop_the_run(
    data, make_plan, make_private_model
):
    plan = make_plan(batch_size=11)
    model = make_private_model(plan)
    first, second, *_ = plan.batches(*data)
    model.train_on_batch(first)
    variables = model.trainable_variables
    gradients = [tf.zeros(variable.shape) for variable in variables]
    model.optimizer.inner_optimizer.apply(gradients, variables)
    with pytest.raises(tf.errors.InvalidArgumentError, match="different steps"):
        model.train_on_batch(second)


def sgd(*args, **kwargs):
    return keras.optimizers.SGD(*args, **kwargs)


COSINE = schedules.CosineDecay(0.1, 8)
SCHEDULE = workloads.prefix_sum(8, [float(COSINE(i)) for i in range(8)])
MOMENTUM = "sgd:momentum=0.9"


@pytest.mark.parametrize(
    "make_inner, workload, message",
    [
        (lambda: sgd(0.1, momentum=0.9), None, r'workload="sgd:momentum=0.9"'),
        (lambda: sgd(0.1), MOMENTUM, r"SGD has momentum=0; .* momentum=0.9"),
        (lambda: sgd(0.1, weight_decay=0.5), None, r'workload="sgd:decay=0.95"'),
        (lambda: sgd(COSINE), None, r"learning_rates=\[float\(schedule"),
        (lambda: sgd(0.1), SCHEDULE, 'workload="prefix"'),
        (
            lambda: sgd(COSINE, momentum=0.5),
            MOMENTUM,
            "momentum=0.5, learning_rates=",
        ),
    ],
)
def test_a_workload_that_is_not_what_sgd_does_is_pointed_out(
    make_inner, workload, message, make_plan
):
    plan = make_plan("lambda_cgd", workload=workload)
    with pytest.warns(UserWarning, match=message):
        tf_bandmf.keras.PrivateOptimizer(make_inner(), plan)


@pytest.mark.parametrize(
    "make_inner, mechanism, workload",
    [
        (lambda: sgd(0.1), "bsr", None),
        (lambda: sgd(0.1, momentum=0.9, nesterov=True), "bsr", MOMENTUM),
        (lambda: sgd(COSINE), "lambda_cgd", SCHEDULE),
        (lambda: sgd(0.1, weight_decay=0.5), "lambda_cgd", "sgd:decay=0.95"),
        # A decay too weak to be seen within the run.
        (lambda: sgd(0.1, weight_decay=1e-3), "bsr", None),
        # Independent noise is the same for every workload; Adam has none.
        (lambda: sgd(0.1, momentum=0.9), "identity", None),
        (lambda: keras.optimizers.Adam(), "bsr", MOMENTUM),
        # Nothing moves.
        (lambda: sgd(0.0), "lambda_cgd", SCHEDULE),
        (lambda: sgd(0.0), "bsr", None),
    ],
)
def test_a_workload_that_fits_is_not_talked_about(
    make_inner, mechanism, workload, make_plan
):
    plan = make_plan(mechanism, workload=workload)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        tf_bandmf.keras.PrivateOptimizer(make_inner(), plan)


def test_arguments_of_before_clipping_was_one_value_mean_what_they_meant(make_plan):
    plan, inner = make_plan("identity"), keras.optimizers.SGD()
    with pytest.warns(DeprecationWarning, match="Clipping"):
        earlier = tf_bandmf.keras.PrivateOptimizer(inner, plan, clip_groups="layers")
    now = tf_bandmf.keras.Clipping(groups="layers")
    new = tf_bandmf.keras.PrivateOptimizer(inner, plan, clipping=now)
    assert earlier.get_config()["clipping"] == new.get_config()["clipping"]


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("l2_norm_clip", r"tf_bandmf\.plan\(\.\.\., l2_norm_clip="),
        ("noise_multiplier", r"tf_bandmf\.plan"),
        ("num_microbatches", "microbatch_size to make_private"),
        ("weight_decay", "set it on the inner_optimizer"),
    ],
)
def test_settings_of_something_else_are_refused_with_their_place(
    name, where, make_plan
):
    with pytest.raises(ValueError, match=where):
        tf_bandmf.keras.PrivateOptimizer("sgd", make_plan(), **{name: 1.0})
