"""Tests what privacy statements say about a run's data, weights and related runs."""

import math

import dp_accounting
import keras
import numpy as np
import pytest
import tensorflow as tf
from rows import InBatches
from small_models import (
    built,
    data,
    make_min_sep_plan,
    make_plain_model,
    make_plan,
    make_private_model,
    plan_and_model,
)

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf.accounting.guarantee import fill


@pytest.mark.invariant(15)
@pytest.mark.slow_cases("PyDataset", "in tf.data")
@pytest.mark.parametrize("kind", ["PyDataset", "generator", "in tf.data", "tf.data"])
def test_it_says_for_what_data_the_caller_vouches(kind):
    # Each case has its own examples, because a process recognizes the examples of
    # earlier runs.
    moved = data[0] + len(kind), data[1]
    dataset = tf.data.Dataset.from_tensor_slices(moved)
    signature = tuple(tf.TensorSpec(s.shape, s.dtype) for s in dataset.element_spec)
    made = {
        "PyDataset": InBatches(moved, 11),
        "generator": lambda: zip(*moved),
        "in tf.data": tf.data.Dataset.from_generator(
            lambda: zip(*moved), output_signature=signature
        ),
        "tf.data": dataset.batch(11),
    }
    plan, model = plan_and_model("identity", batch_size=22, hidden=False)
    model.fit(plan.batches(made[kind]), epochs=1, verbose=0)
    points = dict(model.privacy_statement().points())
    vouched = "makes each example from exactly one record" in points["This run"]
    assert vouched == (kind != "tf.data")


def adapted(data):
    layer = keras.layers.Normalization()
    layer.adapt(data[0])
    return layer


@pytest.mark.filterwarnings("ignore:sample_weight has one weight")
@pytest.mark.invariant(15)
@pytest.mark.slow_cases("by class")
@pytest.mark.parametrize("kind", ["class_weight", "by class", "each"])
def test_it_says_that_there_are_weights(kind):
    """Asserts that the statement mentions class weights and example weights, if any.

    This matters because class weights derived from private labels can move a step by
    2.0 clip norms.
    """
    plan, model = plan_and_model("identity", batch_size=22, hidden=False)
    by_class = np.array([1.0, 1.0, 4.0], np.float32)
    each = np.linspace(0.5, 1.0, len(data[1]), dtype=np.float32)
    weights = {"by class": by_class[data[1]], "each": each}.get(kind)
    fit = {"class_weight": dict(enumerate(by_class))} if kind == "class_weight" else {}
    model.fit(plan.batches(*data, weights), epochs=1, verbose=0, **fit)
    points = dict(model.privacy_statement().points())
    assert points["This run"].count("Weights of examples or classes are in use") == 1


def test_it_names_callbacks_that_acted_on_exact_metrics():
    plan, model = plan_and_model("identity", batch_size=22)
    slower = keras.callbacks.ReduceLROnPlateau("loss")
    with pytest.warns(UserWarning, match="acts on 'loss'"):
        model.fit(plan.batches(*data), callbacks=[slower], verbose=0)
    assert "ReduceLROnPlateau acts on 'loss'" in str(model.privacy_statement())


def test_it_says_that_users_were_not_checked():
    plan, model = plan_and_model("identity", batch_size=22, unit="one patient")
    model.fit(plan.batches(*data), verbose=0)
    assert "was treated as all data of one patient" in str(model.privacy_statement())


def test_it_says_so_of_batches_that_the_caller_makes():
    model = make_private_model(make_min_sep_plan(), hidden=False)
    x, y = data[0][:4], data[1][:4]
    model.train_on_batch(x, y)
    assert "Weights of examples" not in str(model.privacy_statement())
    model.train_on_batch(x, y, class_weight={0: 1.0, 1: 0.5, 2: 0.5})
    assert "Weights of examples" in str(model.privacy_statement())


@pytest.mark.invariant(15)
@pytest.mark.slow_cases("model", "map", "tf.data")
@pytest.mark.parametrize(
    "where", ["model", "map", "function", "tf.data", "no statistics", "no layer"]
)
def test_it_names_layers_that_were_adapted(where):
    layer = adapted(data)
    if where == "no statistics":
        layer = keras.layers.Normalization(mean=0.0, variance=1.0)
    inside = [layer] if where in ("model", "no statistics") else []
    layers = [keras.Input((5,)), *inside, keras.layers.Dense(3)]
    plan, model = plan_and_model("identity", batch_size=22, model=layers)
    mapped = {"map": layer, "function": lambda x: layer(x[None])[0]}
    batches = plan.batches(*data, map=mapped.get(where))
    if where == "tf.data":
        dataset = tf.data.Dataset.from_tensor_slices(data)
        batches = plan.batches(dataset.map(lambda x, y: (layer(x[None])[0], y)))
    model.fit(batches, epochs=1, verbose=0)
    text = str(model.privacy_statement())
    assert (f"Normalization {layer.name!r}" in text) == (not where.startswith("no "))


def make_run(data=None, epsilon=4.0, **changes):
    """Makes a model with a secret key, and trains it for one step if data are given."""
    plan = make_plan(
        "identity", batch_size=22, epochs=1, epsilon=epsilon, test_seed=None
    )
    model = make_private_model(plan, hidden=False, **changes)
    if data is not None:
        model.fit(plan.batches(*data), epochs=1, verbose=0)
    return model


def headline(model):
    return dict(model.privacy_statement().points())["Formal statement"]


@pytest.mark.invariant(19)
def test_runs_on_the_same_examples_headline_what_they_spend_together():
    first = make_run(data)
    alone = first.privacy_statement()
    assert alone.epsilon == 4.0
    second = make_run(data, epsilon=3.0, additional_run=True)
    plans = [model.optimizer.plan for model in (first, second)]
    mu = math.hypot(*(1.0 / plan.noise_multiplier for plan in plans))
    expected = dp_accounting.get_epsilon_gaussian(1.0 / mu, 1e-5)
    assert 4.5 < expected < 7.0
    for model in (first, second):
        statement = model.privacy_statement()
        assert statement.epsilon == pytest.approx(expected, rel=1e-6)
        assert fill("(epsilon = {:.6g up}", statement.epsilon) in headline(model)
        assert "for all runs together" in headline(model)
        assert fill("Epsilon is {:.3g up}", expected) in statement.card().to_markdown()
        assert statement.remarks[0].startswith("1 other run(s)")
    # Compiling a new optimizer does not reset the epsilon already spent on the weights.
    plan = plans[0]
    optimizer = tf_bandmf.keras.PrivateOptimizer("sgd", plan, additional_run=True)
    first.compile(optimizer, first.loss)
    assert first.privacy_statement().epsilon > 5.0
    assert headline(first).startswith("This run has taken no step yet")


def make_loaded(source):
    """Makes a private model whose weights are loaded before `compile`, as tuners do."""
    model = tf_bandmf.keras.make_private(make_plain_model(hidden=False))
    model.set_weights(source.get_weights())
    return make_private_model(source.optimizer.plan, model=model)


@pytest.mark.invariant(15)
def test_weights_that_were_loaded_are_in_the_headline():
    """Asserts that the headline omits the last run's epsilon if weights were loaded."""
    trained, (x, y) = make_run(data), data
    assert headline(trained).startswith("(epsilon = 4,")
    assert headline(make_run()).startswith("This run has taken no step yet")
    best = make_loaded(trained)
    # A hyperparameter tuner returns its best model in this state.
    assert "were loaded" in headline(best) and "taken no step yet" in headline(best)
    assert "trials" in headline(best)
    best.fit(best.optimizer.plan.batches(x + 1.0, y), epochs=1, verbose=0)
    assert headline(best).startswith("The weights that this run began from were loaded")
    assert (
        "were loaded"
        in dict(best.privacy_statement().card().points())["What is protected"]
    )
    vouched = make_loaded(trained)
    vouched.optimizer.vouch_for_weights("trained on public letters")
    vouched.fit(vouched.optimizer.plan.batches(x + 2.0, y), epochs=1, verbose=0)
    assert headline(vouched).startswith("(epsilon = 4,")
    assert "Trained on public letters" in str(vouched.privacy_statement())


def test_a_model_from_a_file_says_so(tmp_path):
    make_run(data).save(tmp_path / "a.keras")
    model = keras.models.load_model(tmp_path / "a.keras", compile=False)
    plan = make_plan(test_seed=None)
    model.compile(tf_bandmf.keras.PrivateOptimizer("sgd", plan), "mse")
    assert "were loaded" in headline(model)


@pytest.mark.invariant(15)
@pytest.mark.slow_cases("False")
@pytest.mark.parametrize("loaded", [False, True])
def test_a_resumed_run_says_what_its_beginning_was(loaded, tmp_path):
    plan = make_plan("identity", batch_size=22, test_seed=None)
    path, weights = tmp_path / "a.private", tmp_path / "a.weights.h5"
    first = make_private_model(plan, hidden=False)
    if loaded:
        first.set_weights(first.get_weights())
    first.fit(plan.batches(*data), epochs=1, private_state=path, verbose=0)
    first.save_weights(weights)
    resumed = built(make_private_model(plan, hidden=False), weights)
    resumed.fit(plan.batches(*data), epochs=2, private_state=path, verbose=0)
    for model in (first, resumed):
        assert ("were loaded" in headline(model)) == loaded


def test_weights_alone_are_loaded_and_another_optimizer_is_refused(tmp_path):
    plain, private = make_plain_model(), make_private_model(make_plan())
    plain.save_weights(tmp_path / "a.weights.h5")
    private.load_weights(tmp_path / "a.weights.h5")
    np.testing.assert_array_equal(private.get_weights()[0], plain.get_weights()[0])
    assert "were loaded" in headline(private)
    plain.compile("adam", "mse")
    plain.optimizer.build(plain.trainable_variables)
    plain.save_weights(tmp_path / "a.weights.h5")
    with pytest.raises(ValueError, match="before make_private"):
        private.load_weights(tmp_path / "a.weights.h5")


def test_weights_are_loaded_before_the_optimizer_has_slots(tmp_path):
    plan = make_plan(test_seed=None)
    first, other = (make_private_model(plan, "adam", additional_run=True) for _ in "ab")
    first.fit(plan.batches(*data), epochs=1, verbose=0)
    first.save_weights(tmp_path / "a.weights.h5")
    other.load_weights(tmp_path / "a.weights.h5")
    with pytest.raises(tf.errors.InvalidArgumentError, match="different steps"):
        other.fit(plan.batches(*data), epochs=1, verbose=0)
