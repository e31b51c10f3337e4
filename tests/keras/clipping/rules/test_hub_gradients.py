"""Compares clipped sums of KerasHub tasks with gradients of single examples."""

import clipping_reference as reference
import hub_models
import keras
import pytest
from small_models import compile_model

from tf_bandmf.keras.clipping.forward.tapped_layers import find_units
from tf_bandmf.keras.clipping.rules.per_example import PerExampleRule

MODELS = {
    **{name: (name, make) for name, make in hub_models.MAKERS.items()},
    **{
        f"{name}, adapted": (name, lambda name=name: hub_models.adapted(name))
        for name in ("bert", "gpt2", "gemma")
    },
    # This tied embedding table is too large to form per-example gradients, so norms are
    # computed from inner products.
    "gpt2, large": (
        "gpt2",
        lambda: hub_models.gpt2(vocabulary_size=4000, hidden_dim=16),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_gradients_equal_those_of_examples_one_by_one(name):
    keras.utils.set_random_seed(0)
    kind, make = MODELS[name]
    model = compile_model(make(), "sgd")
    reference.randomize(model)
    reference.assert_exact(model, *hub_models.data(kind))
    # No layer runs on one example at a time, except the position embeddings in the
    # backward pass.
    assert reference.layers_alone(model, hub_models.data(kind)[0]) == ()
    for unit in find_units(model, model.trainable_variables):
        is_position = type(unit.layer).__name__ == "PositionEmbedding"
        assert is_position or not isinstance(unit.rule, PerExampleRule), unit.layer.name
