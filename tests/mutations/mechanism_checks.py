"""What is asked of a mechanism: checks that hold, and fail where it is broken.

Each is a function without arguments that raises AssertionError. They go through the public
API: what they see is what a user's run releases.
"""

import functools

import keras
import numpy as np
import tensorflow as tf
from modules import module_at
from small_plans import planned, small_plan
from whiteness import whiteness

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf import audit, noise
from tf_bandmf.accounting.gaussian import grid_of
from tf_bandmf.keras.clipping import clipped_gradient_sums
from tf_bandmf.keras.run import known_runs
from tf_bandmf.noise import normals
from tf_bandmf.noise.keys import NoiseKey

# Coordinates, each with an example of its own as its canary.
WIDTH = 1024
STEPS = 12
# Of the family-wise false-alarm rate of the tests of noise.
ALPHA = 1e-6


def forget():
    """What a process keeps from one mechanism to the next."""
    known_runs.forget()
    normals.compiled_blocks.cache_clear()
    normals.compiled_pairs.cache_clear()


def own_plan(mechanism, **changes):
    arguments = {"num_examples": WIDTH, "batch_size": WIDTH // 4, "epochs": 3}
    if "num_steps" in changes:
        arguments = {"batch_size": 4}
    arguments |= {"epsilon": 4.0, "delta": 1e-5, "test_seed": 3, **changes}
    return planned(mechanism, **arguments)


def linear_model(plan, width=WIDTH):
    """A model whose gradient at an example is the example."""
    model = keras.Sequential(
        [
            keras.Input((width,)),
            keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
        ]
    )
    tf_bandmf.keras.make_private(model)
    optimizer = tf_bandmf.keras.PrivateOptimizer(keras.optimizers.SGD(0.1), plan)
    model.compile(optimizer, loss=lambda y, score: score[..., 0])
    return model


def released_sums(model, batches, restart_at=None):
    """Noisy sums of all steps, shape [n, d]; restarted before a step, as from a file."""
    plan, actual = model.optimizer.plan, []
    for step, batch in enumerate(batches):
        if step == restart_at:
            resume(model.optimizer)
        noisy = model.private_gradients(batch)
        flat = [np.ravel(gradient) for gradient in noisy.gradients]
        actual.append(np.concatenate(flat) * plan.expected_batch_size)
        model.optimizer.apply_noisy(noisy)
    return np.array(actual, np.float64)


def resume(optimizer):
    """The secret state of a run, as another process makes it from what was kept."""
    state, run = optimizer.run.secrets, optimizer.run
    run.adopt(
        run.secrets_of(
            NoiseKey(state.key.secret_bytes()),
            step=state.step,
            schedule_id=state.schedule_id,
            buffer=state.buffer,
            points=state.points(),
        )
    )


def train(mechanism, restart_at=None, **changes):
    """A whole run on examples that are canaries; its canaries and noisy sums."""
    forget()
    plan = own_plan(mechanism, **changes)
    included = np.random.default_rng(5).random(WIDTH) < 0.5
    # Three times the clip norm along a coordinate of its own.
    x = 3.0 * plan.l2_norm_clip * np.eye(WIDTH, dtype=np.float32)
    y, weights = np.zeros((WIDTH, 1), np.float32), included.astype(np.float32)
    batches = plan.batches(x, y, weights)
    patterns = np.zeros((WIDTH, plan.num_steps))
    for step in range(plan.num_steps):
        patterns[batches.example_indices(step), step] = 1.0
    canaries = audit.GradientCanaries(plan, WIDTH, patterns, included)
    model = linear_model(plan)
    return canaries, released_sums(model, batches, restart_at)


def audited(mechanism, **changes):
    """The audit of a run of Keras does not contradict its plan."""
    canaries, released = train(mechanism, **changes)
    result = canaries.audit(released, confidence=1 - ALPHA)
    assert not result.contradicts, f"the audit {result}"
    # Nor can the signal be more than the sensitivity.
    most = 1.0 / canaries.plan.noise_multiplier
    assert canaries.signals.max() <= most * (1 + 1e-5), "the signal is too large"


def white(mechanism, restart_at=None, **changes):
    """What a run of Keras releases is the sum that it should be, and noise of its plan."""
    canaries, released = train(mechanism, restart_at, **changes)
    plan = canaries.plan
    # Numbers on a grid repeat: what they were rounded from is somewhere in their cell.
    cell = grid_of(plan.noise_stddev / plan.expected_batch_size)
    cell *= plan.expected_batch_size
    within = np.random.default_rng(6).uniform(-0.5, 0.5, released.shape) * cell
    left = (released + within - canaries.sums()) / plan.noise_stddev
    actual = whiteness(plan.strategy, left, lags=(WIDTH // 2,))
    assert actual.p_value >= ALPHA, f"whiteness: {actual}"


def white_generator(mechanism, num_shards=1, **changes):
    """The generator's noise, without Keras, is that of the strategy."""
    forget()
    plan = own_plan(
        mechanism, num_steps=STEPS, sampling=tf_bandmf.MinSep(4, 3), **changes
    )
    size = 4096 * num_shards
    generator = noise.NoiseGenerator(
        plan.strategy, size, num_shards=num_shards, jit_compile=False
    )
    parts = []
    for shard in range(num_shards):
        state, rows = generator.initial_state(NoiseKey.for_testing(3)), []
        for step in range(STEPS):
            row, state = generator.next(state, tf.constant(step), shard)
            rows.append(row.numpy())
        parts.append(np.array(rows))
    whole = np.concatenate(parts, axis=1)
    actual = whiteness(plan.strategy, whole, lags=(size // 2, 4096))
    assert actual.p_value >= ALPHA, f"whiteness: {actual}"


def private(model):
    plan = own_plan("identity", num_steps=6, sampling=tf_bandmf.MinSep(2))
    tf_bandmf.keras.make_private(model)
    model.compile(tf_bandmf.keras.PrivateOptimizer("sgd", plan), "mse")
    return model


def min_sep_model():
    forget()
    plan = own_plan("identity", num_steps=6, sampling=tf_bandmf.MinSep(2))
    return linear_model(plan, 128)


def noise_of_step(x, y):
    model = min_sep_model()
    before = model.get_weights()[0]
    model.train_on_batch(x, y)
    assert model.optimizer.steps_taken == 1, "the step was not counted"
    return model.get_weights()[0] - before


def empty_batch_is_noisy():
    """A batch without examples moves every weight."""
    moved = noise_of_step(np.zeros((0, 128), np.float32), np.zeros((0, 1)))
    assert np.all(moved != 0.0), "no noise on an empty batch"


def bad_record_is_noisy():
    """A batch with a NaN moves every weight."""
    x = np.zeros((4, 128), np.float32)
    x[2, 3] = np.nan
    moved = noise_of_step(x, np.zeros((4, 1)))
    assert np.all(np.isfinite(moved)) and np.all(moved != 0.0), "no noise beside NaN"


def cancelling_records_are_clipped():
    """Near-duplicates under a siamese model add at most the clip norm."""
    forget()
    keras.utils.set_random_seed(0)
    a, b = keras.Input((256,)), keras.Input((256,))
    shared = keras.layers.Dense(256, use_bias=False)
    difference = keras.layers.Subtract()([shared(a), shared(b)])
    model = keras.Model([a, b], keras.layers.Dense(1, use_bias=False)(difference))
    rng = np.random.default_rng(0)
    first = 1e4 * rng.normal(size=(8, 256)).astype(np.float32)
    second = first + 0.12 * rng.normal(size=(8, 256)).astype(np.float32)
    private(model)
    y = np.full((8, 1), 5.0, np.float32)
    for i in range(8):
        pair, label = [part[i : i + 1] for part in (first, second)], y[i : i + 1]
        sums = clipped_gradient_sums(model, pair, label, l2_norm_clip=1.0).sums
        norm = float(tf.linalg.global_norm(sums))
        assert norm <= 1.0 + 1e-3, f"a record adds {norm:.4g} clip norms"


def mixing_is_isolated():
    """A layer that subtracts the mean of the batch does not mix examples."""
    forget()
    keras.utils.set_random_seed(0)
    layer = keras.layers.Lambda(
        lambda x: 8.0 * (x - keras.ops.mean(x, axis=0, keepdims=True))
    )
    model = keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(4), layer, keras.layers.Dense(1)]
    )
    rng = np.random.default_rng(0)
    x = rng.normal(size=(6, 5)).astype(np.float32)
    others = x.copy()
    others[0] *= 50.0
    actual = [
        clipped_gradient_sums(
            private(model), part, np.ones((6, 1), "f4"), l2_norm_clip=1.0
        ).sums
        for part in (x, others)
    ]
    moved = np.sqrt(sum(np.sum((a - b) ** 2) for a, b in zip(*actual)))
    assert moved <= 2.0 + 2e-3, f"one record moves the sum by {moved:.4g} clip norms"


def samplers_seeds_are_fresh():
    """Two schedules of one plan draw different batches."""
    forget()
    plan = own_plan("identity", sampling="poisson", test_seed=None)
    x = np.arange(WIDTH)
    first, second = (plan.batches(x).example_indices(0) for _ in range(2))
    assert not np.array_equal(first, second), "the sampler's seed is known"


def poisson_batches_vary():
    """Batches under Poisson sampling have binomial sizes, and differ between epochs."""
    forget()
    plan = own_plan("identity", sampling="poisson", epochs=25)
    schedule = plan.batches(np.arange(WIDTH)).join(
        NoiseKey.for_testing(0).sampler_seed()
    )
    sizes = np.array([schedule.example_indices(step).size for step in range(100)])
    # The variance of a binomial: its chi-squared statistic, two-sided 1e-6; fixed seed.
    variance = 0.25 * 0.75 * WIDTH
    assert 0.4 < sizes.var() / variance < 1.9, (
        "batches are not those of Poisson sampling"
    )
    repeated = np.array_equal(schedule.example_indices(0), schedule.example_indices(4))
    assert not repeated, "batches are not those of Poisson sampling"


@functools.cache
def named_test(path, name):
    """A test of the suite, as a function."""
    return getattr(module_at(f"tests/{path}"), name)


def bands_fit_the_cycle():
    """Cyclic Poisson sampling with more bands than parts is refused."""
    try:
        tf_bandmf.plan(
            "bsr:4",
            epsilon=4.0,
            delta=1e-5,
            sampling=tf_bandmf.CyclicPoisson(64, 8, 2),
            num_steps=16,
        )
    except ValueError:
        return
    raise AssertionError("4 bands were accepted for a cycle of 2 steps")


def audited_sampler():
    """Canaries that the sampler of a plan draws do not contradict its epsilon."""
    forget()
    plan = small_plan("identity", 64, 4, 2, epsilon=1.0, sampling="poisson")
    canaries = audit.GradientCanaries.for_plan(plan, 16_384, seed=0)
    result = canaries.audit(canaries.simulated(1), confidence=1 - ALPHA)
    assert not result.contradicts, f"the audit {result}"
