"""Training on batches padded to a constant size, compared with unpadded batches."""

import keras
import numpy as np
import pytest
from same_weights import assert_same
from small_models import data, make_private_model, plan_and_model
from small_plans import planned

import tf_bandmf
import tf_bandmf.keras


@pytest.mark.slow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_padding_changes_neither_weights_nor_metrics(jit_compile):
    plan = planned(
        "identity",
        noise_multiplier=1.0,
        delta=1e-5,
        sampling=tf_bandmf.Poisson(len(data[0]), 2),
        num_steps=20,
        test_seed=3,
    )
    models, losses = [], []
    for padded in (False, True):
        model = make_private_model(plan, jit_compile=jit_compile)
        schedule = model.begin_run(plan.batches(*data, padded=padded))
        assert min(len(batch.indices) for batch in schedule.indices()) == 0
        history = model.fit(schedule, epochs=1, steps_per_epoch=20, verbose=0)
        models.append(model)
        losses.append(history.history["loss"][0])
    assert_same(*models, atol=1e-5)
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


@pytest.mark.parametrize(
    "users", [None, np.arange(22) // 3], ids=["examples", "several rows each"]
)
def test_padding_counts_in_no_metric(users):
    """The metrics of an epoch with padded batches equal those of `evaluate`."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(22, 4)).astype(np.float32)
    y = (x[:, :1] + 0.3 > 0).astype(np.float32)
    units = {} if users is None else {"users": users, "rows_per_user": 3}
    # 22 examples in 4 batches, or 8 users in 3: some batches need padding.
    sizes = {} if users is None else {"num_examples": 8, "batch_size": 3}
    if users is not None:
        sizes["unit"] = "one user"
    layers = [keras.Input((4,)), keras.layers.Dense(1, "sigmoid")]
    plan, model = plan_and_model(
        "identity",
        epochs=1,
        **sizes,
        model=keras.Sequential(layers),
        inner=keras.optimizers.SGD(1e-9),
        loss="binary_crossentropy",
        metrics=["accuracy", keras.metrics.MeanAbsoluteError(name="mae"), "AUC"],
    )
    history = model.fit(plan.batches(x, y, padded=True, **units), verbose=0).history
    expected = model.evaluate(x, y, verbose=0, return_dict=True)
    if users is not None:  # The loss is averaged over users, metrics over rows.
        del expected["loss"]
    for name, value in expected.items():
        assert history[name][-1] == pytest.approx(value, rel=1e-4), name
