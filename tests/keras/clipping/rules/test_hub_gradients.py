"""Tasks of KerasHub against gradients of the examples one by one."""

import clipping_reference as reference
import hub_models
import keras
import pytest

from tf_bandmf.keras.clipping.forward.tapped_layers import find_units
from tf_bandmf.keras.clipping.proof.judge import layers_executed_alone
from tf_bandmf.keras.clipping.rules.per_example import PerExampleRule


def assert_batched(model):
    """No layer ran for each example by itself, forward or backward."""
    assert layers_executed_alone(model) == ()
    for unit in find_units(model, model.trainable_variables):
        assert not isinstance(unit.rule, PerExampleRule), unit.layer.name


@pytest.mark.slow
@pytest.mark.parametrize("name", hub_models.MAKERS)
def test_gradients_equal_those_of_examples_one_by_one(name):
    keras.utils.set_random_seed(0)
    model = hub_models.compile_for_training(hub_models.MAKERS[name]())
    reference.randomize(model)
    reference.assert_exact(model, *hub_models.data(name))
    assert_batched(model)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "gpt2", "gemma"])
def test_adapters_in_a_frozen_backbone(name):
    keras.utils.set_random_seed(0)
    model = hub_models.compile_for_training(hub_models.adapted(name))
    reference.randomize(model)
    reference.assert_exact(model, *hub_models.data(name))
    assert_batched(model)


@pytest.mark.slow
def test_a_language_model_whose_table_is_not_formed():
    """A tied table of 4,000 rows: products of lookups and of projections together."""
    keras.utils.set_random_seed(0)
    model = hub_models.gpt2(vocabulary_size=4000, hidden_dim=16)
    hub_models.compile_for_training(model)
    reference.randomize(model)
    reference.assert_exact(model, *hub_models.data("gpt2"))
