"""What drowns in noise is said before the first step, from plan and rate alone."""

import math
import warnings

import keras
import pytest

from tf_bandmf.keras.model.noise_in_weights import noise_in_weights, warn_of_noise


@pytest.fixture
def model_of(make_plan, make_private_model):
    def make(inner, **changes):
        plan = make_plan(**changes)
        model = make_private_model(plan, inner, hidden=False)
        model.optimizer.build(model.trainable_variables)
        return model, plan

    return make


def test_it_is_rate_times_error_over_batch_size_and_grows_with_the_fan_in(model_of):
    model, plan = model_of(keras.optimizers.SGD(0.1), l2_norm_clip=2.0)
    expected = 0.1 * plan.rmse() * 2.0 / plan.expected_batch_size * math.sqrt(5)
    assert noise_in_weights(model) == pytest.approx(expected, rel=1e-6)


def test_too_large_a_rate_is_said_with_one_that_would_do(model_of, data):
    model, _ = model_of(keras.optimizers.SGD(1.0))
    rate = 60.0 / noise_in_weights(model)
    model, plan = model_of(keras.optimizers.SGD(rate))
    with pytest.warns(UserWarning, match=f"rate of about {rate / 20:.2g}"):
        model.fit(plan.batches(*data), verbose=0)
    model, _ = model_of(keras.optimizers.SGD(rate / 20))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warn_of_noise(model)


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
def test_where_it_is_not_known_nothing_is_said(inner, model_of):
    assert noise_in_weights(model_of(inner())[0]) is None
