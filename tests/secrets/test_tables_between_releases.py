"""No output of a program contains table rows that are not released yet."""

import copy
import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf
from forms import files_below, forms_of_bytes, found_in
from small_models import make_private_model
from small_plans import small_plan
from written import write_model

import tf_bandmf
import tf_bandmf.keras

ROWS, WIDTH, LENGTH, EXAMPLES, BATCH = 50, 8, 3, 24, 6


class InMidEpoch(keras.callbacks.Callback):
    """Writes all files that a user can write, after the second step of an epoch."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.done = folder, False

    def on_train_batch_end(self, batch, logs=None):
        if batch != 1 or self.done:
            return
        self.done = True
        model, folder = self.model, self.folder
        (table,) = model.optimizer.run.tables._tables
        # The secrets are the rows that changed since the last release, their momentum,
        # and the state of their noise.
        public = model.get_layer("items").embeddings.numpy()
        states = np.concatenate([part.numpy() for part in table._states], axis=1)
        parts = np.split(states, table.jumps.entries, axis=1)
        self.hidden = parts[0][np.any(parts[0] != public, axis=1)]
        self.memory = [part[np.any(part != 0.0, axis=1)] for part in parts[1:]]
        # Saving also releases the tables.
        write_model(model, folder)
        self.public = model.get_layer("items").embeddings.numpy()
        np.save(folder / "weights.npy", np.concatenate(model.get_weights(), axis=None))
        for number, variable in enumerate(model.variables + model.optimizer.variables):
            np.save(folder / f"variable{number}.npy", variable.numpy())
        inner = keras.Model(model.inputs, model.get_layer("items").output)
        np.save(folder / "inner.npy", inner(np.arange(ROWS)[:48].reshape(-1, LENGTH)))
        tf_bandmf.keras.to_plain(model).save(folder / "plain.keras")
        shown = [model, model.optimizer, model.optimizer.run, table, vars(model)]
        shown += [
            vars(model.optimizer),
            model.optimizer.run.tables,
            vars(table.__class__),
        ]
        errors = []
        # If a step is refused, its error message must not contain values of rows.
        with pytest.raises((TypeError, tf.errors.InvalidArgumentError)) as caught:
            model.train_on_batch(np.zeros([BATCH, LENGTH], "i4"), np.zeros([BATCH, 1]))
        errors.append(caught.value)
        for attempt in (pickle.dumps, copy.deepcopy):
            for secret in (table, model.optimizer.run.tables):
                with pytest.raises(TypeError) as caught:
                    attempt(secret)
                errors.append(caught.value)
        (folder / "shown.txt").write_text("\n".join(map(repr, shown + errors)))


class Jumping(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate of 0 at step 0, 2 at step 1, and 0.1 at all later steps."""

    def __call__(self, step):
        return tf.where(step == 0, 0.0, tf.where(step == 1, 2.0, 0.1))

    def get_config(self):
        return {}


MOMENTUM = {
    "mechanism": "lambda_cgd",
    "inner": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
}
SETTINGS = {
    "sgd": {},
    "steps together": {"compile": {"steps_per_execution": 2}},
    "mixed precision": {"policy": "mixed_bfloat16"},
    "momentum": MOMENTUM,
    "a release each step": {**MOMENTUM, "releases": True},
    "a rate that jumps": {"inner": {"learning_rate": Jumping}},
    "validation": {"validates": True},
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.attack(
    "Rows of lazy tables between releases",
    tried="Searches for each row that a step changed, its velocity and noise state, in "
    "40 encodings, in the models, exports, checkpoints, TensorBoard files, pickles, "
    "variables, errors and reprs that are written in mid-epoch; with several steps per "
    "execution, mixed precision, momentum, a release each step, and validation.",
    area="secrets",
)
@pytest.mark.invariant(10)
@pytest.mark.parametrize("name", SETTINGS)
def test_no_row_of_now_in_what_is_written_in_mid_epoch(tmp_path, figure, name):
    settings = SETTINGS[name]
    keras.utils.set_random_seed(0)
    ids = keras.Input((LENGTH,), dtype="int32")
    policy = settings.get("policy", "float32")
    table = keras.layers.Embedding(ROWS, WIDTH, name="items", dtype=policy)
    flat = keras.layers.Flatten()(table(ids))
    model = keras.Model(ids, keras.layers.Dense(1, dtype=policy)(flat))
    plan = small_plan(
        settings.get("mechanism", "dp_sgd"), EXAMPLES, BATCH, 1, delta=1e-3
    )
    releases = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: model.release()
    )
    inner = {"learning_rate": lambda: 0.5, **settings.get("inner", {})}
    inner["learning_rate"] = inner["learning_rate"]()
    make_private_model(
        plan,
        keras.optimizers.SGD(**inner),
        model=model,
        additional_run=True,
        settings={"tables": "lazy"},
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        **settings.get("compile", {}),
    )
    rng = np.random.default_rng(1)
    x = rng.integers(0, ROWS, (EXAMPLES, LENGTH)).astype("int32")
    y = rng.integers(0, 2, (EXAMPLES, 1)).astype("float32")
    shared = tmp_path / "shared"
    shared.mkdir()
    watch = InMidEpoch(shared)
    callbacks = [
        *[releases] * settings.get("releases", False),
        # `watch` must run before callbacks that save, because saving releases tables.
        watch,
        keras.callbacks.ModelCheckpoint(shared / "{batch}.keras", save_freq=1),
        keras.callbacks.TensorBoard(shared / "board", 1, True, update_freq="batch"),
        keras.callbacks.CSVLogger(shared / "log.csv"),
    ]
    validation = {"validation_data": (x, y)} if "validates" in settings else {}
    batches = plan.batches(x, y)
    model.fit(batches, epochs=1, verbose=0, callbacks=callbacks, **validation)
    hidden = np.concatenate([watch.hidden, *watch.memory])
    assert watch.done and len(hidden) >= 10
    assert ("releases" in settings) == (len(watch.hidden) == 0)

    def rows_in(rows, path):
        content = path.read_bytes()
        return [
            number
            for number, row in enumerate(rows)
            if found_in(content, {"row": forms_of_bytes(row.tobytes())})
        ]

    files = files_below(shared)
    assert len(files) > 20
    actual = {str(path): rows for path in files if (rows := rows_in(hidden, path))}
    assert not actual
    # As a control, the search finds rows that were released, and hidden rows that the
    # test itself saves.
    assert rows_in(watch.public[:3], shared / "model.weights.h5") == [0, 1, 2]
    np.save(tmp_path / "breach.npy", hidden)
    assert rows_in(hidden, tmp_path / "breach.npy") == list(range(len(hidden)))
    figure("no row in any file")
