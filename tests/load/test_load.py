"""Load tests with many steps, long plans, and models that do not fit into memory."""

import pathlib
import time

import numpy as np
import pytest
import tensorflow as tf
from small_plans import planned, small_plan
from whiteness import rows_of

import tf_bandmf
from tf_bandmf import noise, strategies, workloads
from tf_bandmf.files import machine
from tf_bandmf.noise.keys import NoiseKey

keras = pytest.importorskip("keras", minversion="3.12")

from small_models import make_private_model  # noqa: E402

import tf_bandmf.keras  # noqa: E402
from tf_bandmf.keras.run import admission  # noqa: E402
from tf_bandmf.keras.run.noising import Noising  # noqa: E402

KEY = NoiseKey.for_testing(0)


def resident_bytes():
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return 4096 * pages


@pytest.mark.slow_cases("bsr-2000")
@pytest.mark.attack(
    "Drift of the noise",
    tried="The noise of many steps, from a ring buffer or from buffered geometric "
    "sums, is compared with float64.",
    area="load",
)
@pytest.mark.parametrize(
    "num_steps", [2_000, pytest.param(100_000, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", ["bsr", "blt"])
@pytest.mark.invariant(9)
def test_noise_does_not_drift(name, num_steps, figure):
    strategy = (
        strategies.bsr(workloads.prefix_sum(num_steps), 8)
        if name == "bsr"
        else strategies.Strategy(
            "blt",
            tf_bandmf.matrices.BufferedToeplitz([0.999, 0.5], [0.7, 0.2], num_steps),
        ).in_float32()
    )
    actual = rows_of(strategy, 4, seed=0)
    z = rows_of(strategies.identity(num_steps), 4, seed=0)
    expected = strategy.matrix.solve(z.astype(np.float64))
    largest = np.abs(actual - expected).max() / np.abs(expected).max()
    assert largest < 1e-5
    figure(f"{name}: error < 1e-5 of the largest entry after {num_steps:,} steps")


def small_model(plan):
    layers = [keras.Input((3,)), keras.layers.Dense(2)]
    inner = keras.optimizers.SGD(1e-4)
    return make_private_model(plan, inner, model=layers, loss="mse", jit_compile=False)


@pytest.mark.attack(
    "Memory and retracing over many steps",
    tried="A fit of 100,000 steps: memory stays constant, and the step is traced once.",
    area="load",
)
@pytest.mark.invariant(1)
@pytest.mark.parametrize(
    "num_steps", [600, pytest.param(100_000, marks=pytest.mark.slow)]
)
def test_a_long_fit_does_not_grow_nor_trace_again(num_steps, monkeypatch):
    admission.forget()
    epochs = num_steps // 4
    plan = small_plan("bsr:4", 16, 4, epochs, noise_multiplier=1.0)
    assert plan.num_steps == num_steps
    model = small_model(plan)
    sizes, traces = {}, []
    noisy = Noising.noisy

    def traced(self, *arguments):
        traces.append(arguments)
        return noisy(self, *arguments)

    monkeypatch.setattr(Noising, "noisy", traced)

    class Watch(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            step = self.model.optimizer.steps_taken
            if step % (num_steps // 10) == 0:
                sizes[step] = resident_bytes()

    x, y = np.ones([16, 3], np.float32), np.ones([16, 2], np.float32)
    # This `steps_per_epoch` makes the whole run a single Keras epoch.
    model.fit(
        plan.batches(x, y),
        epochs=1,
        steps_per_epoch=num_steps,
        callbacks=[Watch()],
        verbose=0,
    )
    assert model.optimizer.steps_taken == num_steps
    assert len(traces) == 1
    assert all(np.all(np.isfinite(w)) for w in model.get_weights())
    # After a tenth of the steps, training has allocated all the memory that it needs.
    later = [size for step, size in sizes.items() if step > num_steps // 10]
    grown = max(later) - sizes[num_steps // 10]
    assert grown < 20e6 + 100 * num_steps, f"{grown / 1e6:.0f} MB"


@pytest.mark.attack(
    "Plans of a million steps",
    tried="The plan is saved, loaded, used at its last step; a further step is refused.",
    area="load",
)
@pytest.mark.slow
@pytest.mark.invariant(1)
def test_a_plan_of_a_million_steps(tmp_path):
    n, began = 1_000_000, time.monotonic()
    sampling = tf_bandmf.MinSep(10_000, 100)
    plan = planned("bsr:4", num_steps=n, sampling=sampling, delta=1e-8)
    plan.save(tmp_path / "plan.json")
    assert tf_bandmf.Plan.load(tmp_path / "plan.json").fingerprint == plan.fingerprint
    assert time.monotonic() - began < 60
    generator = noise.NoiseGenerator(plan.strategy, 5, jit_compile=False)
    state = generator.initial_state(KEY)
    assert state.step_keys.shape == [n, 2]
    row, _ = generator.next(state, tf.constant(n - 1))
    assert np.all(np.isfinite(row))
    with pytest.raises(tf.errors.InvalidArgumentError, match="1000000 steps"):
        generator.next(state, tf.constant(n))


@pytest.mark.attack(
    "Models that are too large",
    tried="Noise that does not fit into memory is refused before training, with its size.",
    area="load",
)
def test_noise_that_does_not_fit_is_refused_before_training(monkeypatch):
    admission.forget()
    plan = small_plan("bsr:4", 16, 4, 2, noise_multiplier=1.0)
    needed = plan.memory(8)
    total = needed.buffer_bytes + needed.key_bytes
    monkeypatch.setattr(machine, "memory_bytes", lambda: total - 1)
    match = f"3 vectors of 8 numbers.*{total} bytes.* {total - 1}"
    x, y = np.ones([16, 3], np.float32), np.ones([16, 2], np.float32)
    model = small_model(plan)
    model.build((None, 3))
    before = model.get_weights()
    with pytest.raises(MemoryError, match=match):
        model.fit(plan.batches(x, y), verbose=0)
    assert model.optimizer.steps_taken == 0
    assert all(map(np.array_equal, before, model.get_weights()))
