"""No output of a training program contains the values of its run's secrets."""

import copy
import io
import json
import logging
import pickle
import traceback

import keras
import numpy as np
import pytest
import tensorflow as tf
from forms import files_below, forms_of_run, found_in
from small_models import backup_in, data, make_private_model
from small_plans import small_plan
from written import write_model

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf import noise
from tf_bandmf.files import private as private_files
from tf_bandmf.files.journal import Journal
from tf_bandmf.keras.run import admission
from tf_bandmf.keras.run import secrets as run_secrets
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.sampling.samplers import random_words

pytestmark = pytest.mark.invariant(10)

NUM_EXAMPLES, BATCH_SIZE, EPOCHS = 22, 6, 2


def make_plan(**changes):
    options = {"sampling": "balls-in-bins", "noise_multiplier": 20.0, **changes}
    return small_plan("bsr:3", NUM_EXAMPLES, BATCH_SIZE, EPOCHS, **options)


def make_model(plan):
    options = {"metrics": ["accuracy"], "jit_compile": False}
    return make_private_model(plan, keras.optimizers.SGD(1.0), **options)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Trains with callbacks that write files; returns the run's objects and paths."""
    admission.forget()
    shared = tmp_path_factory.mktemp("shared")
    private = tmp_path_factory.mktemp("private") / "run.private"
    plan = make_plan()
    model = make_model(plan)
    # The secrets are fixed, because random short numbers could occur in long texts by
    # chance.
    draws = np.random.default_rng(0)
    fixed = pytest.MonkeyPatch()
    fixed.setattr("secrets.token_bytes", draws.bytes)
    batches = plan.batches(*data)
    log = io.StringIO()
    handler = logging.StreamHandler(log)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        model.fit(
            batches,
            epochs=EPOCHS,
            verbose=2,
            private_state=private,
            callbacks=[
                backup_in(shared / "backup"),
                keras.callbacks.ModelCheckpoint(
                    str(shared / "models" / "{epoch}.keras")
                ),
                keras.callbacks.CSVLogger(str(shared / "log.csv")),
                keras.callbacks.TensorBoard(
                    str(shared / "board"),
                    histogram_freq=1,
                    write_graph=True,
                    update_freq="batch",
                ),
            ],
        )
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
        fixed.undo()
    (shared / "root.log").write_text(log.getvalue())
    schedule = model.optimizer.run.batches(plan.batches(*data))
    return model, schedule, shared, private


def export(model, folder):
    """Writes all files that users may share, except those that callbacks write."""
    plan = model.optimizer.plan
    write_model(model, folder)
    model.save(folder / "no_optimizer.keras", include_optimizer=False)
    (folder / "config.json").write_text(
        json.dumps([model.to_json(), model.get_compile_config()], default=str)
    )
    plan.save(str(folder / "plan.json"))
    statement = model.privacy_statement()
    (folder / "statement.md").write_text(f"{statement}{statement.to_markdown()}")
    plain = tf_bandmf.keras.to_plain(model)
    plain.save(folder / "plain.keras")


def dump_graphs(model, schedule, folder):
    """Writes the graphs of training and of the data pipeline, and the repr of objects."""
    programs = model._programs()
    compiled = [programs._facts, programs._clip, programs._noise]
    compiled += [programs._update, programs._measure]
    traced = [
        one for each in compiled for one in each.function._list_all_concrete_functions()
    ]
    assert len(traced) >= len(compiled)
    for place, program in enumerate(traced):
        name = f"step{place}.pb"
        tf.io.write_graph(program.graph, str(folder), name, as_text=False)
        tf.io.write_graph(program.graph, str(folder), f"{name}txt")
    pipeline = schedule.dataset()._as_serialized_graph().numpy()
    (folder / "pipeline.pb").write_bytes(pipeline)
    # The `repr` of an object may end up in a notebook that is shared.
    objects = [
        model,
        model.optimizer,
        model.optimizer.run.secrets,
        model.optimizer.run.secrets.key,
        model.optimizer.run.noising,
        model.optimizer.run.secrets.stored,
        model.optimizer.run.file,
        schedule,
        model.optimizer.variables,
        vars(model),
        vars(model.optimizer),
        vars(schedule),
    ]
    (folder / "reprs.txt").write_text("\n".join(map(repr, objects)))


def assert_no_secret(folder, forms):
    actual = {
        str(file.relative_to(folder)): names
        for file in files_below(folder)
        if (names := found_in(file.read_bytes(), forms))
    }
    assert not actual


@pytest.mark.attack(
    "Secrets by value in what a run writes",
    tried="Key, step keys, normals, kept vectors and sampler seed, in 40 encodings each, "
    "in models, checkpoints, backups, TensorBoard files, logs, graphs, pipelines"
    " and reprs.",
    area="secrets",
)
def test_no_secret_by_value_in_what_a_run_writes(finished, capfd, tmp_path):
    model, schedule, shared, private = finished
    forms = forms_of_run(model)
    assert len(forms) == 1 + 2 * model.optimizer.plan.num_steps + 2 + 1
    assert len(list(shared.rglob("*"))) > 5
    assert any(file.name.startswith("events") for file in files_below(shared))
    assert_no_secret(shared, forms)
    export(model, tmp_path)
    dump_graphs(model, schedule, tmp_path)
    assert len(files_below(tmp_path)) > 15
    assert_no_secret(tmp_path, forms)
    # As a control, the search finds the secrets in the private file.
    actual = set(found_in(private.read_bytes(), forms))
    assert actual == {"key", "kept vector 0", "kept vector 1"}


def shown_by(error):
    """Returns an error and the local variables that pytest and Sentry would show."""
    texts = []
    while error is not None:
        texts.append(str(error))
        for frame, _ in traceback.walk_tb(error.__traceback__):
            if "/tf_bandmf/" in frame.f_code.co_filename:
                texts += [_shown(value) for value in frame.f_locals.values()]
        error = error.__cause__ or error.__context__
    return "\n".join(texts)


def _shown(value):
    try:
        return repr(value)
    except Exception as error:
        return repr(error)


@pytest.mark.attack(
    "Secrets in errors with their local variables",
    tried="Prints 15 errors as error trackers do, with every local variable of the"
    " library.",
    area="secrets",
)
def test_no_error_shows_a_secret_even_with_local_variables(
    finished, tmp_path, monkeypatch
):
    model, schedule, _, private = finished
    plan, forms = model.optimizer.plan, forms_of_run(model)
    private_copy = tmp_path / "run.private"
    private_copy.write_bytes(private.read_bytes())
    private_copy.chmod(0o600)
    damaged = tmp_path / "damaged.private"
    content = bytearray(private.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    damaged.chmod(0o600)
    broken = tmp_path / "broken.private"
    Journal(broken).replace(Journal(private).read()[0][:-200])
    x, y = data

    def fit(plan=plan, path=private_copy):
        fresh = make_model(plan)
        fresh.fit(plan.batches(x, y), epochs=1, private_state=path, verbose=0)

    def other_weights():
        fresh = make_model(plan)
        fresh.set_weights([w + 1 for w in fresh.get_weights()])
        fresh.begin_run(plan.batches(x, y), private_copy)

    def past_the_end():
        other = make_model(make_plan(test_seed=1))
        other.optimizer.build(other.trainable_variables)
        other.optimizer.run.secrets.key = model.optimizer.run.secrets.key
        other.optimizer.run.noising.generator.checked_step(tf.constant(10**6))

    def no_place_left():
        with monkeypatch.context() as patch:
            patch.setattr(private_files.os, "fsync", lambda _: 1 // 0)
            model.save_weights(tmp_path / "no_place.weights.h5")

    def no_memory_left():
        key = model.optimizer.run.secrets.key
        with monkeypatch.context() as patch:
            patch.setattr(run_secrets.tf, "Variable", lambda *_, **__: 1 // 0)
            run_secrets.SecretState(model.optimizer.run.noising, key, plan)

    failures = {
        "another plan": lambda: fit(make_plan(l2_norm_clip=2.0)),
        "other weights": other_weights,
        "damaged": lambda: fit(path=damaged),
        "broken": lambda: fit(path=broken),
        "spent": lambda: model.fit(plan.batches(x, y), verbose=0),
        "step past the end": past_the_end,
        "no place left": no_place_left,
        "no memory left": no_memory_left,
        "pickle of the optimizer": lambda: pickle.dumps(model.optimizer),
        "copy of the state": lambda: copy.deepcopy(model.optimizer.run.secrets),
        "copy of the run": lambda: copy.copy(model.optimizer.run.file),
        "pickle of the schedule": lambda: pickle.dumps(schedule),
        "a seed that is too long": lambda: random_words(
            model.optimizer.run.secrets.key.sampler_seed() + b"1", 0, 1
        ),
        "a key that is too long": lambda: NoiseKey(
            model.optimizer.run.secrets.key.secret_bytes() + b"1"
        ),
        "a step of the schedule": lambda: schedule.example_indices(plan.num_steps),
    }
    shown = {}
    for name, fail in failures.items():
        with pytest.raises(Exception) as caught:
            fail()
        assert not isinstance(caught.value, (AttributeError, NameError)), name
        text = shown_by(caught.value)
        secrets = found_in(text.encode(), forms)
        if secrets:
            shown[name] = secrets
    assert not shown


def test_a_state_of_the_generator_does_not_show_itself():
    plan = make_plan()
    generator = noise.NoiseGenerator(plan.strategy, 10)
    state = generator.initial_state(NoiseKey.for_testing(0))
    assert repr(state) == str(state) == "NoiseState(<secret>)"
