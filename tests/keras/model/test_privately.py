"""Tests `fit_privately`, which combines advice, plan, `fit` and release in one call."""

import keras
import numpy as np
import pytest
from same_weights import refused
from small_plans import small_plan

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf.keras import fit_privately
from tf_bandmf.strategies import registry

NUM_EXAMPLES = 1000


@pytest.fixture(autouse=True)
def few_mechanisms(monkeypatch):
    """Reduces the number of mechanisms that "auto" compares, to save time."""
    monkeypatch.setattr(registry, "auto_names", lambda *_: ("identity", "bisr"))


BUDGET = {"epsilon": 8.0, "delta": 1e-5, "epochs": 4}


@pytest.fixture(scope="module")
def line():
    """Returns examples with two inputs and a target that is linear in these inputs."""
    x = np.random.default_rng(0).normal(size=(NUM_EXAMPLES, 2)).astype(np.float32)
    return x, x @ np.array([[1.0], [-0.5]], np.float32)


def linear():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])


PLAN = small_plan("identity", NUM_EXAMPLES, 250, 1, epsilon=8.0)


def test_it_trains_as_advice_by_hand_and_releases_a_plain_model(line, capsys):
    x, y = line
    model = keras.Sequential([keras.layers.Dense(1)])
    fitted = fit_privately(
        model, x, y, loss="mse", metrics=["mae"], validation_data=(x, y), **BUDGET
    )
    advice = tf_bandmf.advise(
        num_examples=NUM_EXAMPLES, num_parameters=3, loss="mse", **BUDGET
    )
    assert fitted.plan.plan_id == advice.plan.plan_id
    assert str(fitted.advice) in capsys.readouterr().out
    assert model.optimizer.steps_taken == fitted.plan.num_steps
    inner = model.optimizer.inner_optimizer.get_config()
    assert {**inner, "name": ""} == {**advice.optimizer().get_config(), "name": ""}
    assert type(fitted.model) is keras.Sequential
    mse, mae = fitted.model.evaluate(x, y, verbose=0)
    # The squared error is 0 without noise and clipping; predicting the mean gives 1.25.
    assert mse < 0.1 and mae < 0.3
    assert fitted.history.history["val_mae"][-1] < 0.3
    assert fitted.statement.epsilon == pytest.approx(8.0)
    assert str(fitted.statement) in str(fitted.card) and str(fitted) == str(
        model.privacy_statement()
    )


def test_what_is_given_is_used(line):
    x, y = line
    model = linear()
    model.compile("rmsprop", "mae", metrics=["mse"])
    fitted = fit_privately(
        model, x, y, plan=PLAN, optimizer=keras.optimizers.Adam(0.5), verbose=0
    )
    assert fitted.plan is PLAN and fitted.advice is None
    assert isinstance(model.optimizer.inner_optimizer, keras.optimizers.Adam)
    assert fitted.model.loss == "mae"
    assert set(fitted.model.evaluate(x, y, verbose=0, return_dict=True)) == {
        *("loss", "mse")
    }
    # Each statement covers both runs on the data, so their epsilons are equal.
    again = {"plan": PLAN, "loss": "mse", "verbose": 0, "additional_run": True}
    later = fit_privately(linear(), x, y, **again)
    assert fitted.statement.epsilon == later.statement.epsilon > PLAN.epsilon


@pytest.mark.parametrize(
    "changed, error, text",
    [
        ({"epsilon": None}, ValueError, "missing: epsilon"),
        ({"loss": None}, ValueError, "no loss"),
        ({"y": np.zeros(7)}, ValueError, "7"),
        ({"sampling": "poisson"}, TypeError, "sampling"),
        ({"steps_per_epoch": 1}, ValueError, "takes all steps"),
    ],
)
def test_a_mistake_is_an_error_before_anything_is_trained(line, changed, error, text):
    x, y = line
    model = linear()
    arguments = {"x": x, "y": y, "loss": "mse", "verbose": 0, **BUDGET, **changed}
    with refused(model, error, text):
        fit_privately(model, **arguments)


class Line(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(inputs)


class Widths(Line):
    def __init__(self, width):
        super().__init__()
        self.dense = keras.layers.Dense(width)


def test_a_class_is_released_or_refused_before_a_step(line):
    x, y = line
    given = {"plan": PLAN, "loss": "mse", "optimizer": "SGD", "verbose": 0}
    model = Line()
    fitted = fit_privately(model, x, y, **given)
    assert type(fitted.model) is Line
    np.testing.assert_array_equal(
        fitted.model.predict(x[:5], verbose=0), model.predict(x[:5], verbose=0)
    )
    model = Widths(1)
    model(x[:1])
    with refused(model, TypeError, "get_config"):
        fit_privately(model, x, y, additional_run=True, **given)
