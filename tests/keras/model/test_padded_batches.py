"""Training on batches of constant size is training on the batches."""

import numpy as np
import pytest
import tensorflow as tf

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf.sampling import cache_dataset


@pytest.mark.slow
@pytest.mark.parametrize(
    "jit_compile, on_disk", [(False, True), (True, False)], ids=["disk", "xla"]
)
def test_padding_changes_neither_weights_nor_metrics(
    jit_compile, on_disk, data, make_private_model, tmp_path
):
    plan = tf_bandmf.plan(
        "identity",
        noise_multiplier=1.0,
        delta=1e-5,
        participation=tf_bandmf.Poisson(len(data[0]), 2),
        num_steps=20,
        test_seed=3,
    )
    if on_disk:
        dataset = tf.data.Dataset.from_tensor_slices(tuple(data))
        data = (cache_dataset(dataset, str(tmp_path / "cache")),)
    weights, losses = [], []
    for padded in (False, True):
        model = make_private_model(plan, jit_compile=jit_compile)
        schedule = model.begin_run(plan.batches(*data, padded=padded))
        assert min(len(batch.indices) for batch in schedule.indices()) == 0
        history = model.fit(schedule, epochs=1, steps_per_epoch=20, verbose=0)
        weights.append(model.get_weights())
        losses.append(history.history["loss"][0])
    for plain, padded in zip(*weights):
        np.testing.assert_allclose(padded, plain, atol=1e-5)
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
