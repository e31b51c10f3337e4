"""Steps that run eagerly: their metrics are Python code, and nothing else is."""

import collections

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_bandmf.keras
from tf_bandmf.keras.clipping import UnsupportedModelError
from tf_bandmf.keras.model import python_code

layers = keras.layers


class Keeps(keras.metrics.Metric):
    """Keeps in Python what it sees, in a deque: Keras copies lists."""

    def __init__(self, kept):
        super().__init__(name="keeps")
        self.kept = kept
        self.sum = self.add_weight(shape=(), initializer="zeros", name="sum")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.kept.append(float(np.abs(y_pred.numpy()).sum()))

    def result(self):
        return self.sum


class KeepsInGraph(Keeps):
    def update_state(self, y_true, y_pred, sample_weight=None):
        def keep(values):
            self.kept.append(float(tf.reduce_sum(values)))
            return values

        self.sum.assign_add(tf.reduce_sum(tf.py_function(keep, [y_pred], tf.float32)))


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, kept):
        self.kept = kept

    def __call__(self, step):
        return 0.1 + sum(self.kept)

    def get_config(self):
        return {}


class Adds(keras.constraints.Constraint, keras.regularizers.Regularizer):
    def __init__(self, kept):
        self.kept = kept

    def __call__(self, weight):
        return weight * (1.0 + sum(self.kept))


class Subtracts(keras.optimizers.SGD):
    def __init__(self, kept):
        super().__init__(0.1)
        self.kept = kept

    def update_step(self, gradient, variable, learning_rate):
        variable.assign(variable - (0.1 + sum(self.kept)) * gradient)


class Multiplies(layers.Layer):
    def __init__(self, kept):
        super().__init__()
        self.kept = kept

    def call(self, x):
        return x * (1.0 + sum(self.kept))


def multiplied(kept):
    def loss(y, y_pred):
        own = keras.losses.sparse_categorical_crossentropy(y, y_pred, True)
        return own * (1.0 + sum(kept))

    return loss


def private(kept, plan, kind="", metrics=(), **changes):
    keras.utils.set_random_seed(0)
    first = Multiplies(kept) if kind == "layer" else layers.Identity()
    model = keras.Sequential([keras.Input((5,)), first, layers.Dense(3)])
    if kind in ("constraint", "regularizer"):
        setattr(model.layers[-1].kernel, kind, Adds(kept))
    inner = {"schedule": lambda: keras.optimizers.SGD(Schedule(kept))}.get(
        kind, lambda: Subtracts(kept) if kind == "inner" else keras.optimizers.SGD(0.1)
    )()
    tf_bandmf.keras.make_private(model, self_check=False)
    optimizer = tf_bandmf.keras.PrivateOptimizer(inner, plan, additional_run=True)
    loss = multiplied(kept if kind == "loss" else [])
    model.compile(optimizer, loss, metrics=list(metrics), **changes)
    return model


@pytest.mark.attack(
    "What a metric keeps in Python, under run_eagerly",
    tried="A metric keeps a sum of the predictions in Python. A schedule, a constraint, a "
    "regularizer, an inner optimizer, a layer or a loss reads it in the steps to come.",
    area="inputs",
    invariants=[16],
)
@pytest.mark.parametrize(
    "kind", ["schedule", "constraint", "regularizer", "inner", "layer", "loss"]
)
@pytest.mark.slow_cases("constraint", "inner", "loss", "regularizer", "layer")
@pytest.mark.invariant(16)
def test_what_a_metric_keeps_in_python_reaches_no_weight(kind, data, make_plan):
    plan = make_plan(epochs=1)
    seen, blank = collections.deque(), collections.deque()
    found = []
    for kept, metrics in ((blank, []), (seen, [Keeps(seen)])):
        model = private(kept, plan, kind, metrics, run_eagerly=True)
        model.fit(plan.batches(*data), verbose=0)
        found.append(model.get_weights())
    assert len(seen) == plan.num_steps and all(seen)  # it has seen each step
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow_cases("False")
@pytest.mark.parametrize("eagerly", [True, False])
@pytest.mark.invariant(16)
def test_no_step_is_traced_after_python_code_of_the_user_has_seen_records(
    eagerly, data, make_plan
):
    plan, kept = make_plan(), collections.deque()
    metric = Keeps(kept) if eagerly else KeepsInGraph(kept)
    model = private(kept, plan, "schedule", [metric], run_eagerly=eagerly)
    model.fit(plan.batches(*data), verbose=0)
    model.fit(plan.batches(*data), epochs=1, steps_per_epoch=1, verbose=0)  # as it was
    taken = model.optimizer.steps_taken
    assert kept
    model.compile(model.optimizer, model.loss, run_eagerly=eagerly)
    with pytest.raises(UnsupportedModelError, match=r"traced anew, after .*Python"):
        model.fit(plan.batches(*data), verbose=0)
    assert model.optimizer.steps_taken == taken


@pytest.mark.slow
@pytest.mark.parametrize("eagerly", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_metrics_of_keras_keep_nothing(eagerly, data, make_plan):
    plan = make_plan()
    metrics = ["accuracy", keras.metrics.SparseCategoricalAccuracy()]
    model = private([], plan, "", metrics, run_eagerly=eagerly)
    for _ in range(2):
        model.fit(plan.batches(*data), steps_per_epoch=2, verbose=0)
        model.compile(
            model.optimizer, model.loss, metrics=["accuracy"], run_eagerly=eagerly
        )
    assert model.optimizer.steps_taken == 4


def test_a_function_as_a_metric_is_the_users(data, make_plan):
    plan = make_plan()

    def own(y_true, y_pred):
        return tf.reduce_sum(y_pred, axis=-1)

    model = private([], plan, "", [own], run_eagerly=True)
    model.fit(plan.batches(*data), steps_per_epoch=1, verbose=0)
    model.compile(model.optimizer, model.loss, run_eagerly=True)
    with pytest.raises(UnsupportedModelError, match="own has seen"):
        model.fit(plan.batches(*data), steps_per_epoch=1, verbose=0)


def test_layers_that_evaluate_eagerly_have_seen_records(data, make_plan):
    plan = make_plan()
    model = private([], plan, "layer", run_eagerly=True)
    model.evaluate(*data, verbose=0)  # before the first step it is the program's
    model.fit(plan.batches(*data), steps_per_epoch=1, verbose=0)
    model.evaluate(*data, verbose=0)
    model.fit(plan.batches(*data), steps_per_epoch=1, verbose=0)
    model.compile(model.optimizer, model.loss, run_eagerly=True)
    with pytest.raises(UnsupportedModelError, match="Multiplies has seen"):
        model.fit(plan.batches(*data), steps_per_epoch=1, verbose=0)


class SeesInputs(layers.Layer):
    def __init__(self, seen):
        super().__init__()
        self.seen = seen

    def call(self, x):
        if not tf.is_symbolic_tensor(x) and isinstance(x, tf.Tensor):
            self.seen.append(x.numpy())
        return x


@pytest.mark.invariant(16)
def test_a_model_is_built_with_made_up_examples(data, make_plan, compile_model):
    seen, plan = collections.deque(), make_plan(epochs=1)
    model = keras.Sequential([SeesInputs(seen), layers.Dense(3)])
    tf_bandmf.keras.make_private(model)
    optimizer = tf_bandmf.keras.PrivateOptimizer("sgd", plan)
    compile_model(model, optimizer).fit(plan.batches(*data), verbose=0)
    assert seen
    assert not any(np.isin(data[0], rows).any() for rows in seen)


def test_functions_that_run_eagerly_are_refused(data, make_plan):
    plan = make_plan()
    model = private([], plan)
    tf.config.run_functions_eagerly(True)
    try:
        with pytest.raises(RuntimeError, match=r"run_functions_eagerly\(False\)"):
            model.fit(plan.batches(*data), verbose=0)
    finally:
        tf.config.run_functions_eagerly(False)
    assert model.optimizer.steps_taken == 0


@pytest.mark.slow_cases("False")
@pytest.mark.parametrize("eagerly", [True, False])
def test_accumulation_that_is_set_late_is_refused(eagerly, data, make_plan):
    plan = make_plan()
    model = private([], plan, run_eagerly=eagerly)
    inner = model.optimizer.inner_optimizer
    inner.gradient_accumulation_steps = 2
    with pytest.raises(ValueError, match="must not set gradient_accumulation_steps"):
        model.fit(plan.batches(*data), verbose=0)
    inner.gradient_accumulation_steps = None
    model.fit(plan.batches(*data), steps_per_epoch=1, verbose=0)
    inner.gradient_accumulation_steps = 2
    with pytest.raises(ValueError, match="must not set gradient_accumulation_steps"):
        model.fit(plan.batches(*data), steps_per_epoch=1, verbose=0)


def test_eager_steps_take_place_on_one_device(data, make_plan):
    plan = make_plan()
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        model = private([], plan, run_eagerly=True)
    with pytest.raises(NotImplementedError, match="one device"):
        model.fit(plan.batches(*data), verbose=0)


@pytest.mark.invariant(16)
def test_a_metric_that_says_that_it_is_of_keras_is_the_users(data, make_plan):
    class Named(keras.metrics.Mean):
        pass

    Named.__module__, Named.__qualname__ = "keras.src.metrics.reduction_metrics", "Mean"
    model = private([], make_plan(), metrics=[Named()])
    assert python_code.foreign_metrics(model) == ["Mean"]


@pytest.mark.invariant(16)
def test_a_metric_with_another_method_is_the_users(data, make_plan):
    metric = keras.metrics.MeanSquaredError()
    model = private([], make_plan(), metrics=[metric])
    assert python_code.foreign_metrics(model) == []
    metric.reset_state = lambda: None
    assert python_code.foreign_metrics(model) == ["an attribute of MeanSquaredError"]


class Spy:
    """Stands for a variable, and keeps what it is given."""

    def __init__(self, variable):
        self.variable, self.seen = variable, []

    def __getattr__(self, name):
        return getattr(self.variable, name)

    def assign_add(self, value):
        self.seen.append(value)
        return self.variable.assign_add(value)


@pytest.mark.parametrize("where", ["attribute", "within a dictionary", "of a variable"])
@pytest.mark.invariant(16)
def test_a_metric_with_another_variable_is_the_users(where, data, make_plan):
    metric = keras.metrics.MeanSquaredError()
    model = private([], make_plan(), metrics=[metric, keras.metrics.AUC(), "mse"])
    assert python_code.foreign_metrics(model) == []
    spy = Spy(metric.total)
    if where == "attribute":
        object.__setattr__(metric, "total", spy)
    elif where == "within a dictionary":
        metric._fn_kwargs["total"] = spy
    else:
        metric.total.assign_add = spy.assign_add
    assert python_code.foreign_metrics(model) == ["an attribute of MeanSquaredError"]
