"""Training on batches of constant size is training on the batches."""

import keras
import numpy as np
import pytest
from small_plans import planned

import tf_bandmf
import tf_bandmf.keras


@pytest.mark.slow
@pytest.mark.parametrize(
    "jit_compile, on_disk", [(False, True), (True, False)], ids=["disk", "xla"]
)
def test_padding_changes_neither_weights_nor_metrics(
    jit_compile, on_disk, data, make_private_model, tmp_path
):
    plan = planned(
        "identity",
        noise_multiplier=1.0,
        delta=1e-5,
        sampling=tf_bandmf.Poisson(len(data[0]), 2),
        num_steps=20,
        test_seed=3,
    )
    if on_disk:
        np.save(tmp_path / "x.npy", data[0])
        data = np.load(tmp_path / "x.npy", mmap_mode="r"), data[1]
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


@pytest.mark.parametrize(
    "users", [None, np.arange(22) // 3], ids=["examples", "several rows each"]
)
@pytest.mark.parametrize(
    "wanted",
    [
        ["accuracy", keras.metrics.MeanAbsoluteError(name="mae"), "AUC"],
        pytest.param([], marks=pytest.mark.slow),
    ],
    ids=["metrics", "weighted"],
)
def test_padding_counts_in_no_metric(users, wanted, make_plan):
    """A pass over the data has the metrics that `evaluate` has, padded or not."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(22, 4)).astype(np.float32)
    y = (x[:, :1] + 0.3 > 0).astype(np.float32)
    units = {} if users is None else {"users": users, "rows_per_user": 3}
    # 22 examples in 4 batches, and 8 users in 3: some are padded.
    plan = make_plan(
        "identity",
        epochs=1,
        **({} if users is None else {"num_examples": 8, "batch_size": 3}),
        unit="one training example" if users is None else "one user",
    )
    model = tf_bandmf.keras.make_private(
        keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, "sigmoid")]),
    )
    optimizer = tf_bandmf.keras.PrivateOptimizer(keras.optimizers.SGD(1e-9), plan)
    kind = "metrics" if wanted else "weighted_metrics"
    model.compile(optimizer, "binary_crossentropy", **{kind: wanted or ["accuracy"]})
    history = model.fit(plan.batches(x, y, padded=True, **units), verbose=0).history
    expected = model.evaluate(x, y, verbose=0, return_dict=True)
    if users is not None:  # The loss is a mean over users, metrics are over rows.
        del expected["loss"]
    for name, value in expected.items():
        assert history[name][-1] == pytest.approx(value, rel=1e-4), name
