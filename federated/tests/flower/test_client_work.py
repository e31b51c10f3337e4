"""Work of one's own on the devices: a metric that is one more weight."""

import dataclasses

import numpy as np
from flwr.app import Array, ArrayRecord, Message, RecordDict
from one_process import OneProcess

import tf_bandmf
from tf_bandmf_federated.device_policy import DevicePolicy
from tf_bandmf_federated.flower import PrivateFedAvg, private_client_app

N, B, K, PER_ROUND, CLIP = 4, 2, 2, 2, 0.5


def make_plan(**options):
    return tf_bandmf.plan(
        "bsr:2",
        noise_multiplier=0.5,
        delta=1e-5,
        num_steps=N,
        sampling=tf_bandmf.MinSep(B, K),
        l2_norm_clip=CLIP,
        **options,
    )


def run(tmp_path, plan, first, work, silent=False):
    """Weights after the run, and the updates that left the devices."""
    grid = OneProcess(str(tmp_path / "nodes"), plan, 6)
    policy, left = DevicePolicy.from_plan(plan), []
    for node in grid.nodes.values():
        node.app = private_client_app(policy, lambda c: c.node_config["store"])

        @node.app.train()
        def train(message, context, number=node.number):
            before = {n: a.numpy() for n, a in message.content["arrays"].items()}
            after = work(number, before)
            record = ArrayRecord({n: Array(w) for n, w in after.items()})
            return Message(RecordDict({"new": record}), reply_to=message)

    def look(reply):
        about = reply.content["tf-bandmf"]
        assert not about["problem"]
        update = [a.numpy() for a in reply.content["arrays"].values()]
        left.append((about["device"], about["round"], update))
        return reply

    grid.change = look
    if silent:
        grid.silent = set(grid.nodes)
    strategy = PrivateFedAvg(
        plan,
        str(tmp_path / "run"),
        clients_per_round=PER_ROUND,
        max_wait=0.2,
        query_timeout=0.2,
    )
    arrays = ArrayRecord({n: Array(w) for n, w in first.items()})
    result = strategy.start(
        grid,
        arrays,
        timeout=0.0 if silent else 60.0,
    )
    return dict(zip(first, result.arrays.to_numpy_ndarrays())), left


def test_a_metric_as_one_more_weight_is_clipped_and_noised_with_the_update(tmp_path):
    """Its value grows by the noisy mean of each round, at no further budget."""
    plan, scale = dataclasses.replace(make_plan(), test_seed=3), np.float32(0.2)
    first = {"w": np.zeros(4, np.float32), "metric": np.zeros(1, np.float32)}

    def work(number, before):
        value = np.float32(np.clip(number / 6.0, 0.0, 1.0))  # bounded by the device
        return {"w": before["w"], "metric": before["metric"] + scale * value}

    actual, left = run(tmp_path, plan, first, work)
    nobody, _ = run(tmp_path / "2", plan, first, work, silent=True)
    exact = sum(float(update[1][0]) for _, _, update in left) / PER_ROUND
    moved = float(actual["metric"][0] - nobody["metric"][0])
    np.testing.assert_allclose(moved, exact, atol=1e-3)
    assert float(nobody["metric"][0]) != 0.0  # the noise is on it, too
    np.testing.assert_array_equal(actual["w"], nobody["w"])

    def huge(number, before):
        return {"w": before["w"] + 5.0, "metric": before["metric"] + 1e6}

    _, left = run(tmp_path / "3", plan, first, huge)
    for _, _, update in left:
        norm = np.sqrt(sum(np.sum(a.astype(np.float64) ** 2) for a in update))
        assert norm <= CLIP
