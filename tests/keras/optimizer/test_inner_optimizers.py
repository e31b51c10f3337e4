"""Tests that inner optimizers of any Keras class only post-process noisy gradients."""

import keras
import pytest
from same_weights import assert_same
from small_models import data, make_plain_model, make_plan, make_private_model

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
    "muon": lambda: keras.optimizers.Muon(0.01),
    "ftrl": lambda: keras.optimizers.Ftrl(0.1),
}


@pytest.mark.parametrize("name", INNER)
@pytest.mark.slow_cases(but=["sgd_clipnorm", "muon"])
def test_any_inner_optimizer_gets_the_noisy_gradients_and_nothing_else(name):
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
    # The private update runs as a graph, and rounds differently than eager operations.
    assert_same(model, plain, rtol=1e-5, atol=1e-6)
    assert int(model.optimizer.iterations) == plan.num_steps
