"""Tests that custom loops around `private_gradients` are as private as `fit`."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from same_weights import assert_same, flat
from small_models import data, make_plan, make_private_model, plan_and_model

import tf_bandmf
import tf_bandmf.keras


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e3])
def test_noisy_gradients_are_multiples_of_one_spacing_whatever_was_added(scale):
    """Asserts that noisy gradients lie on one grid, whatever the clipped sum is.

    Otherwise, their last bits could show that some sums are impossible.
    """
    plan = make_plan("bsr:2")
    model = make_private_model(plan)
    batch = next(iter(plan.batches(scale * data[0], data[1])))
    noisy = model.private_gradients(batch)
    grid = 2.0 ** np.floor(np.log2(plan.noise_stddev / plan.expected_batch_size) - 10)
    actual = flat([np.array(g, float) for g in noisy.gradients]) / grid
    np.testing.assert_array_equal(actual, np.rint(actual))
    assert np.std(actual) > 500


class Watched(keras.optimizers.SGD):
    """An inner optimizer that records whether AutoGraph converts its callers."""

    def apply(self, grads, trainable_variables=None):
        context = tf.__internal__.autograph.control_status_ctx()
        self.statuses = [*getattr(self, "statuses", ()), context.status.name]
        return super().apply(grads, trainable_variables)


def test_autograph_of_a_loop_of_ones_own_does_not_convert_the_step():
    plan, model = plan_and_model("identity", sampling="poisson", inner=Watched(0.5))
    model.optimizer.build(model.trainable_variables)
    saved = len(model.optimizer.variables)
    for batch in plan.batches(*data):
        model.optimizer.apply_noisy(model.private_gradients(batch))
    assert model.optimizer.steps_taken == plan.num_steps
    assert len(model.optimizer.variables) == saved
    # More traces could round the sums differently, and a resumed run would be refused.
    assert model._programs()._clip.function.experimental_get_tracing_count() == 1
    assert set(model.optimizer.inner_optimizer.statuses) == {"DISABLED"}


@pytest.mark.slow
def test_post_processing_and_a_rule_of_ones_own():
    plan = make_plan("identity", batch_size=11)
    base, loop = (make_private_model(plan, keras.optimizers.SGD(0.5)) for _ in range(2))
    for batch in plan.batches(*data):
        noisy = base.private_gradients(batch).map(lambda g: 3.0 * g)
        base.optimizer.apply_noisy(noisy)

        def update(gradients, variables):
            for gradient, variable in zip(gradients, variables, strict=True):
                variable.assign_sub(1.5 * gradient)

        loop.optimizer.apply_noisy(loop.private_gradients(batch), update)
    assert int(loop.optimizer.iterations) == plan.num_steps
    assert_same(base, loop, atol=1e-5)


@pytest.mark.invariant(6)
def test_other_gradients_are_refused():
    plan = make_plan(batch_size=11)
    model, other = (make_private_model(plan) for _ in range(2))
    first, *_ = plan.batches(*data)
    noisy = model.private_gradients(first)
    with pytest.raises(TypeError, match="is clipped and has the noise"):
        model.optimizer.apply_noisy([tf.zeros(3)])
    other.private_gradients(first)
    with pytest.raises(TypeError, match="from elsewhere"):
        other.optimizer.apply_noisy(noisy)
    model.optimizer.apply_noisy(noisy)
    with pytest.raises(tf.errors.InvalidArgumentError, match="applied before"):
        model.optimizer.apply_noisy(noisy)


@pytest.mark.invariant(8, 20)
def test_batches_are_those_of_the_plan_and_noise_is_used_once():
    plan, model = plan_and_model(batch_size=11)
    first, second, *_ = plan.batches(*data)
    with pytest.raises(TypeError, match=r"plan\.batches"):
        model.private_gradients(data)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not the one"):
        model.private_gradients(second)
    noisy = model.private_gradients(first)
    # The noise of the first step has been drawn, so the step can be neither repeated
    # nor skipped.
    for batch in (first, second):
        with pytest.raises(tf.errors.InvalidArgumentError):
            model.private_gradients(batch)
    model.optimizer.apply_noisy(noisy)
    renamed = {"z" if name == "y" else name: part for name, part in second.items()}
    with pytest.raises(tf.errors.InvalidArgumentError, match="contents of this batch"):
        model.private_gradients(renamed)
    model.private_gradients(second)


def test_weights_that_changed_between_gradient_and_update_are_noticed():
    plan, model = plan_and_model(batch_size=11)
    first, second, *_ = plan.batches(*data)
    model.optimizer.apply_noisy(model.private_gradients(first))
    noisy = model.private_gradients(second)
    model.trainable_variables[0].assign_add(tf.ones_like(model.trainable_variables[0]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="something else"):
        model.optimizer.apply_noisy(noisy)


@pytest.mark.invariant(8)
def test_a_step_of_the_inner_optimizer_is_noticed():
    """Asserts that extra steps of the inner optimizer are refused, even with zeros.

    Gradients of zero leave the weights as they are, but advance the optimizer's step.
    """
    plan, model = plan_and_model(batch_size=11)
    first, second, *_ = plan.batches(*data)
    noisy = model.private_gradients(first)
    before, variables = model.get_weights(), model.trainable_variables
    nothing = [tf.zeros(variable.shape) for variable in variables]
    steps = (model.optimizer.apply_noisy, noisy), (model.train_on_batch, second)
    for step, given in steps:
        model.optimizer.inner_optimizer.apply(nothing, variables)
        with pytest.raises(tf.errors.InvalidArgumentError, match="at different steps"):
            step(given)
    assert_same(model, before)


class Critic(tf_bandmf.keras.extending.PrivateTraining, keras.Model):
    """A model whose discriminator scores each example and one generated example."""

    def __init__(self, discriminator, generator):
        super().__init__()
        self.discriminator, self.generator = discriminator, generator
        self.generator.trainable = False
        self.noise = keras.layers.GaussianNoise(1.0)

    def call(self, real, training=False):
        zeros = keras.ops.zeros_like(real[:, :2])
        fake = self.generator(self.noise(zeros, training=training))
        scores = self.discriminator(real), self.discriminator(fake)
        return keras.ops.concatenate(scores, axis=-1)


@pytest.mark.slow
def test_a_gan_whose_discriminator_is_private():
    x, _ = data
    generator = keras.Sequential([keras.Input((2,)), keras.layers.Dense(5)])
    hidden = [keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)]
    discriminator = keras.Sequential([keras.Input((5,)), *hidden])
    plan, critic = plan_and_model(
        model=Critic(discriminator, generator),
        loss=lambda real, scores: -scores[..., 0] + scores[..., 1],
    )
    adam = keras.optimizers.Adam(0.01)
    variables, before = [v.value for v in generator.weights], flat(generator)
    for batch in plan.batches(x, x):
        critic.optimizer.apply_noisy(critic.private_gradients(batch))
        # The generator sees data only through the discriminator, which is private.
        with tf.GradientTape() as tape:
            tape.watch(variables)
            fakes = generator(keras.random.normal((8, 2)))
            loss = -tf.reduce_mean(discriminator(fakes))
        adam.apply(tape.gradient(loss, variables), generator.weights)
        critic.optimizer.vouch_for_weights(
            "the generator was trained on the discriminator alone"
        )
    assert critic.optimizer.steps_taken == plan.num_steps
    assert "discriminator alone" in str(critic.privacy_statement())
    assert np.any(before != flat(generator))


def test_progress_shows_the_budget(capsys):
    plan, model = plan_and_model(test_seed=None)
    progress = tf_bandmf.keras.PrivacyProgress()
    history = model.fit(plan.batches(*data), epochs=2, callbacks=[progress]).history
    np.testing.assert_allclose(
        history["epsilon"], [plan.epsilon_after(4), plan.epsilon], rtol=1e-9
    )
    assert history["steps_left"] == [4, 0]
    shown = capsys.readouterr().out
    assert "epsilon: 4.0000" in shown and "steps_left" in shown
    model.compile("sgd", "mse")
    with pytest.raises(TypeError, match="PrivateOptimizer"):
        progress.set_model(model)
        progress.on_epoch_end(0, {})


@pytest.mark.parametrize(
    "clipping",
    [
        tf_bandmf.keras.Clipping("automatic"),
        tf_bandmf.keras.Clipping(groups="layers"),
        tf_bandmf.keras.Clipping(groups={"kernel": 2.0, ".*": 1.0}),
    ],
    ids=["automatic", "layers", "groups"],
)
def test_settings_are_kept_by_files_and_named_by_the_statement(clipping):
    optimizer = tf_bandmf.keras.PrivateOptimizer(
        "sgd", make_plan(), clipping=clipping, loss_scale_factor=1024
    )
    config = json.loads(json.dumps(optimizer.get_config(), sort_keys=True))
    again = type(optimizer).from_config(config)
    assert again.clipping == optimizer.clipping
    assert ("clipped in groups" in str(again.statement())) == bool(clipping.groups)
    assert again.loss_scale_factor == 1024
    with pytest.raises(AttributeError, match="cannot be set later"):
        again.loss_scale_factor = 512
