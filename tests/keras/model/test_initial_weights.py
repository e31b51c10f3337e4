"""Tests that only the caller can allow initial weights trained without privacy."""

import keras
import pytest
from same_weights import refused
from small_models import (
    compile_model,
    data,
    make_plain_model,
    make_plan,
    make_private_model,
    plan_and_model,
)

import tf_bandmf
import tf_bandmf.keras


@pytest.fixture
def trained():
    """Returns a model trained without privacy, like a baseline in a notebook."""
    model = make_plain_model()
    compile_model(model, keras.optimizers.SGD(0.1))
    model.fit(*data, epochs=1, batch_size=11, verbose=0)
    return tf_bandmf.keras.make_private(model)


@pytest.mark.invariant(6)
def test_a_plain_baseline_is_refused_before_anything_is_trained(trained):
    plan = make_plan()
    make_private_model(plan, model=trained)
    with refused(trained, ValueError, "2 steps with a plain optimizer"):
        trained.fit(plan.batches(*data), verbose=0)
    with refused(trained, ValueError, "vouch_for_weights"):
        trained.train_on_batch(next(iter(plan.batches(*data))))
    # The caller may vouch for weights trained on other data; the statement quotes the
    # assertion.
    trained.optimizer.vouch_for_weights("pretrained on public letters")
    trained.fit(plan.batches(*data), epochs=2, verbose=0)
    assert "Pretrained on public letters" in str(trained.privacy_statement())


def test_the_statement_always_says_where_the_weights_come_from():
    plan, model = plan_and_model()
    model.fit(plan.batches(*data), epochs=2, verbose=0)
    (line,) = [one for one in model.privacy_statement().remarks if "Initial" in one]
    assert "when it was made private" in line
