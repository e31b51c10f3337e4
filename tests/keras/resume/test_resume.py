"""Tests that a resumed run equals an uninterrupted run, or is refused."""

import os
import shutil
import stat

import keras
import numpy as np
import pytest
import tensorflow as tf
from same_weights import assert_same, refused
from small_models import (
    Crash,
    CrashAfter,
    backup_in,
    built,
    data,
    make_min_sep_plan,
    make_plan,
    make_private_model,
    plan_and_model,
    written_steps,
)
from small_plans import planned

import tf_bandmf
from tf_bandmf.files.journal import Journal
from tf_bandmf.keras.resume import private_file
from tf_bandmf.keras.run import admission

NUM_EXAMPLES = 22


def noisy_model(plan, rate=0.01):
    """Makes a model with dropout, whose optimizer has moments and averaged weights."""
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dropout(0.5), keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((5,)), *layers])
    inner = keras.optimizers.Adam(rate, use_ema=True)
    return make_private_model(plan, inner, model=model)


@pytest.mark.parametrize("kind", ["arrays", "stream"])
@pytest.mark.slow_cases("stream")
@pytest.mark.invariant(11)
def test_a_run_resumed_three_times_is_the_straight_run_bit_for_bit(kind, tmp_path):
    plan = make_plan("lambda_cgd", batch_size=11)

    def run(name, *callbacks, rate=0.01):
        """Trains a model, with a backup after every step, and returns the model."""
        given = (tf.data.Dataset.from_tensor_slices(data),)
        backup = backup_in(tmp_path / f"{name}-backup")
        model = noisy_model(plan, rate)
        model.fit(
            plan.batches(*(given if kind == "stream" else data)),
            epochs=2,
            private_state=tmp_path / f"{name}.private",
            callbacks=[backup, *callbacks],
            verbose=0,
        )
        return model

    for crash_at in (1, 2, 3):
        with pytest.raises(Crash):
            run("crashed", CrashAfter(crash_at))
    with pytest.warns(UserWarning) as warnings:
        resumed = run("crashed", rate=0.02)
    (told,) = (str(w.message) for w in warnings if w.category is UserWarning)
    assert "backup, 0.01: the program's, 0.02, has no effect" in told
    assert resumed.optimizer.steps_taken == plan.num_steps
    assert_same(resumed, run("straight"))


PARTICIPATIONS = {
    "fixed": ("bsr:2", tf_bandmf.FixedEpochOrder(NUM_EXAMPLES, 6, 2), "chacha20"),
    "poisson": ("identity", tf_bandmf.CyclicPoisson(NUM_EXAMPLES, 6, 2), "philox"),
    "bins": ("bsr:2", tf_bandmf.BallsInBins(NUM_EXAMPLES, 6, 2), "philox"),
}


@pytest.mark.parametrize("kind", PARTICIPATIONS)
@pytest.mark.slow_cases("fixed", "poisson")
@pytest.mark.invariant(11)
def test_key_and_sampler_are_those_of_the_interrupted_run(kind, tmp_path):
    mechanism, participation, generator = PARTICIPATIONS[kind]
    arguments = {"noise_multiplier": 1.0, "delta": 1e-5, "sampling": participation}
    plan = planned(mechanism, num_steps=8, generator=generator, **arguments)
    options = {"epochs": 2, "private_state": tmp_path / "run.private", "verbose": 0}

    class Keep(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            step = self.model.optimizer.steps_taken
            self.model.save_weights(tmp_path / f"{step}.weights.h5")

    model = noisy_model(plan)
    model.fit(plan.batches(*data), callbacks=[Keep()], **options)
    for step in (3, 7):
        # As in a new process, the new model has a different key and sampler seed until
        # it resumes the run.
        again = built(noisy_model(plan), tmp_path / f"{step}.weights.h5")
        again.fit(plan.batches(*data), **options)
        assert_same(again, model)


@pytest.fixture(scope="module")
def half_a_run(tmp_path_factory):
    """Returns a plan, and the folder with the files of its run after one epoch."""
    admission.forget()
    plan = make_plan("bsr", test_seed=None, batch_size=11)
    folder = tmp_path_factory.mktemp("half")
    model = make_private_model(plan)
    path = folder / "run.private"
    model.fit(plan.batches(*data), epochs=1, private_state=path, verbose=0)
    model.save_weights(folder / "half.weights.h5")
    return plan, folder


@pytest.fixture
def halfway(half_a_run, tmp_path):
    """Returns the plan, and copies of the run's weights file and private state file."""
    plan, folder = half_a_run
    for name in ("run.private", "half.weights.h5"):
        shutil.copy2(folder / name, tmp_path / name)
    return plan, tmp_path / "half.weights.h5", tmp_path / "run.private"


REFUSALS = {
    "no file": "private state file, which must exist",
    "readable": "chmod 600",
    "damaged": "damaged",
    "version": r"of this version of tf-bandmf \(format 1000000\)",
    "plan": "another plan",
    "data": "other data",
    "weights": "does not record these weights",
    "new weights": "does not record these weights",
}


@pytest.mark.parametrize("change", REFUSALS)
@pytest.mark.invariant(11)
def test_anything_else_than_the_run_is_refused(change, halfway, monkeypatch):
    plan, weights, path = halfway
    x, y = data
    if change == "plan":
        plan = make_plan("bsr", epsilon=5.0, test_seed=None, batch_size=11)
    model = built(make_private_model(plan), weights)
    if change == "no file":
        path.unlink()
    elif change == "readable":
        os.chmod(path, 0o644)
    elif change == "damaged":
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(bytes(content))
    elif change == "version":
        monkeypatch.setattr(private_file, "_FORMAT", 10**6)
    elif change == "data":
        x = x[::-1].copy()
    elif "weights" in change:
        model.set_weights([w + 1e-3 for w in model.get_weights()])
    if change == "new weights":
        model.optimizer.inner_optimizer.iterations.assign(0)
    errors = (ValueError, PermissionError, tf.errors.InvalidArgumentError)
    with refused(model, errors, REFUSALS[change]):
        model.fit(plan.batches(x, y), private_state=path, verbose=0)
    assert path.exists() == (change != "no file")


@pytest.mark.slow_cases("changed", "torn", "control", "as it was")
@pytest.mark.attack(
    "A lost step, repeated with another sum",
    tried="Kills a run after two steps that no checkpoint has, and repeats both steps: "
    "unchanged; with a loss whose code was edited; or with other weights, for which "
    "the caller vouches. Control: the edited loss, with a private file that lacks "
    "these steps.",
    area="noise",
)
@pytest.mark.parametrize("lost", ["as it was", "edited", "changed", "torn", "control"])
@pytest.mark.invariant(8, 10, 11)
def test_a_step_that_was_lost_is_repeated_as_it_was_or_stops(lost, tmp_path, figure):
    def make_model(factor):
        # No config contains the factor, so configs do not show that the loss was
        # edited.
        def graded(y, logits):
            actual = keras.losses.sparse_categorical_crossentropy(y, logits, True)
            return factor * actual

        return make_private_model(plan, hidden=False, loss=graded)

    plan = make_plan("identity", test_seed=None, batch_size=11)
    model = make_model(1.0)
    path = tmp_path / "run.private"
    batches = list(model.begin_run(plan.batches(*data), path).dataset())
    model.save_weights(tmp_path / "0.weights.h5")
    size = path.stat().st_size
    model.train_on_batch(batches[0])
    taken = model.get_weights()
    model.train_on_batch(batches[1])
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    del model
    admission.forget()
    if lost == "control":
        os.truncate(path, size)
    elif lost == "torn":
        # Simulates a machine that stopped while it wrote the entry of the second step.
        os.truncate(path, path.stat().st_size - 5)
    again = make_model(0.5 if lost in ("edited", "control") else 1.0)
    built(again, tmp_path / "0.weights.h5")
    again.begin_run(plan.batches(*data), path)
    if lost == "changed":
        again.set_weights([weight + 1e-3 for weight in again.get_weights()])
        again.optimizer.vouch_for_weights("a thousandth added to all")
    if lost in ("edited", "changed"):
        for _ in range(2):
            error = tf.errors.InvalidArgumentError
            with refused(again, error, r"is not the same now.*as a second run"):
                again.train_on_batch(batches[0])
        figure("refused before a release; repeated if the private file lacks the step")
        return
    again.train_on_batch(batches[0])
    same = [np.array_equal(a, b) for a, b in zip(again.get_weights(), taken)]
    assert all(same) == (lost != "control")
    again.train_on_batch(batches[1])


@pytest.mark.slow_cases("xla", "steps_per_execution")
@pytest.mark.parametrize(
    "changes",
    [{}, {"jit_compile": True}, {"steps_per_execution": 3, "jit_compile": False}],
    ids=["usual", "xla", "steps_per_execution"],
)
@pytest.mark.invariant(11)
def test_each_step_is_written_down_however_it_is_run(changes, tmp_path):
    plan, model = plan_and_model(
        "identity", test_seed=None, batch_size=11, epochs=3, hidden=False, **changes
    )
    batches = plan.batches(*data)
    drawn, path = list(batches.dataset()), tmp_path / "run.private"
    # The step is traced before the private state file exists, but must write to it
    # later.
    model.train_on_batch(drawn[0])
    model.begin_run(batches, path)
    model.train_on_batch(drawn[1])
    model.optimizer.apply_noisy(model.private_gradients(drawn[2]))
    model.fit(batches, steps_per_epoch=3, verbose=0)
    assert written_steps(path) == list(range(1, plan.num_steps))


@pytest.mark.slow
@pytest.mark.invariant(10)
def test_entries_are_keyed(tmp_path):
    plan = make_plan("identity", test_seed=None, batch_size=11)

    def entry_of(name, key):
        admission.forget()
        model = make_private_model(plan, hidden=False)
        built(model, key=bytes([key]) * 32)
        batches = model.begin_run(plan.batches(*data), tmp_path / name)
        model.train_on_batch(next(iter(batches.dataset())))
        _, (entry,) = Journal(str(tmp_path / name)).read()
        return entry

    first = entry_of("first", 1)
    assert first == entry_of("same", 1)
    # Both entries have the same sum, batch and weights; only the key differs.
    assert first != entry_of("other", 2)


@pytest.mark.invariant(11)
def test_a_file_that_two_processes_wrote_is_refused(halfway, tmp_path):
    plan, weights, path = halfway
    # Simulates the entries of two forks of the process that both took the third step.
    file = Journal(str(path))
    file.read()
    for digest in (5, 6):
        file.append(np.array([2, digest], "<i8").tobytes())
    model = built(make_private_model(plan), weights)
    with pytest.raises(ValueError, match="records the same step twice"):
        model.begin_run(plan.batches(*data), path)


@pytest.mark.slow_cases("weights", "nothing")
@pytest.mark.attack(
    "Weights changed between resuming a run and its first step",
    tried="A callback assigns weights when the training of a resumed run starts. "
    "Control: without the callback, the run continues.",
    area="inputs",
)
@pytest.mark.invariant(11, 19)
@pytest.mark.parametrize("what", ["nothing", "weights"])
def test_what_a_run_is_resumed_with_is_sealed(what, halfway, figure):
    plan, weights, path = halfway
    model = built(make_private_model(plan), weights)

    def assign(logs):
        for variable in model.trainable_variables if what == "weights" else ():
            variable.assign(variable + 1.0)

    def fit():
        callbacks = [keras.callbacks.LambdaCallback(on_train_begin=assign)]
        options = {"epochs": 2, "private_state": path, "verbose": 0}
        model.fit(plan.batches(*data), callbacks=callbacks, **options)

    if what == "nothing":
        fit()
        assert model.optimizer.steps_taken == plan.num_steps
        return
    with pytest.raises(tf.errors.InvalidArgumentError, match="something else changed"):
        fit()
    assert model.optimizer.steps_taken == plan.num_steps // 2
    figure("refused; without the callback, the run continues")


def test_streams_whose_separation_is_asserted_are_not_resumed(tmp_path):
    model = make_private_model(make_min_sep_plan())
    model.build((None, 5))
    with pytest.raises(TypeError, match="cannot be resumed"):
        model.fit(iter([data]), private_state=tmp_path / "p", verbose=0)


@pytest.mark.invariant(1, 11)
def test_a_resumed_run_is_named_by_its_statement_and_has_no_more_steps(halfway):
    plan, weights, path = halfway
    ends = []
    # The loop resumes the run in two ways, and `ends` collects the final weights.
    for at_once in (True, False):
        model = built(make_private_model(plan), weights)
        batches = plan.batches(*data)
        if at_once:
            model.fit(batches, epochs=2, private_state=path, verbose=0)
        else:
            model.begin_run(batches, path)
            with pytest.raises(ValueError, match="2 of the plan's 4 steps are left"):
                model.fit(batches, epochs=2, verbose=0)
            model.fit(batches, epochs=1, verbose=0)
        assert "resumed at step 2." in str(model.optimizer.statement())
        ends.append(model.get_weights())
        past = {**list(batches)[-1], "step": np.int64(plan.num_steps)}
        with refused(model, (tf.errors.InvalidArgumentError, RuntimeError)):
            model.train_on_batch(past)
        with refused(model, ValueError, "0 of the plan's 4 steps are left"):
            model.fit(batches, epochs=1, private_state=path, verbose=0)
    assert_same(*ends)


CALLBACKS = {
    "backup": keras.callbacks.BackupAndRestore,
    "logs": keras.callbacks.TensorBoard,
    "checkpoints": lambda folder: keras.callbacks.ModelCheckpoint(
        folder / "{epoch}" / "m.keras"
    ),
}


@pytest.mark.parametrize("kind", CALLBACKS)
@pytest.mark.invariant(10)
def test_the_private_file_is_in_no_folder_of_a_callback(kind, tmp_path):
    plan, model = plan_and_model()
    options = {"private_state": tmp_path / "run.private", "verbose": 0}
    callbacks = [CALLBACKS[kind](tmp_path)]
    with pytest.raises(ValueError, match="Put the file elsewhere"):
        model.fit(plan.batches(*data), callbacks=callbacks, **options)
    assert not any(tmp_path.iterdir())
