"""Loops of one's own: `private_gradients` keeps what `fit` promises."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_bandmf
import tf_bandmf.keras


@pytest.mark.parametrize("mechanism", ["lambda_cgd", "bsr"])
@pytest.mark.slow_cases("bsr")
def test_a_loop_of_private_gradients_is_fit(
    mechanism, data, make_plan, make_private_model, straight_weights
):
    plan, fitted = make_plan(mechanism), straight_weights(mechanism)
    looped = make_private_model(plan)
    for batch in plan.batches(*data):
        noisy = looped.private_gradients(batch)
        looped.optimizer.apply_noisy(noisy)
    assert looped.optimizer.steps_taken == plan.num_steps
    for a, b in zip(fitted, looped.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 1e3])
def test_noisy_gradients_are_multiples_of_one_spacing_whatever_was_added(
    scale, data, make_plan, make_private_model
):
    """In float32 the gaps of the noise depend on the sum: last bits would exclude sums."""
    plan = make_plan("bsr:2")
    model = make_private_model(plan)
    batch = next(iter(plan.batches(scale * data[0], data[1])))
    noisy = model.private_gradients(batch)
    grid = 2.0 ** np.floor(np.log2(plan.noise_stddev / plan.expected_batch_size) - 10)
    actual = np.concatenate([np.ravel(g) for g in noisy.gradients]).astype(float) / grid
    np.testing.assert_array_equal(actual, np.rint(actual))
    assert np.std(actual) > 500


@pytest.mark.slow
def test_a_loop_may_go_on_after_fit_but_in_no_graph(
    data, plan_and_model, straight_weights
):
    plan, model = plan_and_model()
    batches = plan.batches(*data)
    model.fit(batches, epochs=1, verbose=0)

    for batch in batches.dataset(model.optimizer.steps_taken):
        with pytest.raises(RuntimeError, match="called from Python"):
            tf.function(model.private_gradients, autograph=False)(batch)
        model.optimizer.apply_noisy(model.private_gradients(batch))
    straight = straight_weights("lambda_cgd", epochs=2)
    for a, b in zip(model.get_weights(), straight, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


class Watched(keras.optimizers.SGD):
    """Notes whether AutoGraph converts what calls it."""

    def apply(self, grads, trainable_variables=None):
        context = tf.__internal__.autograph.control_status_ctx()
        self.statuses = [*getattr(self, "statuses", ()), context.status.name]
        return super().apply(grads, trainable_variables)


def test_autograph_of_a_loop_of_ones_own_does_not_convert_the_step(
    data, plan_and_model
):
    plan, model = plan_and_model(batch_size=11, inner=Watched(0.5))
    model.optimizer.build(model.trainable_variables)
    for batch in plan.batches(*data):
        model.optimizer.apply_noisy(model.private_gradients(batch))
    assert model.optimizer.steps_taken == plan.num_steps
    assert set(model.optimizer.inner_optimizer.statuses) == {"DISABLED"}


@pytest.mark.slow
def test_post_processing_and_a_rule_of_ones_own(data, make_plan, make_private_model):
    plan = make_plan("identity", batch_size=11)
    inner, own = (make_private_model(plan, keras.optimizers.SGD(0.5)) for _ in range(2))
    for batch in plan.batches(*data):
        noisy = inner.private_gradients(batch).map(lambda g: 3.0 * g)
        inner.optimizer.apply_noisy(noisy)

        def update(gradients, variables):
            for gradient, variable in zip(gradients, variables, strict=True):
                variable.assign_sub(1.5 * gradient)

        own.optimizer.apply_noisy(own.private_gradients(batch), update)
    assert int(own.optimizer.iterations) == plan.num_steps
    for a, b in zip(inner.get_weights(), own.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.invariant(6)
def test_other_gradients_are_refused(data, make_plan, make_private_model):
    plan = make_plan(batch_size=11)
    model, other = (make_private_model(plan) for _ in range(2))
    first, second, *_ = plan.batches(*data)
    noisy = model.private_gradients(first)
    with pytest.raises(TypeError, match="not clipped and noised"):
        model.optimizer.apply_noisy([tf.zeros(3)])
    other.private_gradients(first)
    with pytest.raises(ValueError, match="another run"):
        other.optimizer.apply_noisy(noisy)
    model.optimizer.apply_noisy(noisy)
    with pytest.raises(ValueError, match="used before"):
        model.optimizer.apply_noisy(noisy)
    noisy = model.private_gradients(second)
    with pytest.raises(ValueError, match="keep its shape"):
        noisy.map(lambda g: g[None])


@pytest.mark.invariant(6)
def test_a_plain_model_has_no_private_gradients(data, plan_and_model):
    plan, model = plan_and_model()
    model.compile("sgd", "mse")
    with pytest.raises(TypeError, match="PrivateOptimizer"):
        model.private_gradients(next(iter(plan.batches(*data))))


@pytest.mark.invariant(20)
def test_batches_are_those_of_the_plan(data, plan_and_model):
    plan, model = plan_and_model(batch_size=11)
    first, second, *_ = plan.batches(*data)
    with pytest.raises(TypeError, match=r"plan\.batches"):
        model.private_gradients(data)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not the one"):
        model.private_gradients(second)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not those that"):
        model.private_gradients({**first, "x": 2.0 * first["x"]})


@pytest.mark.invariant(8)
def test_noise_is_used_once(data, plan_and_model):
    plan, model = plan_and_model(batch_size=11)
    first, second, *_ = plan.batches(*data)
    noisy = model.private_gradients(first)
    # The step was taken: it is neither taken again nor left out.
    for batch in (first, second):
        with pytest.raises(tf.errors.InvalidArgumentError):
            model.private_gradients(batch)
    model.optimizer.apply_noisy(noisy)
    model.private_gradients(second)


def test_weights_that_changed_between_gradient_and_update_are_noticed(
    data, plan_and_model
):
    plan, model = plan_and_model(batch_size=11)
    first, second, *_ = plan.batches(*data)
    model.optimizer.apply_noisy(model.private_gradients(first))
    noisy = model.private_gradients(second)
    model.trainable_variables[0].assign_add(tf.ones_like(model.trainable_variables[0]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="something else"):
        model.optimizer.apply_noisy(noisy)


@pytest.mark.invariant(8)
def test_a_step_of_the_inner_optimizer_is_noticed(data, plan_and_model):
    """It leaves weights and moments as they were: its step counter alone tells."""
    plan, model = plan_and_model()
    noisy = model.private_gradients(next(iter(plan.batches(*data))))
    before, variables = model.get_weights(), model.trainable_variables
    nothing = [tf.zeros(variable.shape) for variable in variables]
    model.optimizer.inner_optimizer.apply(nothing, variables)
    with pytest.raises(tf.errors.InvalidArgumentError, match="at different steps"):
        model.optimizer.apply_noisy(noisy)
    for a, b in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(a, b)


def test_callers_batches_have_private_gradients_too(
    data, make_min_sep_plan, make_private_model
):
    model = make_private_model(make_min_sep_plan())
    for start in (0, 4, 8):
        part = slice(start, start + 4)
        noisy = model.private_gradients((data[0][part], data[1][part]))
        model.optimizer.apply_noisy(noisy)
    assert model.optimizer.steps_taken == 3


class Critic(tf_bandmf.keras.PrivateTraining, keras.Model):
    """A discriminator that compares each example with a picture of the generator's."""

    def __init__(self, discriminator, generator, width):
        super().__init__()
        self.discriminator, self.generator = discriminator, generator
        self.generator.trainable = False
        self.noise = keras.layers.GaussianNoise(1.0)
        self.width = width

    def call(self, real, training=False):
        zeros = keras.ops.zeros_like(real[:, : self.width])
        fake = self.generator(self.noise(zeros, training=training))
        scores = [self.discriminator(real), self.discriminator(fake)]
        return keras.ops.concatenate(scores, axis=-1)


@pytest.mark.slow
def test_a_gan_whose_discriminator_is_private(data, make_plan):
    x, _ = data
    keras.utils.set_random_seed(0)
    generator = keras.Sequential([keras.Input((2,)), keras.layers.Dense(5)])
    discriminator = keras.Sequential(
        [keras.Input((5,)), keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)]
    )
    plan = make_plan()
    critic = Critic(discriminator, generator, 2)
    critic.compile(
        optimizer=tf_bandmf.keras.PrivateOptimizer("sgd", plan),
        loss=lambda real, scores: -scores[..., 0] + scores[..., 1],
    )
    adam = keras.optimizers.Adam(0.01)
    variables = [v.value for v in generator.weights]
    before = generator.get_weights()
    for batch in plan.batches(x, x):
        critic.optimizer.apply_noisy(critic.private_gradients(batch))
        # The generator sees the discriminator alone, which is private.
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
    assert np.any(before[0] != generator.get_weights()[0])


def test_progress_shows_the_budget(data, plan_and_model, tmp_path, capsys):
    plan, model = plan_and_model(test_seed=None)
    log = tmp_path / "log.csv"
    history = model.fit(
        plan.batches(*data),
        epochs=2,
        callbacks=[tf_bandmf.keras.PrivacyProgress(), keras.callbacks.CSVLogger(log)],
    ).history
    np.testing.assert_allclose(
        history["epsilon"], [plan.epsilon_after(4), plan.epsilon], rtol=1e-9
    )
    assert history["steps_left"] == [4, 0]
    assert "epsilon" in log.read_text().splitlines()[0]
    shown = capsys.readouterr().out
    assert "epsilon: 4.0000" in shown and "steps_left" in shown
    model.compile("sgd", "mse")
    with pytest.raises(TypeError, match="PrivateOptimizer"):
        callback = tf_bandmf.keras.PrivacyProgress()
        callback.set_model(model)
        callback.on_train_begin()


@pytest.mark.parametrize("clipping", ["flat", "automatic"])
def test_clipping_is_kept_by_files_and_by_runs(clipping, make_plan):
    optimizer = tf_bandmf.keras.PrivateOptimizer("sgd", make_plan(), clipping=clipping)
    again = type(optimizer).from_config(optimizer.get_config())
    assert again.clipping == optimizer.clipping
    assert again.clipping.groups is None
    with pytest.raises(ValueError, match="clipping"):
        tf_bandmf.keras.PrivateOptimizer("sgd", make_plan(), clipping="none")


@pytest.mark.parametrize("groups", ["layers", {"kernel": 2.0, ".*": 1.0}])
def test_groups_are_kept_by_files_in_their_order_and_named_by_the_statement(
    groups, make_plan
):
    optimizer = tf_bandmf.keras.PrivateOptimizer(
        "sgd", make_plan(), clipping=tf_bandmf.keras.Clipping(groups=groups)
    )
    config = json.loads(json.dumps(optimizer.get_config(), sort_keys=True))
    again = type(optimizer).from_config(config)
    assert again.clipping.groups == groups
    assert list(again.clipping.groups) == list(groups)
    assert "clipped in groups" in str(again.statement())
