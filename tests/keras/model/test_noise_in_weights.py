"""A rate that noise would undo is said before the first step, from plan and model alone."""

import math
import warnings

import keras
import pytest

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf.keras.model.noise_in_weights import advised_rate


@pytest.fixture
def model_of(make_plan, make_private_model):
    def make(inner, **changes):
        plan = make_plan(**changes)
        return make_private_model(plan, inner, hidden=False), plan

    return make


def test_the_rate_is_that_of_the_rule(model_of):
    model, plan = model_of(keras.optimizers.SGD(0.1), l2_norm_clip=2.0)
    noise = plan.rmse() / plan.expected_batch_size
    size = sum(math.prod(one.shape) for one in model.trainable_variables)
    rule = 0.8 / math.sqrt(noise) / (1 + noise * math.sqrt(size) / 12) / 2.0
    assert advised_rate(model) == pytest.approx(rule, rel=1e-6)


def test_fit_warns_of_too_large_a_rate_and_names_one_that_would_do(model_of, data):
    advised = advised_rate(model_of(keras.optimizers.SGD(1.0))[0])
    model, plan = model_of(keras.optimizers.SGD(5.0 * advised))
    with pytest.warns(UserWarning, match=f"5 times the {advised:.2g}") as caught:
        model.fit(plan.batches(*data), epochs=1, verbose=0)
    assert len([one for one in caught if "learning rate" in str(one.message)]) == 1
    model, plan = model_of(keras.optimizers.SGD(advised))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="The learning rate")
        model.fit(plan.batches(*data), epochs=1, verbose=0)


@pytest.mark.parametrize(
    ("clip", "clipping", "says"),
    [
        (
            1.0,
            "flat",
            "At the clip norm 1 a model with a Poisson loss predicts too few",
        ),
        (1.0, "automatic", "With automatic clipping a model with a Poisson loss"),
        (10.0, "flat", None),
    ],
)
def test_fit_says_that_clipping_biases_counts(clip, clipping, says, make_plan, data):
    plan = make_plan(l2_norm_clip=clip)
    model = keras.Sequential(
        [keras.Input((data[0].shape[1],)), keras.layers.Dense(1, "exponential")]
    )
    tf_bandmf.keras.make_private(model)
    inner = keras.optimizers.SGD(1e-3)
    optimizer = tf_bandmf.keras.PrivateOptimizer(inner, plan, clipping=clipping)
    model.compile(optimizer, "poisson")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(plan.batches(*data), epochs=1, verbose=0)
    texts = [str(one.message) for one in caught if "Poisson" in str(one.message)]
    assert len(texts) == (says is not None)
    assert all(text.startswith(says) and "l2_norm_clip=10" in text for text in texts)


@pytest.mark.parametrize(
    "inner",
    [
        lambda: keras.optimizers.Adam(100.0),
        lambda: keras.optimizers.SGD(100.0, momentum=0.5),
        lambda: keras.optimizers.SGD(100.0, clipnorm=1.0),
        lambda: keras.optimizers.SGD(
            keras.optimizers.schedules.ExponentialDecay(1e3, 3, 0.5)
        ),
    ],
    ids=["adam", "another workload", "clipnorm", "schedule"],
)
@pytest.mark.filterwarnings("ignore:The plan's noise is shaped")
def test_where_the_rule_does_not_apply_nothing_is_said(inner, model_of):
    assert advised_rate(model_of(inner())[0]) is None
