"""A run with damaged files either continues identically or is refused."""

import random
import shutil

import keras
import numpy as np
import pytest
from killed_runs import make_model, make_plan
from small_models import Crash, CrashAfter, backup_in, data

from tf_bandmf.files.journal import Journal
from tf_bandmf.keras.model import preparation
from tf_bandmf.keras.model.callbacks import restore_backup
from tf_bandmf.keras.run import admission

STEPS = 5
ENTRY = 32


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """Interrupts a run after STEPS steps; returns its plan and its folder."""
    # Other tests' runs on this data are forgotten.
    admission.forget()
    plan, folder = make_plan(), tmp_path_factory.mktemp("interrupted")
    with pytest.raises(Crash):
        make_model(plan).fit(
            plan.batches(*data),
            epochs=3,
            verbose=0,
            private_state=folder / "run.private",
            callbacks=[backup_in(folder / "backup"), CrashAfter(STEPS)],
        )
    admission.forget()
    return plan, folder


def begun(plan, folder):
    """Resumes the run in a folder; returns the model and the run's batches."""
    admission.forget()
    model = make_model(plan)
    preparation.build(model, plan.batches(*data))
    restore_backup(model, [backup_in(folder / "backup")])
    return model, model.begin_run(plan.batches(*data), folder / "run.private")


def resumed(plan, folder):
    """Resumes a run; returns all state that determines its remaining steps."""
    model, _ = begun(plan, folder)
    state = model.optimizer.run.secrets
    return [
        state.step,
        len(state.points()),
        model.optimizer.run.schedule_id,
        state.key.secret_bytes(),
        *(array.tobytes() for array in (state.points(), state.buffer)),
        *(
            keras.ops.convert_to_numpy(variable).tobytes()
            for variable in [*model.variables, *model.optimizer.variables]
        ),
    ]


def regions(size, count, rng):
    """Returns a random position in each of `count` equal parts of a file."""
    borders = np.linspace(0, size, count + 1).astype(int)
    return [rng.randrange(a, max(a + 1, b)) for a, b in zip(borders, borders[1:])]


def damages(content, count, rng):
    """Yields copies of a file with flipped bits, missing ends or overwritten parts."""
    for place in regions(len(content), count, rng):
        flipped = bytearray(content)
        flipped[place] ^= 1 << rng.randrange(8)
        yield f"bit at {place}", bytes(flipped)
    for place in [0, *regions(len(content), max(1, count // 4), rng)]:
        yield f"cut at {place}", content[:place]
        zeros = bytes(min(64, len(content) - place))
        yield f"zeros at {place}", content[:place] + zeros + content[place + 64 :]


@pytest.mark.slow
@pytest.mark.attack(
    "Damaged files of a run",
    tried="Bits are flipped, truncated or overwritten in every region of the private"
    " file and of the backup: the run is refused or continues identically.",
    area="faults",
)
@pytest.mark.parametrize("count", [20, pytest.param(120, marks=pytest.mark.slow)])
@pytest.mark.invariant(11)
def test_a_damaged_file_is_refused_or_does_not_matter(count, interrupted, tmp_path):
    plan, whole = interrupted
    expected = resumed(plan, whole)
    assert expected[0] == STEPS
    endings = {}
    for name in ("run.private", "backup/latest.weights.h5"):
        content, refused = (whole / name).read_bytes(), 0
        tried = list(damages(content, count, random.Random(count)))
        for number, (what, damaged) in enumerate(tried):
            folder = tmp_path / f"{name.replace('/', '-')}-{number}"
            shutil.copytree(whole, folder)
            (folder / name).write_bytes(damaged)
            try:
                actual = resumed(plan, folder)
            except ValueError as error:
                refusals = ("is damaged", "does not record these weights")
                assert any(text in str(error) for text in refusals), (what, error)
                assert str(folder) in str(error)
                refused += 1
            else:
                assert actual == expected, f"{name}: {what}"
            shutil.rmtree(folder)
        endings[name] = (refused, len(tried))
    # A damaged private file is always refused. Some damage to the backup has no effect,
    # so a damaged backup is not always refused.
    refused, tried = endings["run.private"]
    assert refused == tried
    refused, tried = endings["backup/latest.weights.h5"]
    assert 0.2 * tried < refused


@pytest.mark.invariant(11)
def test_lost_steps_are_known_or_the_file_is_refused(interrupted, tmp_path):
    plan, whole = interrupted
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "run.private"
    model, batches = begun(plan, tmp_path)
    for batch in batches.dataset(STEPS).take(2):
        model.train_on_batch(batch)
    content = path.read_bytes()
    begin = len(content) - 2 * ENTRY
    for cut in (0, 1, ENTRY - 1, ENTRY, 2 * ENTRY - 1, 2 * ENTRY):
        path.write_bytes(content[: begin + cut])
        assert resumed(plan, tmp_path)[:2] == [STEPS, STEPS + cut // ENTRY]
    for place in range(begin, len(content), 5):
        damaged = bytearray(content)
        damaged[place] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="is damaged"):
            Journal(str(path)).read()
    with pytest.raises(ValueError, match="is damaged"):
        resumed(plan, tmp_path)


def test_what_the_backup_says_of_epochs_is_not_trusted(interrupted, tmp_path):
    plan, whole = interrupted
    expected = resumed(plan, whole)
    for text in ("", "{", '{"epoch": 2, "batch": 0}', '{"epoch": -1}', "\x00"):
        folder = tmp_path / "run"
        shutil.copytree(whole, folder)
        (folder / "backup" / "training_metadata.json").write_text(text)
        assert resumed(plan, folder) == expected
        shutil.rmtree(folder)


def test_without_its_backup_the_run_begins_again_with_its_own_noise(
    interrupted, tmp_path
):
    plan, whole = interrupted
    shutil.copy2(whole / "run.private", tmp_path)
    actual, expected = resumed(plan, tmp_path), resumed(plan, whole)
    assert actual[0] == 0
    assert actual[3] == expected[3]


def test_what_a_kill_left_of_the_private_file_is_removed(interrupted, tmp_path):
    plan, whole = interrupted
    folder = tmp_path / "run"
    shutil.copytree(whole, folder)
    (folder / ".unfinished-run.private").write_bytes(b"half of it")
    (folder / ".unfinished-other.private").write_bytes(b"of another run")
    resumed(plan, folder)
    left = {path.name for path in folder.iterdir()}
    assert ".unfinished-run.private" not in left
    assert ".unfinished-other.private" in left
