"""Tables whose noise is drawn when their rows are read: `make_private(tables="lazy")`."""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
from small_plans import planned

import tf_bandmf
from tf_bandmf.keras.clipping import UnsupportedModelError
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.noise.lazy_tables import Jumps

ROWS, WIDTH, LENGTH, EXAMPLES, BATCH = 40, 3, 4, 24, 6
LOSS = keras.losses.BinaryCrossentropy(from_logits=True)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(1)
    ids = rng.integers(0, ROWS, (EXAMPLES, LENGTH)).astype(np.int32)
    # Padding, an id from the end, one that does not exist, repeats.
    ids[0], ids[1, 0], ids[2, 1], ids[3] = 0, -1, ROWS + 5, 7
    return ids, rng.integers(0, 2, (EXAMPLES, 1)).astype(np.float32)


def make_plan(mechanism="dp_sgd", epochs=2, **changes):
    settings = {"test_seed": 0, "batch_size": BATCH, "num_examples": EXAMPLES}
    settings |= {"epsilon": 4.0, "epochs": epochs, **changes}
    return planned(mechanism, delta=1e-3, **settings)


def two_towers():
    """A shared table, a bag with a mask, a table of its own, a small dense part."""
    keras.utils.set_random_seed(0)
    ids = keras.Input((LENGTH,), dtype="int32")
    items = keras.layers.Embedding(ROWS, WIDTH, mask_zero=True, name="items")
    others = keras.layers.Embedding(ROWS, WIDTH, name="others")
    bag = keras.layers.GlobalAveragePooling1D()(items(ids[:, :-1]))
    target = keras.layers.Flatten()(items(ids[:, -1:]))
    more = keras.layers.Flatten()(others((ids * 3 + 1) % ROWS))
    both = keras.layers.Concatenate()([bag, target, more])
    return keras.Model(ids, keras.layers.Dense(1)(both))


def mean_of_bag():
    keras.utils.set_random_seed(0)
    ids = keras.Input((LENGTH,), dtype="int32")
    table = keras.layers.Embedding(ROWS, WIDTH, name="items")
    return keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(table(ids))))


def prepare(model, plan, tables="lazy", inner=None, **settings):
    model = tf_bandmf.keras.make_private(model, tables=tables, **settings)
    inner = keras.optimizers.SGD(0.5) if inner is None else inner
    optimizer = tf_bandmf.keras.PrivateOptimizer(inner, plan, additional_run=True)
    model.compile(optimizer, LOSS)
    return model


def table_of(model, name="items"):
    return model.get_layer(name).embeddings.numpy()


@pytest.fixture
def silent(monkeypatch):
    """No noise at all: what is left is what the data do."""

    def zeros(step_keys, weights, num_normals, first_block=0, **options):
        return tf.zeros([num_normals])

    monkeypatch.setattr("tf_bandmf.noise.lazy_tables.weighted_normals", zeros)
    monkeypatch.setattr("tf_bandmf.noise.generator.weighted_normals", zeros)

    def mean(total, noise, stddev, batch_size, is_clipped):
        return total / batch_size

    monkeypatch.setattr("tf_bandmf.keras.run.run.noisy_mean", mean)


def schedule():
    return keras.optimizers.schedules.ExponentialDecay(0.5, 2, 0.8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mechanism", "settings"),
    [
        pytest.param("dp_sgd", {"learning_rate": 0.5}, marks=pytest.mark.slow),
        pytest.param(
            "lambda_cgd", {"momentum": 0.9, "nesterov": True}, marks=pytest.mark.slow
        ),
        ("lambda_cgd", {"momentum": 0.8, "weight_decay": 0.1}),
    ],
)
@pytest.mark.filterwarnings("ignore:The plan's noise is shaped")
def test_without_noise_weights_are_those_of_dense_tables(
    silent, data, mechanism, settings
):
    actual = []
    for tables in ("dense", "lazy"):
        rate = settings.get("learning_rate") or schedule()
        inner = keras.optimizers.SGD(**{**settings, "learning_rate": rate})
        plan = make_plan(mechanism)
        model = prepare(two_towers(), plan, tables, inner)
        model.fit(plan.batches(*data), epochs=2, verbose=0)
        actual.append(model.get_weights())
        assert bool(model.optimizer.run.tables) == (tables == "lazy")
    for dense, lazy in zip(*actual):
        np.testing.assert_allclose(lazy, dense, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["users", "padded"])
def test_users_of_several_rows_and_padded_batches(silent, data, kind):
    if kind == "users":
        users = np.repeat(np.arange(EXAMPLES // 3), 3)
        plan = make_plan(num_examples=EXAMPLES // 3, batch_size=2, unit="one user")
        options = {"users": users, "rows_per_user": 2}
    else:
        plan = make_plan(sampling="poisson", batch_size=2)
        options = {"padded": True}
    actual = []
    for tables in ("dense", "lazy"):
        model = prepare(mean_of_bag(), plan, tables)
        model.fit(plan.batches(*data, **options), epochs=2, verbose=0)
        actual.append(table_of(model))
    np.testing.assert_allclose(*actual, rtol=1e-5, atol=1e-6)


class Watch(keras.callbacks.Callback):
    """Keeps what callbacks see."""

    def __init__(self):
        super().__init__()
        self.steps, self.epochs, self.begin = [], [], []

    def on_train_batch_end(self, batch, logs=None):
        self.steps.append(table_of(self.model))

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(table_of(self.model))


@pytest.mark.invariant(10)
def test_between_releases_everybody_sees_the_last_one(data, tmp_path):
    plan = make_plan(test_seed=None)
    model = prepare(mean_of_bag(), plan)
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
    # A release moves every row, whether somebody touched it or not.
    for earlier, later in zip([before, *watch.epochs], watch.epochs):
        assert np.all(np.any(earlier != later, axis=1))
    np.testing.assert_array_equal(table_of(model), watch.epochs[1])
    statement = model.privacy_statement()
    assert any("items" in remark for remark in statement.remarks)
    # Nothing that Keras tracks has the rows of now, or their clocks.
    tracked = {id(v) for v in model.variables + model.optimizer.variables}
    (table,) = model.optimizer.run.tables._tables
    assert not tracked & {id(part) for part in (*table._states, table._clocks)}
    model.save(tmp_path / "model.keras")
    checkpoint = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
    names = [
        name for name, _ in tf.train.list_variables(checkpoint.save(tmp_path / "c"))
    ]
    assert not any("clock" in name or "states" in name for name in names)


@pytest.mark.slow
def test_a_loop_of_steps_shows_nothing_until_it_releases(data):
    plan = make_plan()
    model = prepare(mean_of_bag(), plan)
    before = table_of(model)
    batches = iter(plan.batches(*data).dataset(0))
    for _ in range(3):
        model.train_on_batch(next(batches))
    np.testing.assert_array_equal(table_of(model), before)
    model.release()
    released = table_of(model)
    assert np.all(np.any(released != before, axis=1))
    model.release()
    np.testing.assert_array_equal(table_of(model), released)
    model.train_on_batch(next(batches))
    np.testing.assert_array_equal(table_of(model), released)
    model.predict(data[0][:2], verbose=0)
    assert np.all(np.any(table_of(model) != released, axis=1))


@pytest.mark.slow
def test_release_every_and_validation(data):
    plan = make_plan()
    model = prepare(mean_of_bag(), plan, release_every=2)
    watch = Watch()
    model.fit(
        plan.batches(*data),
        epochs=1,
        verbose=0,
        callbacks=[watch],
        validation_data=(data[0] % ROWS, data[1]),
    )
    changes = [np.any(a != b) for a, b in zip(watch.steps, watch.steps[1:])]
    assert changes == [True, False, True]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The plan's noise is shaped")
@pytest.mark.parametrize(
    "mechanism", [pytest.param("dp_sgd", marks=pytest.mark.slow), "lambda_cgd"]
)
@pytest.mark.invariant(11)
def test_a_resumed_run_has_the_weights_of_one_that_was_not_interrupted(
    data, tmp_path, mechanism
):
    inner = {"momentum": 0.5} if mechanism == "lambda_cgd" else {}

    plan = make_plan(mechanism, test_seed=None, epochs=3)
    inner = keras.optimizers.SGD(0.5, **inner)
    model = prepare(mean_of_bag(), plan, inner=inner)
    path, checkpoint = str(tmp_path / "run.private"), tmp_path / "first.keras"
    model.fit(plan.batches(*data), epochs=1, verbose=0, private_state=path)
    model.save(checkpoint)
    after_one = table_of(model)
    model.fit(plan.batches(*data), epochs=2, verbose=0)
    straight = model.get_weights()
    del model
    gc.collect()
    again = keras.models.load_model(checkpoint)
    again._training.checked = True
    np.testing.assert_array_equal(table_of(again), after_one)
    again.fit(plan.batches(*data), epochs=3, verbose=0, private_state=path)
    for one, other in zip(straight, again.get_weights()):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_weights_that_something_else_changed_are_not_released(data):
    plan = make_plan()
    model = prepare(mean_of_bag(), plan)
    batches = iter(plan.batches(*data).dataset(0))
    model.train_on_batch(next(batches))
    table = model.get_layer("items").embeddings
    table.assign(table + 1.0)
    batch = next(batches)
    for call in (lambda: model.train_on_batch(batch), model.release):
        with pytest.raises(tf.errors.InvalidArgumentError, match="something else"):
            call()
    model.optimizer.vouch_for_weights("the table was moved by one")
    moved = table_of(model)
    model.train_on_batch(batch)
    model.release()
    assert np.max(np.abs(table_of(model) - moved)) < 0.9


def test_what_is_given_away_after_a_custom_loop_is_what_was_trained(data, tmp_path):
    """The tables of the copy, the file and the export: they were the initial ones."""
    plan = make_plan()
    model = prepare(mean_of_bag(), plan)

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
    for given_away in (copied, saved, exported):
        model.train_on_batch(next(batches))
        before = table_of(model)
        actual = given_away()
        assert not np.array_equal(actual, before), given_away.__name__
        np.testing.assert_array_equal(actual, table_of(model))


def test_an_evaluation_notices_a_table_that_something_else_changed(data):
    """One record moved the evaluation's sum by 4.0 where 1 is allowed."""
    plan = make_plan().reserve(metrics=0.2, evaluations=3)
    model = prepare(mean_of_bag(), plan)
    model.fit(plan.batches(*data), epochs=1, verbose=0)
    table = model.get_layer("items").embeddings
    table.assign(table + 1.0)
    with pytest.raises(tf.errors.InvalidArgumentError, match="something else changed"):
        model.evaluate_privately(*data)


@pytest.mark.invariant(4)
def test_after_an_interrupted_step_no_sum_is_seen_without_its_noise(data, monkeypatch):
    stops = tf.Variable(False)
    advance = Jumps.advance

    def interrupted(self, step, rate):
        with tf.control_dependencies([tf.debugging.Assert(~stops, ["stopped here"])]):
            return advance(self, tf.identity(step), rate)

    monkeypatch.setattr(Jumps, "advance", interrupted)
    plan = make_plan()
    model = prepare(mean_of_bag(), plan)
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


@pytest.mark.slow
def test_weights_that_are_loaded_before_the_first_step_are_used(silent, data):
    plan = make_plan()
    actual = []
    for tables in ("dense", "lazy"):
        model = prepare(mean_of_bag(), plan, tables)
        model.optimizer.run  # noqa: B018
        model._prepare(None)
        model.get_layer("items").embeddings.assign(np.full([ROWS, WIDTH], 0.3))
        model.fit(plan.batches(*data), epochs=1, verbose=0)
        actual.append(table_of(model))
    np.testing.assert_allclose(*actual, rtol=1e-5)


def test_an_optimizer_that_was_built_without_the_model_is_refused(data):
    plan = make_plan()
    model = prepare(mean_of_bag(), plan)
    model.optimizer.build(model.trainable_variables)
    with pytest.raises(RuntimeError, match="built without the model"):
        model.fit(plan.batches(*data), epochs=1, verbose=0)


def _table(**options):
    layers = keras.layers
    table = layers.Embedding(ROWS, WIDTH, name="items", **options)
    inputs = keras.Input((LENGTH,), dtype="int32")
    return keras.Sequential([inputs, table, layers.Flatten(), layers.Dense(1)])


@pytest.mark.parametrize(
    ("make", "settings", "says"),
    [
        (mean_of_bag, {"inner": "adam"}, "Adam is not linear"),
        (mean_of_bag, {"microbatch_size": 2}, "microbatch_size"),
        (mean_of_bag, {"tables": ["nobody"]}, "nobody"),
        (lambda: _table(embeddings_regularizer="l2"), {}, "regularizer"),
        (lambda: _table(lora_rank=2), {}, "does more than look rows up"),
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
        model.fit(make_plan().batches(np.ones([EXAMPLES, 4], np.int32)), verbose=0)


@pytest.mark.parametrize("tables", ["dense", "lazy"])
def test_xla_that_nobody_asked_for_is_left_out_for_lazy_tables(tables, monkeypatch):
    # What Keras takes "auto" for where there is a GPU.
    name = "_resolve_auto_jit_compile"
    (trainer,) = [kind for kind in keras.Model.__mro__ if name in vars(kind)]
    monkeypatch.setattr(trainer, name, lambda self: True)
    model = prepare(mean_of_bag(), make_plan(), tables)
    assert model.jit_compile == (tables == "dense")


class Noised(keras.layers.Layer):
    """Ids that are random in training."""

    def __init__(self):
        super().__init__()
        self.seed = keras.random.SeedGenerator(0)

    def call(self, ids):
        drawn = keras.random.uniform(keras.ops.shape(ids), seed=self.seed)
        return keras.ops.where(drawn < 0.5, ids, 0)


def test_ids_that_are_no_function_of_the_inputs_are_refused(data):
    ids = keras.Input((LENGTH,), dtype="int32")
    table = keras.layers.Embedding(ROWS, WIDTH, name="items")
    flat = keras.layers.Flatten()(table(Noised()(ids)))
    plan = make_plan()
    model = prepare(keras.Model(ids, keras.layers.Dense(1)(flat)), plan)
    with pytest.raises(UnsupportedModelError, match="no function of the inputs"):
        model.fit(plan.batches(*data), verbose=0)


@pytest.mark.invariant(8)
def test_other_data_after_the_same_steps_get_other_noise(data):
    """Two histories of one key: what they share ends where their sums differ."""
    shown = []
    rows = tf.constant([0, 1, 2], tf.int64)
    for value in (1.0, 1.0, 2.0):
        model = prepare(mean_of_bag(), make_plan(test_seed=None))
        model._prepare(None)
        run = model.optimizer.run
        run.adopt(run.secrets_of(NoiseKey(bytes(32))))
        tables = run.tables
        tables.begin()
        for step in range(3):
            t = tf.constant(step, tf.int64)
            looked_up = tables.bring_up_to_date([rows], t)
            added = tf.fill([3, WIDTH], value if step == 1 else 1.0)
            rate = tf.constant(0.1)
            slices = tf.IndexedSlices(added, rows)
            sums = tables.row_sums([slices], rate, looked_up)
            dense = tf.zeros([run.generator.num_parameters])
            keys = tf.constant(run.secrets.step_keys(step))
            drawn = run.secrets.draw(t, keys, dense, tables.digest(sums, t))[1]
            run.secrets.take(drawn)
            tables.apply(sums, t)
        assert tables.release()
        shown.append(table_of(model))
    np.testing.assert_array_equal(shown[0], shown[1])
    # Rows that nobody touched differ, too: nothing that was drawn after is shared.
    assert np.all(np.any(shown[0] != shown[2], axis=1))
    untouched = shown[0][3:] - shown[2][3:]
    assert np.all(untouched != 0.0)


@pytest.mark.invariant(5)
def test_an_empty_batch_takes_no_noise_from_a_row():
    """The pass of an empty batch has a made-up example, which looks up row 0."""
    ids = np.arange(EXAMPLES * LENGTH, dtype=np.int32).reshape(EXAMPLES, LENGTH) % ROWS
    ids[:, 0] = 0
    plan = make_plan(sampling="poisson", batch_size=1)
    batches = list(plan.batches(ids, np.ones([EXAMPLES, 1], np.float32)).dataset(0))
    sizes = [len(batch["x"]) for batch in batches]
    first = next(t for t in range(1, len(sizes)) if sizes[t - 1] and not sizes[t])
    model = prepare(mean_of_bag(), plan)
    clocks = []
    for batch in batches[: first + 1]:
        model.train_on_batch(batch)
        (table,) = model.optimizer.run.tables._tables
        clocks.append(table.clocks_of(tf.range(ROWS)).numpy())
    # The noise of the step that touched it last is still to come.
    assert clocks[-2][0] == first - 1
    np.testing.assert_array_equal(clocks[-1], clocks[-2])


@pytest.mark.invariant(5)
def test_a_run_may_begin_with_an_empty_batch():
    """Its pass has a made-up example, of which nothing was looked up."""
    data = np.zeros([EXAMPLES, LENGTH], np.int32), np.ones([EXAMPLES, 1], np.float32)
    # One in three runs begins so: 60 others in a row come once in 10^11 times.
    plans = (make_plan(sampling="poisson", batch_size=1) for _ in range(60))
    sampled = ((p, list(p.batches(*data).dataset(0))[:2]) for p in plans)
    plan, batches = next(pair for pair in sampled if not len(pair[1][0]["x"]))
    model = prepare(mean_of_bag(), plan)
    for batch in batches:
        model.train_on_batch(batch)
    assert model.optimizer.steps_taken == 2


@pytest.mark.invariant(5)
def test_rows_that_were_not_looked_up_before_the_pass_get_no_sum():
    model = prepare(mean_of_bag(), make_plan())
    model._prepare(None)
    tables = model.optimizer.run.tables
    tables.begin()
    rate = tf.constant(0.1)
    tables.apply(
        tables.row_sums(
            [tf.IndexedSlices(tf.zeros([0, WIDTH]), tf.zeros([0], tf.int64))],
            rate,
            tables.bring_up_to_date([tf.zeros([0], tf.int64)], tf.constant(0)),
        ),
        tf.constant(0),
    )
    looked_up = tables.bring_up_to_date([tf.constant([4, -1, 2, 4], tf.int64)], 1)
    values = tf.reshape(tf.range(15.0), [5, WIDTH])
    others = tf.constant([2, 9, 4, -1, 4], tf.int64)
    slices = tf.IndexedSlices(values, others)
    (actual,) = tables.row_sums([slices], rate, looked_up)
    np.testing.assert_array_equal(actual.rows, [2, 4])
    np.testing.assert_array_equal(actual.sums, [values[0], values[2] + values[4]])
    slices = tf.IndexedSlices(values[:4], looked_up[0].ids)
    (same,) = tables.row_sums([slices], rate, looked_up)
    np.testing.assert_array_equal(same.rows, [4, 2])
    np.testing.assert_array_equal(same.sums, [values[0] + values[3], values[2]])


@pytest.mark.slow
def test_a_resumed_run_repeats_releases_that_were_made_after_its_checkpoint(
    data, tmp_path
):
    plan = make_plan(test_seed=None, epochs=3)
    model = prepare(mean_of_bag(), plan)
    path, checkpoint = str(tmp_path / "run.private"), tmp_path / "first.keras"
    model.fit(plan.batches(*data), epochs=1, verbose=0, private_state=path)
    model.save(checkpoint)
    model.fit(plan.batches(*data), epochs=1, verbose=0, callbacks=[Peek(2)])
    straight = model.get_weights()
    del model
    gc.collect()
    again = keras.models.load_model(checkpoint)
    again._training.checked = True
    again.fit(plan.batches(*data), epochs=2, verbose=0, private_state=path)
    for one, other in zip(straight, again.get_weights()):
        np.testing.assert_array_equal(one, other)


class Peek(keras.callbacks.Callback):
    """Predicts in the middle of an epoch."""

    def __init__(self, batch):
        super().__init__()
        self.batch = batch

    def on_train_batch_end(self, batch, logs=None):
        if batch == self.batch:
            self.model.predict(np.zeros([1, LENGTH], np.int32), verbose=0)


@pytest.mark.parametrize(
    "layers",
    [
        lambda: [keras.layers.LSTM(2)],
        pytest.param(lambda: [keras.layers.GRU(2)], marks=pytest.mark.slow),
        pytest.param(
            lambda: [keras.layers.Bidirectional(keras.layers.LSTM(2))],
            marks=pytest.mark.slow,
        ),
    ],
    ids=["lstm", "gru", "bidirectional"],
)
def test_what_comes_after_a_lookup_may_call_functions_with_weights(layers, data):
    model = keras.Sequential(
        [
            keras.Input((LENGTH,), dtype="int32"),
            keras.layers.Embedding(ROWS, WIDTH, name="items"),
            *layers(),
            keras.layers.Dense(1),
        ]
    )
    plan = make_plan(epochs=1)
    model, before = prepare(model, plan), table_of(model)
    model.fit(plan.batches(*data), verbose=0)
    assert np.all(table_of(model) != before)


@pytest.mark.slow
def test_a_vocabulary_in_the_model_looks_up_what_its_ids_do(silent):
    """Against the ids looked up by hand, of a word for which there is no row as well."""
    words = np.random.default_rng(3).choice(["a", "b", "c", "d"], (EXAMPLES, 2))
    ids = np.vectorize({"a": 1, "b": 2, "c": 3, "d": 0}.get)(words)
    targets = (ids[:, :1] == 2).astype(np.float32)
    actual = []
    for x, first in (
        (words.astype(object), keras.layers.StringLookup(vocabulary=["a", "b", "c"])),
        (ids, keras.layers.Identity()),
    ):
        keras.utils.set_random_seed(0)
        kind = "string" if x is not ids else "int64"
        rest = [keras.layers.Flatten(), keras.layers.Dense(1)]
        table = keras.layers.Embedding(5, WIDTH, name="items")
        inputs = keras.Input((2,), dtype=kind)
        plan = make_plan(epochs=1)
        model = prepare(keras.Sequential([inputs, first, table, *rest]), plan)
        model.fit(plan.batches(x, targets), verbose=0)
        actual.append(table_of(model))
    np.testing.assert_allclose(*actual, rtol=1e-5, atol=1e-6)


def sentences():
    """A document is made of sentences: the table is in the model of one sentence."""
    sentence = keras.Sequential(
        [
            keras.Input((2,), dtype="int32"),
            keras.layers.Embedding(ROWS, WIDTH, name="items"),
            keras.layers.LSTM(2),
        ]
    )
    return [keras.layers.TimeDistributed(sentence), keras.layers.Flatten()]


def words():
    table = keras.layers.Embedding(ROWS, WIDTH, name="items")
    return [keras.layers.TimeDistributed(table), keras.layers.Flatten()]


def by_steps(layers, plan, tables):
    """Trains on two steps of two ids; gives the table before, and what was released."""
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(1)
    # Half of the rows, some ids from the end, one that does not exist.
    ids = rng.integers(-2, ROWS // 2, (EXAMPLES, 2, 2)).astype(np.int32)
    ids[2, 1, 0] = ROWS + 5
    inputs = keras.Input((2, 2), dtype="int32")
    model = keras.Sequential([inputs, *layers(), keras.layers.Dense(1)])
    model = prepare(model, plan, tables)
    (table,) = [v for v in model.trainable_variables if v.shape[0] == ROWS]
    before = table.numpy()
    targets = rng.integers(0, 2, (EXAMPLES, 1)).astype(np.float32)
    model.fit(plan.batches(ids, targets), epochs=plan.num_steps // 4, verbose=0)
    assert bool(model.optimizer.run.tables) == (tables == "lazy")
    return before, table.numpy()


@pytest.mark.parametrize(
    "layers", [words, pytest.param(sentences, marks=pytest.mark.slow)]
)
def test_tables_in_time_distributed_get_the_sums_of_dense_ones(silent, layers):
    (_, dense), (before, lazy) = (
        by_steps(layers, make_plan(), tables) for tables in ("dense", "lazy")
    )
    np.testing.assert_allclose(lazy, dense, rtol=1e-5, atol=1e-6)
    assert np.any(lazy[: ROWS // 2] != before[: ROWS // 2], axis=1).all()
    np.testing.assert_array_equal(lazy[ROWS // 2 : -2], before[ROWS // 2 : -2])


@pytest.mark.slow
@pytest.mark.parametrize("layers", [words, sentences])
@pytest.mark.filterwarnings("ignore:The learning rate")
def test_tables_in_time_distributed_are_released_with_all_their_noise(layers):
    """Of rows that steps look up and of others; so much of it that data do not count."""
    plan = make_plan(epsilon=0.05)
    before, released = by_steps(layers, plan, "lazy")
    # The rate times the square root of the number of steps, of a mean.
    expected = 0.5 * np.sqrt(plan.num_steps) * plan.noise_stddev / BATCH
    for rows in (slice(ROWS // 2), slice(ROWS // 2, None)):
        numbers = (released - before)[rows].ravel() / expected
        # 60 squares have a mean of 1 with deviation 0.18; the seed is fixed.
        assert abs(np.mean(numbers**2) - 1.0) < 3 * np.sqrt(2 / numbers.size)
