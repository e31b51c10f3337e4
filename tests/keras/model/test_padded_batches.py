"""Tests that padding of batches to a constant size does not change metrics."""

import keras
import numpy as np
import pytest
from small_models import plan_and_model


@pytest.mark.parametrize(
    "users", [None, np.arange(22) // 3], ids=["examples", "several rows each"]
)
def test_padding_counts_in_no_metric(users):
    """Asserts that metrics of an epoch of padded batches equal those of `evaluate`."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(22, 4)).astype(np.float32)
    y = (x[:, :1] + 0.3 > 0).astype(np.float32)
    units = {} if users is None else {"users": users, "rows_per_user": 3}
    # There are 22 examples in 4 batches, or 8 users in 3 batches, so some batches need
    # padding.
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
    # The loss is averaged over users, but the metrics are averaged over rows.
    if users is not None:
        del expected["loss"]
    for name, value in expected.items():
        assert history[name][-1] == pytest.approx(value, rel=1e-4), name
