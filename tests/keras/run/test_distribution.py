"""Tests that runs on several replicas equal runs on one replica.

In each step, noise is drawn once, not once per replica.
"""

import contextlib
import os
import runpy
import signal
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf
from ports import free_ports
from same_weights import assert_same, flat, refused
from small_models import built, data, make_plan, make_private_model, written_steps

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.run import admission


@pytest.fixture(scope="module")
def strategy():
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def train(plan, strategy=None, inner=None, epochs=2, **fit):
    """Trains a model whose size requires several noise blocks."""
    strategy = strategy or tf.distribute.get_strategy()
    with strategy.scope():
        dense = [keras.layers.Dense(1500, "tanh"), keras.layers.Dense(3)]
        options = {"jit_compile": False, "metrics": ["accuracy"]}
        inner, layers = inner and inner(), [keras.Input((5,)), *dense]
        model = make_private_model(plan, inner, model=layers, **options)
    if epochs is not None:
        model.fit(plan.batches(*data), epochs=epochs, verbose=0, **fit)
    return model


@pytest.fixture(scope="module")
def after_an_epoch(strategy, tmp_path_factory):
    """Returns a model after one epoch on two replicas; no test may change it."""
    path = tmp_path_factory.mktemp("halfway") / "run.private"
    return train(make_plan("identity"), strategy, epochs=1, private_state=path)


@pytest.mark.invariant(11)
def test_one_of_two_replicas_writes_the_steps_down(after_an_epoch):
    written = written_steps(after_an_epoch.optimizer.run.file.path)
    assert written == list(range(after_an_epoch.optimizer.steps_taken))


@pytest.mark.slow_cases("lambda_cgd")
@pytest.mark.parametrize("mechanism", ["lambda_cgd", "bsr"])
def test_two_replicas_train_like_one_and_have_one_buffer(mechanism, strategy):
    def inner():
        # `global_clipnorm` must apply to the noisy sum of all replicas.
        return keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.5)

    one, two = (train(make_plan(mechanism), on, inner) for on in (None, strategy))
    buffers = [m.optimizer.run.secrets.buffer for m in (one, two)]
    np.testing.assert_array_equal(*buffers)
    assert np.any(buffers[0]) == (mechanism == "bsr")
    assert_same(two, one, atol=2e-5)


@pytest.mark.slow
@pytest.mark.invariant(5)
def test_replicas_whose_part_of_a_batch_is_empty_train_like_one(strategy):
    plan = make_plan("identity", sampling="poisson", batch_size=1)
    one, two = (train(plan, on, epochs=1) for on in (None, strategy))
    # Where a sum is rounded differently, the noisy mean may move to the next grid point:
    # by 4.9e-4 times the learning rate, 0.1.
    assert_same(two, one, atol=5e-5)


class Keeping(keras.layers.Layer):
    """A layer that stores its input: on replicas, a tensor of the step's graph."""

    def call(self, x):
        self.seen = x
        return x * 1.0


def constrained():
    """Returns a layer that stores its inputs, and one whose constraint reads them."""
    keeping = Keeping()

    def constraint(weights):
        return weights + tf.reduce_mean(keeping.seen)

    return [keeping, keras.layers.Dense(3, kernel_constraint=constraint)]


@pytest.mark.slow
@pytest.mark.attack(
    "Constraints that read activations on replicas",
    tried="A constraint adds what a layer received in the same step, on two replicas.",
    area="inputs",
)
@pytest.mark.invariant(16)
def test_a_constraint_of_kept_activations_is_refused(strategy):
    plan = make_plan("identity", batch_size=22)
    with strategy.scope():
        layers = [keras.Input((5,)), *constrained()]
        model = make_private_model(plan, model=layers, jit_compile=False)
    with refused(model, (UnsupportedModelError, TypeError), "a tensor|out of scope"):
        model.fit(plan.batches(*data), epochs=1, verbose=0)
    # The run is recorded after it has reserved its budget.
    assert model.optimizer.run.schedule_id == admission.NO_SCHEDULE


@pytest.mark.slow
@pytest.mark.invariant(8)
def test_equal_sums_of_two_replicas_do_not_show(strategy):
    plan, (x, y) = make_plan("bsr", test_seed=None), data
    weights = np.ones(len(x), np.float32)
    # The first record has weight 0, so its content changes no sum.
    weights[0] = 0.0

    def released(record):
        admission.forget()
        model = train(plan, strategy, epochs=None)
        with strategy.scope():
            built(model, key=bytes(32))
        given = np.concatenate([np.full_like(x[:1], record), x[1:]])
        model.fit(plan.batches(given, y, weights), epochs=1, verbose=0)
        return flat(model)

    first, again, other = map(released, (0.0, 0.0, 1.0))
    np.testing.assert_array_equal(first, again)
    assert (first - other).std() > 0.1 * plan.noise_stddev / plan.expected_batch_size


@pytest.mark.slow
@pytest.mark.invariant(11)
def test_a_run_on_two_replicas_resumes(strategy, tmp_path):
    sampled = {"sampling": "poisson", "batch_size": 5}
    plan, path = make_plan("identity", test_seed=None, **sampled), tmp_path / "private"
    weights = tmp_path / "half.weights.h5"

    class Save(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            if epoch == 0:
                self.model.save_weights(weights)

    straight = train(plan, strategy, private_state=path, callbacks=[Save()])
    admission.forget()  # Simulates a new process.
    resumed = built(train(plan, strategy, epochs=0), weights)
    resumed.fit(plan.batches(*data), epochs=2, private_state=path, verbose=0)
    assert resumed.optimizer.steps_taken == plan.num_steps
    assert_same(resumed, straight)


def test_train_on_batch_would_count_examples_twice(after_an_epoch):
    model = after_an_epoch
    batch = next(iter(model.optimizer.plan.batches(*data).dataset(4)))
    with pytest.raises(NotImplementedError, match="several times"):
        model.train_on_batch(batch)


@pytest.mark.invariant(2)
def test_each_replica_takes_its_own_part_alone(after_an_epoch, strategy):
    model = after_an_epoch
    batch = next(iter(model.optimizer.plan.batches(*data).dataset(4)))
    with refused(model, tf.errors.InvalidArgumentError, "and replica"):
        programs = model._programs()
        model.optimizer.run.start()
        facts = [part.numpy() for part in programs._local(programs._facts(batch))]
        model.optimizer.run.admit(facts)


def test_model_and_optimizer_belong_together(strategy):
    plan = make_plan("identity")
    model = train(plan, strategy, epochs=0)
    outside = tf_bandmf.keras.PrivateOptimizer(keras.optimizers.SGD(0.1), plan)
    model.optimizer = outside
    with pytest.raises(ValueError, match=r"strategy\.scope"):
        model.fit(plan.batches(*data), verbose=0)


WORKER = """
    import dataclasses, json, os, sys
    import keras, numpy as np, tensorflow as tf, tf_bandmf, tf_bandmf.keras
    folder, name, cluster = sys.argv[1], sys.argv[2], sys.argv[3:]
    others = []
    if cluster:
        # All workers but one are forks: what was imported is there for all.
        name = 0
        for index in range(1, len(cluster)):
            others.append(os.fork())
            if not others[-1]:
                name, others = index, []
                break
        task = {"type": "worker", "index": name}
        config = {"cluster": {"worker": cluster}, "task": task}
        os.environ["TF_CONFIG"] = json.dumps(config)
    strategy = tf.distribute.get_strategy()
    if "TF_CONFIG" in os.environ:
        strategy = tf.distribute.MultiWorkerMirroredStrategy()
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(22, 5)).astype("f4"), rng.integers(0, 3, 22)
    plan = tf_bandmf.plan(
        "bsr:3", noise_multiplier=1.0, delta=1e-5,
        num_examples=22, batch_size=6, epochs=2)
    plan = dataclasses.replace(plan, test_seed=0)
    from tf_bandmf.keras.run.run import shared_key
    from tf_bandmf.noise.keys import NoiseKey
    key = shared_key(strategy, NoiseKey.from_operating_system()).secret_bytes()
    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [keras.Input((5,)), keras.layers.Dense(900), keras.layers.Dense(3)])
        tf_bandmf.keras.make_private(model)
        model.compile(
            tf_bandmf.keras.PrivateOptimizer("sgd", plan),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(plan.batches(x, y), epochs=2, verbose=0)
    weights, key = model.get_weights(), np.frombuffer(key, np.uint8)
    np.savez(f"{folder}/{name}.npz", *weights, key=key)
    assert all(os.waitpid(other, 0)[1] == 0 for other in others)
"""


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 4])
def test_workers_train_like_one(count, tmp_path, monkeypatch):
    program = tmp_path / "worker.py"
    program.write_text(textwrap.dedent(WORKER))
    first = free_ports(count)
    cluster = [f"127.0.0.1:{first + index}" for index in range(count)]
    workers = subprocess.Popen(
        [sys.executable, str(program), str(tmp_path), "0", *cluster],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        monkeypatch.setattr(sys, "argv", [str(program), str(tmp_path), "alone"])
        runpy.run_path(str(program))
        _, errors = workers.communicate(timeout=400)
        assert workers.returncode == 0, errors
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(workers.pid, signal.SIGKILL)
    alone, *each = (np.load(tmp_path / f"{n}.npz") for n in ("alone", *range(count)))
    for worker in each:
        assert set(worker) == set(alone)
        for name in alone:
            np.testing.assert_array_equal(worker[name], each[0][name])
            # Noisy sums are rounded to a grid, so weights can differ by one grid step.
            if name != "key":
                np.testing.assert_allclose(worker[name], alone[name], atol=1e-5)
    # All workers use the noise key that the first worker has drawn.
    assert each[0]["key"].any()
