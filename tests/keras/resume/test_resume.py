"""Stop and resume: the resumed run is the straight run, or it is refused."""

import os
import shutil
import stat
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf.files.journal import Journal
from tf_bandmf.keras.resume import private_file
from tf_bandmf.keras.run import known_runs
from tf_bandmf.noise.keys import NoiseKey

NUM_EXAMPLES = 22

PARTICIPATIONS = {
    "fixed": lambda: tf_bandmf.FixedEpochOrder(NUM_EXAMPLES, 6, 2),
    "poisson": lambda: tf_bandmf.CyclicPoisson(NUM_EXAMPLES, 6, 2),
    "bins": lambda: tf_bandmf.BallsInBins(NUM_EXAMPLES, 6, 2),
}


class Crash(BaseException):
    """What nobody catches."""


class CrashAt(keras.callbacks.Callback):
    def __init__(self, step):
        super().__init__()
        self._step = step

    def on_train_batch_end(self, batch, logs=None):
        if self.model.optimizer.steps_taken == self._step:
            raise Crash


@pytest.fixture
def run(data, make_private_model, tmp_path):
    """Trains with a backup at every step, in a process that knows nothing of others."""

    def go(plan, name, crash_at=None, inner=None, given=data, **changes):
        model = make_private_model(plan, inner() if inner else None, **changes)
        model.build((None, data[0].shape[1]))
        callbacks = [
            keras.callbacks.BackupAndRestore(
                tmp_path / f"{name}-backup", save_freq=1, delete_checkpoint=False
            )
        ]
        if crash_at is not None:
            callbacks.append(CrashAt(crash_at))
        model.fit(
            plan.batches(*given),
            epochs=2,
            private_state=tmp_path / f"{name}.private",
            callbacks=callbacks,
            verbose=0,
        )
        return model

    return go


def assert_same_weights(a, b):
    for x, y in zip(a.get_weights(), b.get_weights(), strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize(
    ("mechanism", "generator"),
    [
        ("lambda_cgd", "philox"),
        ("bsr", "philox"),
        pytest.param("lambda_cgd", "chacha20", marks=pytest.mark.slow),
    ],
)
@pytest.mark.slow_cases("bsr-philox")
@pytest.mark.invariant(11)
def test_a_run_resumed_three_times_is_the_straight_run_bit_for_bit(
    mechanism, generator, make_plan, run
):
    plan = make_plan(mechanism, generator=generator, batch_size=11)
    inner = lambda: keras.optimizers.Adam(0.01, use_ema=True)  # noqa: E731
    options = {"inner": inner, "hidden": False}
    straight = run(plan, "straight", **options)
    for crash_at in (1, 2, 3):
        with pytest.raises(Crash):
            run(plan, "crashed", crash_at, **options)
    resumed = run(plan, "crashed", **options)
    assert resumed.optimizer.steps_taken == plan.num_steps
    assert_same_weights(resumed, straight)


@pytest.mark.slow
@pytest.mark.invariant(11)
def test_a_data_set_that_is_read_in_its_order_is_resumed_bit_for_bit(
    data, make_plan, run
):
    plan = make_plan("lambda_cgd")
    stream = (tf.data.Dataset.from_tensor_slices(data),)
    options = {"hidden": False, "given": stream}
    straight = run(plan, "straight", **options)
    with pytest.raises(Crash):
        run(plan, "crashed", plan.num_steps // 2 + 1, **options)
    other = (tf.data.Dataset.from_tensor_slices(tuple(d[::-1] for d in data)),)
    with pytest.raises(ValueError, match="on other data"):
        run(plan, "crashed", **{**options, "given": other})
    assert_same_weights(run(plan, "crashed", **options), straight)


@pytest.mark.parametrize("kind", PARTICIPATIONS)
@pytest.mark.slow_cases("fixed", "poisson")
@pytest.mark.invariant(11)
def test_key_and_sampler_are_those_of_the_interrupted_run(
    kind, data, run, make_private_model, tmp_path
):
    participation = PARTICIPATIONS[kind]()
    steps = None if hasattr(participation, "steps_per_epoch") else 8
    plan = tf_bandmf.plan(
        "bsr:2" if kind != "poisson" else "identity",
        noise_multiplier=1.0,
        delta=1e-5,
        num_steps=steps,
        sampling=participation,
    )
    saved = {}

    class Keep(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            path = tmp_path / f"{self.model.optimizer.steps_taken}.weights.h5"
            self.model.save_weights(path)
            saved[self.model.optimizer.steps_taken] = path

    model = make_private_model(plan, hidden=False)
    model.fit(
        plan.batches(*data),
        epochs=2,
        private_state=tmp_path / "run.private",
        callbacks=[Keep()],
        verbose=0,
    )
    for step in (3, 7):
        # Another process would have another key and another sampler's seed.
        again = make_private_model(plan, hidden=False)
        again.build((None, data[0].shape[1]))
        again.optimizer.build(again.trainable_variables)
        again.load_weights(saved[step])
        again.fit(
            plan.batches(*data),
            epochs=2,
            private_state=tmp_path / "run.private",
            verbose=0,
        )
        assert_same_weights(again, model)


@pytest.mark.slow
def test_dropout_masks_are_those_of_the_interrupted_run(
    data, make_plan, compile_model, tmp_path
):
    plan = make_plan("bsr")

    def train(name, crash_at=None):
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Dropout(0.5), keras.layers.Dense(3)]
        model = keras.Sequential([keras.Input((5,)), *layers])
        optimizer = tf_bandmf.keras.PrivateOptimizer("sgd", plan)
        tf_bandmf.keras.make_private(model)
        compile_model(model, optimizer)
        backup = keras.callbacks.BackupAndRestore(
            tmp_path / name, save_freq=1, delete_checkpoint=False
        )
        callbacks = [backup] + ([CrashAt(crash_at)] if crash_at else [])
        path = tmp_path / f"{name}.private"
        batches = plan.batches(*data)
        model.fit(batches, epochs=2, private_state=path, callbacks=callbacks, verbose=0)
        return model

    straight = train("straight")
    with pytest.raises(Crash):
        train("crashed", 3)
    assert_same_weights(train("crashed"), straight)


@pytest.mark.slow
def test_a_loop_of_ones_own_resumes(
    data, make_plan, make_private_model, straight_weights, tmp_path
):
    # Batches of one size: one trace.
    plan, path = make_plan("bsr", batch_size=11), tmp_path / "run.private"
    model = make_private_model(plan)
    batches = model.begin_run(plan.batches(*data), path)
    for batch in batches.dataset().take(3):
        model.train_on_batch(batch)
    model.save(tmp_path / "m.keras")
    again = keras.models.load_model(tmp_path / "m.keras")
    batches = again.begin_run(plan.batches(*data), path)
    for batch in batches.dataset(again.optimizer.steps_taken):
        again.train_on_batch(batch)
    assert again.optimizer.steps_taken == plan.num_steps
    assert_unchanged(again, straight_weights("bsr", batch_size=11))


@pytest.fixture(scope="module")
def half_a_run(data, make_plan, make_private_model, tmp_path_factory):
    """A plan, and the folder that a run left after its first epoch."""
    known_runs.forget()
    plan = make_plan("bsr", test_seed=None, batch_size=11)
    folder = tmp_path_factory.mktemp("half")
    model = make_private_model(plan)
    path = folder / "run.private"
    model.fit(plan.batches(*data), epochs=1, private_state=path, verbose=0)
    model.save_weights(folder / "half.weights.h5")
    return plan, folder


@pytest.fixture
def halfway(half_a_run, tmp_path):
    """The plan, a weights file and a private file of the test's own."""
    plan, folder = half_a_run
    for name in ("run.private", "half.weights.h5"):
        shutil.copy2(folder / name, tmp_path / name)
    return plan, tmp_path / "half.weights.h5", tmp_path / "run.private"


def restored(model, weights):
    model.build((None, 5))
    model.optimizer.build(model.trainable_variables)
    model.load_weights(weights)
    return model


@pytest.mark.invariant(10)
def test_the_private_file_is_for_its_owner_alone(halfway):
    path = halfway[2]
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


@pytest.mark.invariant(11)
def test_without_the_private_file_it_refuses(
    halfway, data, make_private_model, tmp_path
):
    plan, weights, _ = halfway
    model = restored(make_private_model(plan), weights)
    with pytest.raises(ValueError, match="private state file is not at"):
        model.fit(plan.batches(*data), private_state=tmp_path / "other", verbose=0)
    assert not (tmp_path / "other").exists()
    assert model.optimizer.steps_taken == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("plan", "another plan"),
        ("data", "other data"),
        ("weights", "does not know these weights"),
        ("new weights", "does not know these weights"),
    ],
)
@pytest.mark.invariant(11)
def test_anything_else_than_the_run_is_refused(
    change, message, halfway, data, make_plan, make_private_model
):
    plan, weights, path = halfway
    x, y = data
    if change == "plan":
        plan = make_plan("bsr", epsilon=5.0, test_seed=None, batch_size=11)
    model = make_private_model(plan, keras.optimizers.SGD(0.1))
    if change == "new weights":
        restored(model, weights)
        model.optimizer.inner_optimizer.iterations.assign(0)
        model.set_weights([w + 1 for w in model.get_weights()])
    else:
        restored(model, weights)
    if change == "weights":
        model.set_weights([w + 1e-3 for w in model.get_weights()])
    if change == "data":
        x = x[::-1].copy()
    before = model.get_weights()
    with pytest.raises(ValueError, match=message):
        model.fit(plan.batches(x, y), private_state=path, verbose=0)
    for a, b in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow_cases("changed", "torn", "control", "as it was")
@pytest.mark.attack(
    "A lost step, repeated with another sum",
    tried="Kills a run after two steps that no checkpoint has, and repeats them from the "
    "checkpoint before: as they were; with a loss whose code was edited meanwhile; with "
    "other weights, for which the caller vouches; control: the edited loss with a private "
    "file that does not have these steps.",
    area="noise",
    invariants=[8, 11],
)
@pytest.mark.parametrize("lost", ["as it was", "edited", "changed", "torn", "control"])
@pytest.mark.invariant(11)
def test_a_step_that_was_lost_is_repeated_as_it_was_or_stops(
    lost, data, make_plan, make_private_model, tmp_path, figure
):
    def make_model(factor):
        def graded(y, logits):  # No configuration tells the factor.
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
    known_runs.forget()
    if lost == "control":
        os.truncate(path, size)
    elif lost == "torn":
        # The machine stopped while the second step was written down.
        os.truncate(path, path.stat().st_size - 5)
    again = make_model(0.5 if lost in ("edited", "control") else 1.0)
    restored(again, tmp_path / "0.weights.h5")
    again.begin_run(plan.batches(*data), path)
    if lost == "changed":
        again.set_weights([weight + 1e-3 for weight in again.get_weights()])
        again.optimizer.vouch_for_weights("a thousandth added to all")
    before = again.get_weights()
    if lost in ("edited", "changed"):
        for _ in range(2):
            error = tf.errors.InvalidArgumentError
            with pytest.raises(error, match=r"is another one now.*as a second run"):
                again.train_on_batch(batches[0])
            assert_unchanged(again, before)
        figure("stops before anything is released; goes on if the file lacks the step")
        return
    again.train_on_batch(batches[0])
    same = [np.array_equal(a, b) for a, b in zip(again.get_weights(), taken)]
    assert all(same) == (lost != "control")
    again.train_on_batch(batches[1])


@pytest.mark.invariant(19)
def test_a_run_that_stopped_goes_on_as_a_second_one(
    halfway, data, make_plain_model, compile_model, make_private_model, tmp_path
):
    """What the message of a step that is another one now says to do."""
    plan, weights, path = halfway
    first = restored(make_private_model(plan), weights)
    first.begin_run(plan.batches(*data), path)
    second = make_plain_model()
    tf_bandmf.keras.make_private(second)
    second.load_weights(weights)
    optimizer = tf_bandmf.keras.PrivateOptimizer("sgd", plan, additional_run=True)
    compile_model(second, optimizer)
    batches = second.begin_run(plan.batches(*data), tmp_path / "second.private")
    assert_unchanged(second, first.get_weights())
    second.train_on_batch(next(iter(batches.dataset())))
    assert second.optimizer.steps_taken == 1
    keys = [model.optimizer.run.secrets.key for model in (first, second)]
    assert keys[0].secret_bytes() != keys[1].secret_bytes()


@pytest.mark.slow_cases("steps_per_execution", "xla")
@pytest.mark.parametrize(
    "changes",
    [
        {"jit_compile": True},
        {"steps_per_execution": 3, "jit_compile": False},
    ],
    ids=["xla", "steps_per_execution"],
)
@pytest.mark.invariant(11)
def test_each_step_is_written_down_however_it_is_run(
    changes, data, plan_and_model, written_steps, tmp_path
):
    plan, model = plan_and_model(
        "identity", test_seed=None, batch_size=11, hidden=False, **changes
    )
    path = tmp_path / "run.private"
    model.fit(plan.batches(*data), epochs=2, verbose=0, private_state=path)
    assert written_steps(path) == list(range(plan.num_steps))


@pytest.mark.slow
@pytest.mark.invariant(10)
def test_entries_are_keyed(data, make_plan, make_private_model, tmp_path):
    plan = make_plan("identity", test_seed=None, batch_size=11)

    def entry_of(name, key):
        known_runs.forget()
        model = make_private_model(plan, hidden=False)
        model.build((None, data[0].shape[1]))
        model.optimizer.build(model.trainable_variables)
        run = model.optimizer.run
        run.adopt(run.secrets_of(NoiseKey(bytes([key]) * 32)))
        batches = model.begin_run(plan.batches(*data), tmp_path / name)
        model.train_on_batch(next(iter(batches.dataset())))
        _, (entry,) = Journal(str(tmp_path / name)).read()
        return entry

    first = entry_of("first", 1)
    assert first == entry_of("same", 1)
    # The same sum, batch and weights.
    assert first != entry_of("other", 2)


@pytest.mark.slow
def test_steps_are_written_down_though_graphs_were_traced_before(
    data, plan_and_model, written_steps, tmp_path
):
    plan, model = plan_and_model(
        "identity", test_seed=None, batch_size=11, hidden=False
    )
    batches = list(plan.batches(*data).dataset())
    model.train_on_batch(batches[0])
    path = tmp_path / "run.private"
    model.begin_run(plan.batches(*data), path)
    model.train_on_batch(batches[1])
    model.private_gradients(batches[2])
    assert written_steps(path) == [1, 2]


@pytest.mark.invariant(11)
def test_a_file_that_two_processes_wrote_is_refused(
    data, plan_and_model, make_private_model, tmp_path
):
    plan, model = plan_and_model(
        "identity", test_seed=None, batch_size=11, hidden=False
    )
    path, weights = tmp_path / "run.private", tmp_path / "0.weights.h5"
    model.begin_run(plan.batches(*data), path)
    model.save_weights(weights)
    # As two forks would, of which each takes the first step.
    for digest in (5, 6):
        model._training.run_file._file.append(np.array([0, digest], "<i8").tobytes())
    del model
    again = restored(make_private_model(plan, hidden=False), weights)
    with pytest.raises(ValueError, match="has a step twice"):
        again.begin_run(plan.batches(*data), path)


@pytest.mark.slow_cases("weights", "nothing")
@pytest.mark.attack(
    "Weights between a resumed run's file and its first step",
    tried="A callback assigns weights when the training of a resumed run begins; control: "
    "the same run without it goes on.",
    area="inputs",
    invariants=[11, 19],
)
@pytest.mark.parametrize("what", ["nothing", "weights"])
def test_what_a_run_is_resumed_with_is_sealed(
    what, data, make_plan, make_private_model, tmp_path, figure
):
    plan = make_plan("identity", test_seed=None, batch_size=11)
    path, checkpoint = tmp_path / "run.private", tmp_path / "half.weights.h5"

    def begun():
        inner = keras.optimizers.SGD(0.1, momentum=0.5)
        return make_private_model(plan, inner, hidden=False)

    model = begun()
    model.fit(plan.batches(*data), epochs=1, private_state=path, verbose=0)
    model.save_weights(checkpoint)
    again = restored(begun(), checkpoint)

    def assign(logs):
        for variable in again.trainable_variables if what == "weights" else ():
            variable.assign(variable + 1.0)

    def fit():
        callback = keras.callbacks.LambdaCallback(on_train_begin=assign)
        again.fit(
            plan.batches(*data),
            epochs=2,
            private_state=path,
            callbacks=[callback],
            verbose=0,
        )

    if what == "nothing":
        fit()
        assert again.optimizer.steps_taken == plan.num_steps
        return
    with pytest.raises(tf.errors.InvalidArgumentError, match="something else changed"):
        fit()
    assert again.optimizer.steps_taken == plan.num_steps // 2
    figure("refused; without the callback the run goes on")


@pytest.mark.invariant(11)
def test_a_damaged_or_readable_file_is_refused(halfway, data, make_private_model):
    plan, weights, path = halfway
    model = restored(make_private_model(plan), weights)
    os.chmod(path, 0o644)
    with pytest.raises(PermissionError, match="chmod 600"):
        model.fit(plan.batches(*data), private_state=path, verbose=0)
    os.chmod(path, 0o600)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(ValueError, match="damaged"):
        model.fit(plan.batches(*data), private_state=path, verbose=0)


def test_a_file_of_another_version_is_refused(
    halfway, data, make_private_model, monkeypatch
):
    plan, weights, path = halfway
    model = restored(make_private_model(plan), weights)
    with monkeypatch.context() as patch:
        patch.setattr(private_file, "_FORMAT", 10**6)
        with pytest.raises(ValueError, match=r"of this version \(format 1000000\)"):
            model.fit(plan.batches(*data), private_state=path, verbose=0)


def test_streams_whose_separation_is_asserted_are_not_resumed(
    data, make_min_sep_plan, make_private_model, tmp_path
):
    model = make_private_model(make_min_sep_plan())
    model.build((None, 5))
    with pytest.raises(TypeError, match="cannot be resumed"):
        model.fit(iter([data]), private_state=tmp_path / "p", verbose=0)


PROGRAM = """
    import dataclasses, os, signal, sys
    import keras, numpy as np, tf_bandmf, tf_bandmf.keras
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(22, 5)).astype("f4"), rng.integers(0, 3, 22)
    plan = tf_bandmf.plan(
        "bsr:3", noise_multiplier=1.0, delta=1e-5,
        num_examples=22, batch_size=6, epochs=2)
    plan = dataclasses.replace(plan, test_seed=3)

    class Kill(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if self.model.optimizer.steps_taken == self.step:
                os.kill(os.getpid(), signal.SIGKILL)

    def train(folder, kill_at):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3)])
        tf_bandmf.keras.make_private(model)
        model.compile(
            tf_bandmf.keras.PrivateOptimizer("sgd", plan),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        backup = keras.callbacks.BackupAndRestore(
            folder + "/backup", save_freq=2, delete_checkpoint=False)
        kill = Kill()
        kill.step = kill_at
        model.fit(plan.batches(x, y), epochs=2, verbose=0,
                  private_state=folder + "/run.private", callbacks=[backup, kill])
        np.savez(folder + "/final.npz", *model.get_weights())

    # The first process is a fork of what was imported; TensorFlow has not started yet.
    straight, resumed = sys.argv[1:]
    first = os.fork()
    if first == 0:
        train(resumed, 5)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]) == -signal.SIGKILL
    assert not os.path.exists(resumed + "/final.npz")
    train(resumed, None)
    train(straight, None)
"""


@pytest.mark.invariant(11)
def test_the_statement_names_each_resume(halfway, data, make_private_model):
    plan, weights, path = halfway
    model = restored(make_private_model(plan), weights)
    model.fit(plan.batches(*data), epochs=2, private_state=path, verbose=0)
    assert "resumed at step 2." in str(model.optimizer.statement())
    assert model.optimizer.steps_taken == plan.num_steps


def assert_unchanged(model, before):
    for a, b in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
@pytest.mark.invariant(1)
def test_a_resumed_run_has_the_steps_of_the_plan_and_no_more(
    halfway, data, make_private_model
):
    plan, weights, path = halfway
    model = restored(make_private_model(plan), weights)
    batches = model.begin_run(plan.batches(*data), path)
    remaining = list(batches.dataset(model.optimizer.steps_taken))
    assert len(remaining) == plan.num_steps - 2
    before = model.get_weights()
    with pytest.raises(ValueError, match="2 of the plan's 4 steps are left"):
        model.fit(batches, epochs=2, verbose=0)
    assert_unchanged(model, before)
    for batch in remaining:
        model.train_on_batch(batch)
    before = model.get_weights()
    past = {**remaining[-1], "step": np.int64(plan.num_steps)}
    with pytest.raises((tf.errors.InvalidArgumentError, RuntimeError)):
        model.train_on_batch(past)
    with pytest.raises(ValueError, match="0 of the plan's 4 steps are left"):
        model.fit(batches, epochs=1, verbose=0)
    # Nor does another process get more: it comes to the end with these very weights.
    again = restored(make_private_model(plan), weights)
    again.fit(plan.batches(*data), epochs=2, private_state=path, verbose=0)
    assert_same_weights(again, model)
    with pytest.raises(ValueError, match="0 of the plan's 4 steps are left"):
        again.fit(plan.batches(*data), epochs=1, private_state=path, verbose=0)
    assert_unchanged(model, before)
    assert_unchanged(again, before)


CALLBACKS = {
    "backup": keras.callbacks.BackupAndRestore,
    "logs": keras.callbacks.TensorBoard,
}


@pytest.mark.parametrize("kind", CALLBACKS)
@pytest.mark.invariant(10)
def test_the_private_file_is_in_no_folder_of_a_callback(
    kind, data, plan_and_model, tmp_path
):
    plan, model = plan_and_model()
    folder = tmp_path / "shared"
    folder.mkdir()
    options = {"private_state": folder / "run.private", "verbose": 0}
    callbacks = [CALLBACKS[kind](folder)]
    with pytest.raises(ValueError, match="Put it elsewhere"):
        model.fit(plan.batches(*data), callbacks=callbacks, **options)
    assert not any(folder.iterdir())


@pytest.mark.slow
def test_kill_9_and_resume_gives_the_bit_identical_run(tmp_path):
    program = tmp_path / "train.py"
    program.write_text(textwrap.dedent(PROGRAM))
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    straight.mkdir()
    resumed.mkdir()
    command = list(map(str, [sys.executable, program, straight, resumed]))
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    with np.load(straight / "final.npz") as a, np.load(resumed / "final.npz") as b:
        for name in a:
            np.testing.assert_array_equal(a[name], b[name])
