"""Keras models on Flower, as the federated guide has them."""

import dataclasses

import keras
import numpy as np
from flwr.app import ArrayRecord, Message, RecordDict
from one_process import OneProcess

import tf_bandmf
from tf_bandmf_federated.device_policy import DevicePolicy
from tf_bandmf_federated.flower import PrivateFedAvg, private_client_app

PLAN = dataclasses.replace(
    tf_bandmf.plan(
        "lambda_cgd",
        noise_multiplier=1.0,
        delta=1e-5,
        num_steps=2,
        sampling=tf_bandmf.MinSep(2, 1),
        l2_norm_clip=0.5,
    ),
    test_seed=3,
)
POLICY = DevicePolicy.from_plan(PLAN)


def test_a_model_with_batch_normalization(tmp_path):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(3),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(1),
        ]
    )
    model.compile(keras.optimizers.SGD(0.3), "mse", run_eagerly=True)
    first = model.get_weights()
    fixed = [i for i, w in enumerate(model.weights) if not w.trainable]
    x = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    after, left = [], []  # what was trained on the devices, and what they sent

    def train(message, context):
        model.set_weights(message.content["arrays"].to_numpy_ndarrays())
        model.fit(x, x.sum(axis=1), epochs=1, verbose=0)
        after.append(model.get_weights())
        record = ArrayRecord(model.get_weights())
        return Message(RecordDict({"arrays": record}), reply_to=message)

    def run(folder, silent):
        grid = OneProcess(str(folder / "nodes"), PLAN, 4)
        grid.silent = set(grid.nodes) if silent else set()
        for node in grid.nodes.values():
            node.app = private_client_app(POLICY, lambda c: c.node_config["store"])
            node.app.train()(train)
        grid.change = lambda reply: left.append(reply.content["arrays"]) or reply
        strategy = PrivateFedAvg(
            PLAN,
            str(folder / "run"),
            clients_per_round=2,
            max_wait=0.2,
            not_trained=[str(i) for i in fixed],
        )
        result = strategy.start(
            grid, ArrayRecord(first), num_rounds=1, timeout=0.0 if silent else 60.0
        )
        return result.arrays.to_numpy_ndarrays()

    actual = run(tmp_path / "run", silent=False)
    noise = run(tmp_path / "silent", silent=True)
    assert len(fixed) == 2 and len(after) == len(left) == 2
    for i in fixed:  # the moving averages, which training changed
        assert not np.array_equal(after[0][i], first[i])
        np.testing.assert_array_equal(actual[i], first[i])
    trained = [i for i in range(len(first)) if i not in fixed]
    assert all(list(one) == [str(i) for i in trained] for one in left)
    moved = np.concatenate([np.ravel(after[0][i] - first[i]) for i in trained])
    norm = np.linalg.norm(moved)
    assert norm > 2 * PLAN.l2_norm_clip  # both devices have the same data
    mean = np.concatenate([np.ravel(actual[i] - noise[i]) for i in trained])
    grid_of_noise = 2.0**-10 * PLAN.noise_stddev
    np.testing.assert_allclose(
        mean, moved * PLAN.l2_norm_clip / norm, atol=grid_of_noise
    )
