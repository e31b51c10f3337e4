"""Keras functions refuse wrong values of any argument with an error that names it."""

import keras
import pytest
from hostile import complaints
from small_plans import small_plan

import tf_bandmf
import tf_bandmf.keras

# For each argument, the names (keys of `hostile.VALUES`) of values that are valid.
RIGHT = {
    "inner_optimizer": set(),
    "plan": set(),
    "loss_scale_factor": {"None", "2^63"},
    "clipping": set(),
    "kind": set(),
    "groups": {"None"},
    "scaling": {"None"},
    "model": set(),
    "microbatch_size": {"None"},
}


@pytest.fixture(scope="module")
def plan():
    return small_plan("identity", 20, 5, 1, test_seed=0)


def model():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])


@pytest.mark.attack(
    "Wrong arguments of the Keras part",
    tried="Arguments of functions that make a model private get 32 values each.",
    area="fuzz",
)
@pytest.mark.parametrize(
    "function",
    [
        tf_bandmf.keras.PrivateOptimizer,
        tf_bandmf.keras.Clipping,
        tf_bandmf.keras.make_private,
        tf_bandmf.keras.to_plain,
    ],
    ids=lambda function: function.__name__,
)
def test_a_wrong_argument_gets_an_error_that_names_it(function, plan):
    usual = {
        "PrivateOptimizer": {
            "inner_optimizer": "sgd",
            "plan": plan,
            "loss_scale_factor": None,
            "clipping": "flat",
        },
        "Clipping": {"kind": "flat", "groups": None, "scaling": None},
        "make_private": {"model": model(), "microbatch_size": None},
        "to_plain": {"model": tf_bandmf.keras.make_private(model())},
    }[function.__name__]
    wrong = complaints(function, usual, lambda name, kind: kind in RIGHT[name], {})
    assert not wrong, wrong
