"""Tests lazy noise for embedding tables: `make_private(tables="lazy")`.

The noise of a row is drawn only when the row is read or the table is released.
"""

import gc

import keras
import numpy as np
import pytest
import small_models
import tensorflow as tf
from same_weights import assert_same, flat

import tf_bandmf
from tf_bandmf.keras.clipping.tensors.errors import UnsupportedModelError
from tf_bandmf.keras.model import preparation
from tf_bandmf.noise.lazy_tables import Jumps

ROWS, WIDTH, LENGTH, EXAMPLES = 40, 3, 4, 24
LOSS = keras.losses.BinaryCrossentropy(from_logits=True)


RNG = np.random.default_rng(1)
IDS = RNG.integers(0, ROWS, (EXAMPLES, LENGTH)).astype(np.int32)
# These ids include padding, a negative id, an id past the end of the table, and
# repeated ids.
IDS[0], IDS[1, 0], IDS[2, 1], IDS[3] = 0, -1, ROWS + 5, 7
data = IDS, RNG.integers(0, 2, (EXAMPLES, 1)).astype(np.float32)


def make_plan(mechanism="dp_sgd", **changes):
    settings = {"delta": 1e-3, "num_examples": EXAMPLES, **changes}
    return small_models.make_plan(mechanism, **settings)


def two_towers():
    """Builds a model with a shared table, masked pooling and a second table."""
    keras.utils.set_random_seed(0)
    ids = keras.Input((LENGTH,), dtype="int32")
    items = keras.layers.Embedding(ROWS, WIDTH, mask_zero=True, name="items")
    others = keras.layers.Embedding(ROWS, WIDTH, name="others")
    bag = keras.layers.GlobalAveragePooling1D()(items(ids[:, :-1]))
    target = keras.layers.Flatten()(items(ids[:, -1:]))
    more = keras.layers.Flatten()(others((ids * 3 + 1) % ROWS))
    both = keras.layers.Concatenate()([bag, target, more])
    return keras.Model(ids, keras.layers.Dense(1)(both))


def reader(*layers, first=(), dtype="int32", **options):
    """Builds a model with one embedding table, and layers that read its rows."""
    keras.utils.set_random_seed(0)
    table = keras.layers.Embedding(ROWS, WIDTH, name="items", **options)
    inputs = keras.Input((LENGTH,), dtype=dtype)
    layers = [*first, table, *(layers or [keras.layers.Flatten()])]
    return keras.Sequential([inputs, *layers, keras.layers.Dense(1)])


def prepare(model, plan, tables="lazy", inner=None, **settings):
    inner = keras.optimizers.SGD(0.5) if inner is None else inner
    settings = {"tables": tables, **settings}
    options = {"loss": LOSS, "additional_run": True, "settings": settings}
    return small_models.make_private_model(plan, inner, model=model, **options)


def table_of(model, name="items"):
    return model.get_layer(name).embeddings.numpy()


@pytest.fixture
def silent(monkeypatch):
    """Replaces all noise with zeros, so that only the data change the weights."""

    def zeros(step_keys, weights, num_normals, first_block=0, **options):
        return tf.zeros([num_normals])

    monkeypatch.setattr("tf_bandmf.noise.lazy_tables.weighted_normals", zeros)
    monkeypatch.setattr("tf_bandmf.noise.generator.weighted_normals", zeros)

    def mean(total, noise, stddev, batch_size):
        return total / batch_size

    monkeypatch.setattr("tf_bandmf.keras.run.noising.noisy_mean", mean)


def in_time(layer):
    """Builds a model that applies `layer` to two time steps with two ids each."""
    layers = [keras.layers.TimeDistributed(layer), keras.layers.Flatten()]
    inputs = keras.Input((2, 2), dtype="int32")
    return keras.Sequential([inputs, *layers, keras.layers.Dense(1)])


def sentences():
    """Builds a document model around a sentence model that contains the table."""
    sentence = keras.Sequential(
        [
            keras.Input((2,), dtype="int32"),
            keras.layers.Embedding(ROWS, WIDTH, name="items"),
            keras.layers.LSTM(2),
        ]
    )
    return in_time(sentence)


def words():
    table = keras.layers.Embedding(ROWS, WIDTH, name="items")
    return in_time(table)


def vocabulary():
    lookup = keras.layers.StringLookup(vocabulary=["a", "b", "c"])
    return reader(first=[lookup], dtype="string")


RATES = {"learning_rate": keras.optimizers.schedules.ExponentialDecay(0.5, 2, 0.8)}
SETTINGS = {
    "momentum": {**RATES, "momentum": 0.9, "nesterov": True},
    "decay": {**RATES, "momentum": 0.8, "weight_decay": 0.1},
}


MAKERS = {
    "momentum": two_towers,
    "decay": two_towers,
    "words": words,
    "sentences": sentences,
    "vocabulary": vocabulary,
}


@pytest.mark.parametrize("kind", [*MAKERS, "users", "padded", "loaded weights"])
@pytest.mark.slow_cases(but=["words"])
@pytest.mark.filterwarnings("ignore:The plan's noise is shaped")
def test_without_noise_weights_are_those_of_dense_tables(silent, kind):
    make, plan, (ids, targets) = MAKERS.get(kind, reader), make_plan(), data
    inner, batches = {"learning_rate": 0.5}, {}
    if kind in SETTINGS:
        plan, inner = make_plan("lambda_cgd"), SETTINGS[kind]
    elif kind == "users":
        users = np.repeat(np.arange(EXAMPLES // 3), 3)
        plan = make_plan(num_examples=EXAMPLES // 3, batch_size=2, unit="one user")
        batches = {"users": users, "rows_per_user": 2}
    elif kind == "padded":
        plan, batches = make_plan(sampling="poisson", batch_size=2), {"padded": True}
    elif kind in ("words", "sentences"):
        ids = ids.reshape(-1, 2, 2)
    elif kind == "vocabulary":
        # "d" is not in the vocabulary.
        ids = np.array(["a", "b", "c", "d"], object)[ids % 4]
    both = []
    for tables in ("dense", "lazy"):
        keras.utils.set_random_seed(0)
        model = prepare(make(), plan, tables, keras.optimizers.SGD(**inner))
        schedule = model.begin_run(plan.batches(ids, targets, **batches))
        if kind == "loaded weights":
            model.get_layer("items").embeddings.assign(np.full([ROWS, WIDTH], 0.3))
        before = flat(model)
        model.fit(schedule, epochs=plan.num_steps // 4, steps_per_epoch=4, verbose=0)
        assert bool(model.optimizer.run.tables) == (tables == "lazy")
        both.append(flat(model))
        assert np.any(both[-1] != before)
    np.testing.assert_allclose(*both, rtol=1e-5, atol=1e-6)


class Watch(keras.callbacks.Callback):
    """A callback that records the table that callbacks see after steps and epochs."""

    def __init__(self):
        super().__init__()
        self.steps, self.epochs, self.begin = [], [], []

    def on_train_batch_end(self, batch, logs=None):
        self.steps.append(table_of(self.model))

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(table_of(self.model))


@pytest.mark.invariant(10)
def test_between_releases_everybody_sees_the_last_one():
    plan = make_plan(test_seed=None)
    model = prepare(reader(), plan)
    before = table_of(model)
    watch = Watch()
    model.fit(
        plan.batches(*data), epochs=2, verbose=0, callbacks=[watch], shuffle=False
    )
    per_epoch = len(watch.steps) // 2
    for seen in watch.steps[:per_epoch]:
        np.testing.assert_array_equal(seen, before)
    for seen in watch.steps[per_epoch:]:
        np.testing.assert_array_equal(seen, watch.epochs[0])
    # A release changes every row, even rows that were never looked up.
    for earlier, later in zip([before, *watch.epochs], watch.epochs):
        assert np.all(np.any(earlier != later, axis=1))
    np.testing.assert_array_equal(table_of(model), watch.epochs[1])
    statement = model.privacy_statement()
    assert any("items" in remark for remark in statement.remarks)


def after_epochs(function):
    return keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: function())


@pytest.mark.slow
def test_a_table_that_a_callback_changes_after_a_release_is_trained_from_there():
    plan = make_plan()
    model = prepare(reader(), plan)
    table, watch = model.get_layer("items").embeddings, Watch()
    model.fit(
        plan.batches(*data),
        epochs=2,
        verbose=0,
        callbacks=[after_epochs(lambda: table.assign(table + 100.0)), watch],
        validation_data=(data[0] % ROWS, data[1]),
    )
    before, after = watch.epochs
    assert before.min() > 90.0 and after.min() > 190.0


class Peek(keras.callbacks.Callback):
    """A callback that predicts in the middle of an epoch."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            self.model.predict(np.zeros([1, LENGTH], np.int32), verbose=0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The plan's noise is shaped")
@pytest.mark.invariant(11)
def test_a_resumed_run_repeats_releases_that_were_made_after_its_checkpoint(tmp_path):
    plan = make_plan("lambda_cgd", test_seed=None, epochs=3)
    inner = keras.optimizers.SGD(0.5, momentum=0.5)
    model = prepare(reader(), plan, inner=inner)
    path, checkpoint = str(tmp_path / "run.private"), tmp_path / "first.keras"
    model.fit(plan.batches(*data), epochs=1, verbose=0, private_state=path)
    model.save(checkpoint)
    after_one = table_of(model)
    model.fit(plan.batches(*data), epochs=2, verbose=0, callbacks=[Peek()])
    straight = model.get_weights()
    del model
    gc.collect()
    again = keras.models.load_model(checkpoint)
    np.testing.assert_array_equal(table_of(again), after_one)
    again.fit(plan.batches(*data), epochs=3, verbose=0, private_state=path)
    assert_same(again, straight)


def test_what_is_shown_after_a_custom_loop_is_what_was_trained(tmp_path):
    """Asserts that a copy, a file and an export have the trained tables.

    Between releases, the model itself shows the table of the last release.
    """
    plan = make_plan(epochs=3)
    model = prepare(reader(), plan)

    def released():
        model.release()
        return table_of(model)

    def predicted():
        model.predict(data[0][:2], verbose=0)
        return table_of(model)

    def copied():
        return table_of(tf_bandmf.keras.to_plain(model))

    def saved():
        model.save(tmp_path / "model.keras")
        return table_of(keras.models.load_model(tmp_path / "model.keras"))

    def exported():
        model.export(tmp_path / "served", verbose=False)
        served = tf.saved_model.load(str(tmp_path / "served"))
        (table,) = [v for v in served.variables if v.shape == (ROWS, WIDTH)]
        return table.numpy()

    batches = iter(plan.batches(*data).dataset(0))
    for show in (
        lambda: model.release() or table_of(model),
        predicted,
        copied,
        saved,
        exported,
    ):
        before = table_of(model)
        model.train_on_batch(next(batches))
        np.testing.assert_array_equal(table_of(model), before)
        actual = show()
        assert np.all(np.any(actual != before, axis=1))
        model.release()
        np.testing.assert_array_equal(actual, table_of(model))


def test_weights_that_something_else_changed_are_not_released():
    """Asserts that a manual change of a table blocks steps, releases and evaluations.

    After such a change, one record could move the sum of an evaluation by 4.0, not 1.
    """
    plan = make_plan().reserve(metrics=0.2, evaluations=3)
    model = prepare(reader(), plan)
    batches = iter(plan.batches(*data).dataset(0))
    model.train_on_batch(next(batches))
    table = model.get_layer("items").embeddings
    table.assign(table + 1.0)
    batch = next(batches)
    for call in (
        lambda: model.train_on_batch(batch),
        model.release,
        lambda: model.evaluate_privately(*data),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match="something else"):
            call()
    model.optimizer.vouch_for_weights("the table was moved by one")
    moved = table_of(model)
    model.train_on_batch(batch)
    model.release()
    assert np.max(np.abs(table_of(model) - moved)) < 0.9


@pytest.mark.invariant(4)
def test_after_an_interrupted_step_no_sum_is_seen_without_its_noise(monkeypatch):
    stops = tf.Variable(False)
    advance = Jumps.advance

    def interrupted(self, step, rate):
        with tf.control_dependencies([tf.debugging.Assert(~stops, ["stopped here"])]):
            return advance(self, tf.identity(step), rate)

    monkeypatch.setattr(Jumps, "advance", interrupted)
    plan = make_plan()
    model = prepare(reader(), plan)
    batches = iter(plan.batches(*data).dataset(0))
    model.train_on_batch(next(batches))
    before = table_of(model)
    batch = next(batches)
    stops.assign(True)
    with pytest.raises(tf.errors.InvalidArgumentError, match="stopped here"):
        model.train_on_batch(batch)
    stops.assign(False)
    following = next(batches)
    refused = r"interrupted|not the one that"
    for attempt in (
        model.release,
        lambda: model.train_on_batch(batch),
        lambda: model.train_on_batch(following),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=refused):
            attempt()
    model.predict(data[0][:2], verbose=0)
    np.testing.assert_array_equal(table_of(model), before)


def test_an_optimizer_that_was_built_without_the_model_is_refused():
    plan = make_plan()
    model = prepare(reader(), plan)
    model.optimizer.build(model.trainable_variables)
    with pytest.raises(RuntimeError, match="built too early"):
        model.fit(plan.batches(*data), epochs=1, verbose=0)


class Noised(keras.layers.Layer):
    """A layer that replaces about half of the ids by 0, at random."""

    def __init__(self):
        super().__init__()
        self.seed = keras.random.SeedGenerator(0)

    def call(self, ids):
        drawn = keras.random.uniform(keras.ops.shape(ids), seed=self.seed)
        return keras.ops.where(drawn < 0.5, ids, 0)


@pytest.mark.parametrize(
    ("make", "settings", "says"),
    [
        (reader, {"inner": "adam"}, "Adam is not linear"),
        (reader, {"microbatch_size": 2}, "microbatch_size"),
        (reader, {"tables": ["nobody"]}, "nobody"),
        (lambda: reader(embeddings_regularizer="l2"), {}, "regularizer"),
        (lambda: reader(lora_rank=2), {}, "does more than look rows up"),
        (lambda: reader(first=[Noised()]), {}, "depend only on the model's inputs"),
        (
            lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]),
            {},
            "none",
        ),
    ],
)
def test_what_cannot_be_had_is_refused_by_name(make, settings, says):
    model = prepare(make(), make_plan(), **settings)
    with pytest.raises(UnsupportedModelError, match=says):
        model.fit(make_plan().batches(*data), verbose=0)


@pytest.mark.parametrize("tables", ["dense", "lazy"])
def test_xla_that_nobody_asked_for_is_left_out_for_lazy_tables(tables, monkeypatch):
    # On a machine with a GPU, Keras resolves jit_compile="auto" to True.
    name = "_resolve_auto_jit_compile"
    (trainer,) = [kind for kind in keras.Model.__mro__ if name in vars(kind)]
    monkeypatch.setattr(trainer, name, lambda self: True)
    model = prepare(reader(), make_plan(), tables)
    assert model.jit_compile == (tables == "dense")


@pytest.mark.invariant(8)
def test_other_data_after_the_same_steps_get_other_noise():
    """Asserts that two histories share noise only up to the first different sum.

    Both histories have the same key.
    """
    shown, plan, factor = [], make_plan(test_seed=None), tf.Variable(0.0)
    for value in (0.1, 0.1, 0.2):
        model = prepare(reader(), plan)
        model.compile(model.optimizer, lambda y, p: factor * LOSS(y, p))
        preparation.build(model)
        small_models.built(model, key=bytes(32))
        for step, batch in zip(range(3), plan.batches(*data).dataset(0)):
            factor.assign(value if step == 1 else 0.1)
            model.train_on_batch(batch)
        model.release()
        shown.append(table_of(model))
    np.testing.assert_array_equal(shown[0], shown[1])
    # Rows without lookups also differ, so the histories share no later noise.
    untouched = np.setdiff1d(np.arange(ROWS), data[0])
    assert untouched.size and np.all(shown[0][untouched] != shown[2][untouched])
    assert np.all(np.any(shown[0] != shown[2], axis=1))


@pytest.mark.invariant(5)
def test_an_empty_batch_takes_no_noise_from_a_row():
    """Asserts that an empty batch, which looks up no row, draws no noise for row 0."""
    ids = np.arange(EXAMPLES * LENGTH, dtype=np.int32).reshape(EXAMPLES, LENGTH) % ROWS
    ids[:, 0] = 0
    plan = make_plan(sampling="poisson", batch_size=1)
    batches = list(plan.batches(ids, np.ones([EXAMPLES, 1], np.float32)).dataset(0))
    sizes = [len(batch["x"]) for batch in batches]
    first = next(t for t in range(1, len(sizes)) if sizes[t - 1] and not sizes[t])
    model = prepare(reader(), plan)
    clocks = []
    for batch in batches[: first + 1]:
        model.train_on_batch(batch)
        (table,) = model.optimizer.run.tables._tables
        clocks.append(table.clocks_of(tf.range(ROWS)).numpy())
    # The noise of row 0 is still pending from the step of its last real lookup.
    assert clocks[-2][0] == first - 1
    np.testing.assert_array_equal(clocks[-1], clocks[-2])


@pytest.mark.invariant(5)
def test_a_run_may_begin_with_an_empty_batch():
    """Asserts that a run can start with an empty batch, which reads no row."""
    data = np.zeros([EXAMPLES, LENGTH], np.int32), np.ones([EXAMPLES, 1], np.float32)
    # A third of all runs start with an empty batch, so at least one of 60 runs does,
    # except with probability 10^-11.
    plans = (make_plan(sampling="poisson", batch_size=1) for _ in range(60))
    sampled = ((p, list(p.batches(*data).dataset(0))[:2]) for p in plans)
    plan, batches = next(pair for pair in sampled if not len(pair[1][0]["x"]))
    model = prepare(reader(), plan)
    for batch in batches:
        model.train_on_batch(batch)
    assert model.optimizer.steps_taken == 2


@pytest.mark.invariant(5)
def test_rows_that_were_not_looked_up_before_the_pass_are_not_read():
    model = prepare(reader(), make_plan())
    preparation.build(model)
    run = model.optimizer.run
    tables = run.tables
    none = np.full([1, LENGTH], -1 - ROWS, np.int32)
    tables.read(none, None, tf.constant(0))
    tables.apply([tf.IndexedSlices(tf.zeros([0, WIDTH]), tf.zeros([0], tf.int32))])
    run.inner_optimizer.iterations.assign(1)
    tables.read(np.array([[4, -1 - ROWS, 2, 4]], np.int32), None, tf.constant(1))
    (read,) = tables.readers.values()
    # Rows that were not looked up are NaN, so an example that reads them would
    # contribute zero.
    is_there = np.isfinite(read(tf.constant([2, 9, 4, -1])))
    np.testing.assert_array_equal(is_there[:, 0], [True, False, True, False])
