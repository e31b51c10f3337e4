"""What a class or a function says of itself is not asked."""

import functools
import types

import keras
import pytest

from tf_bandmf.graphs import definitions
from tf_bandmf.keras.compat.graphs import nn_impl

KERAS = frozenset({"keras"})


def named(part):
    part.__module__, part.__qualname__ = "keras.src.metrics.metric", "Metric"
    return part


@pytest.mark.parametrize(
    "part",
    [
        keras.layers.Dense,
        keras.layers.Dense.call,
        keras.losses.mean_squared_error,
        keras.metrics.Mean(),
        keras.Sequential,
    ],
)
def test_what_keras_defines_is_keras(part):
    assert definitions.is_defined_by(part, KERAS)


@pytest.mark.parametrize(
    "part",
    [
        named(type("Metric", (keras.metrics.Metric,), {})),
        named(lambda y, p: p),
        functools.partial(keras.losses.mean_squared_error),
        type("Mean", (keras.metrics.Mean,), {"__module__": "keras.metrics"}),
    ],
)
def test_a_name_is_not_enough(part):
    assert not definitions.is_defined_by(part, KERAS)
    assert not definitions.is_written_by(part, KERAS)


def test_a_name_of_globals_is_not_enough():
    code = {"__name__": "keras.src.metrics.metric"}
    exec("def function(y, p): return p", code)
    assert not definitions.is_defined_by(code["function"], KERAS)
    assert not definitions.is_written_by(code["function"], KERAS)


def test_a_name_of_a_file_is_not_enough():
    code = {}
    exec(compile("def grad(dy): return dy", nn_impl.__file__, "exec"), code)
    assert not definitions.is_code_of(code["grad"], nn_impl)
    own = definitions.is_code_of
    copied = types.FunctionType(own.__code__, dict(vars(definitions)))
    assert definitions.is_code_of(own, definitions)
    assert not definitions.is_code_of(copied, definitions)


def test_replaced_methods_are_found():
    layer = keras.layers.Dense(1)
    assert definitions.replaced_methods(layer, KERAS) == []
    layer.call = lambda x: x
    assert definitions.replaced_methods(layer, KERAS) == ["call"]
