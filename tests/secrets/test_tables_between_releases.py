"""Rows of lazy tables, as they are between releases, by value in what leaves a program."""

import copy
import pickle

import keras
import numpy as np
import pytest
from forms import files_below, forms_of_bytes, found_in
from written import write_model

import tf_bandmf
import tf_bandmf.keras

ROWS, WIDTH, LENGTH, EXAMPLES, BATCH = 50, 8, 3, 24, 6


class InMidEpoch(keras.callbacks.Callback):
    """Writes all that a user can, after the second step of an epoch."""

    def __init__(self, folder):
        super().__init__()
        self.folder, self.done = folder, False

    def on_train_batch_end(self, batch, logs=None):
        if batch != 1 or self.done:
            return
        self.done = True
        model, folder = self.model, self.folder
        (table,) = model.optimizer.run.tables._tables
        # What must not be seen: rows of now that are not those of the last release.
        public = model.get_layer("items").embeddings.numpy()
        now = table._states.numpy()
        self.public = public
        self.hidden = now[np.any(now != public, axis=1)]
        write_model(model, folder)
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
        for attempt in (pickle.dumps, copy.deepcopy):
            for secret in (table, model.optimizer.run.tables):
                with pytest.raises(TypeError) as caught:
                    attempt(secret)
                errors.append(caught.value)
        (folder / "shown.txt").write_text("\n".join(map(repr, shown + errors)))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.attack(
    "Rows of lazy tables between releases",
    tried="Each row that a step touched, by value in 40 encodings, in models, exports, "
    "checkpoints, TensorBoard files, pickles, variables and reprs of mid-epoch.",
    area="secrets",
    invariants=[10],
)
@pytest.mark.invariant(10)
def test_no_row_of_now_in_what_is_written_in_mid_epoch(tmp_path, figure):
    keras.utils.set_random_seed(0)
    ids = keras.Input((LENGTH,), dtype="int32")
    table = keras.layers.Embedding(ROWS, WIDTH, name="items")
    flat = keras.layers.Flatten()(table(ids))
    model = keras.Model(ids, keras.layers.Dense(1)(flat))
    plan = tf_bandmf.plan(
        "dp_sgd",
        epsilon=4.0,
        delta=1e-3,
        num_examples=EXAMPLES,
        batch_size=BATCH,
        epochs=1,
    )
    model = tf_bandmf.keras.make_private(model, self_check=False, tables="lazy")
    optimizer = tf_bandmf.keras.PrivateOptimizer(
        keras.optimizers.SGD(0.5), plan, additional_run=True
    )
    model.compile(optimizer, keras.losses.BinaryCrossentropy(from_logits=True))
    rng = np.random.default_rng(1)
    x = rng.integers(0, ROWS, (EXAMPLES, LENGTH)).astype("int32")
    y = rng.integers(0, 2, (EXAMPLES, 1)).astype("float32")
    shared = tmp_path / "shared"
    shared.mkdir()
    watch = InMidEpoch(shared)
    callbacks = [
        keras.callbacks.ModelCheckpoint(shared / "{batch}.keras", save_freq=1),
        keras.callbacks.TensorBoard(shared / "board", 1, True, update_freq="batch"),
        keras.callbacks.CSVLogger(shared / "log.csv"),
        watch,
    ]
    model.fit(plan.batches(x, y), epochs=1, verbose=0, callbacks=callbacks)
    assert watch.done and len(watch.hidden) >= 10

    def rows_in(rows, path):
        content = path.read_bytes()
        return [
            number
            for number, row in enumerate(rows)
            if found_in(content, {"row": forms_of_bytes(row.tobytes())})
        ]

    files = files_below(shared)
    assert len(files) > 20
    found = {str(path): rows for path in files if (rows := rows_in(watch.hidden, path))}
    assert not found
    # The search sees a row that is there: of the last release, and of now.
    assert rows_in(watch.public[:3], shared / "model.weights.h5") == [0, 1, 2]
    np.save(tmp_path / "breach.npy", watch.hidden)
    everything = list(range(len(watch.hidden)))
    assert rows_in(watch.hidden, tmp_path / "breach.npy") == everything
    figure("no row in any file")


@pytest.mark.filterwarnings("ignore")
def test_the_search_sees_rows_of_a_table_that_keras_saves(tmp_path):
    """The control: in the files of models that have the row."""
    rows = np.random.default_rng(0).normal(size=(4, WIDTH)).astype("f4")
    model = keras.Sequential([keras.Input((1,)), keras.layers.Embedding(4, WIDTH)])
    model.layers[0].embeddings.assign(rows)
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    for path in files_below(tmp_path):
        forms = {"row": forms_of_bytes(rows[2].tobytes())}
        assert found_in(path.read_bytes(), forms) == ["row"]
