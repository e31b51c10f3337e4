"""The write-ahead record: what it takes, refuses and reads again."""

import os

import pytest

from tf_bandmf_federated import Ledger, RoundRecord

RUN = {"plan": "p", "num_parameters": 4}
START = dict(key_id=9, cohort=("a", "b"), cohort_digest="c", state_digest="s")


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "ledger.jsonl")


def rounds_of(path):
    with Ledger(path, RUN) as ledger:
        return ledger.rounds


def test_every_entry_is_read_again(path):
    with Ledger(path, RUN) as ledger:
        ledger.started(0, **START)
        ledger.result(0, "r")
        ledger.releasing(0, "m")
        ledger.released(0)
        ledger.started(1, **START)
        ledger.started(1, **START)
        ledger.skipped(1, "another cohort")
        ledger.releasing(1, "m")
        ledger.started(2, **START)
        written = ledger.rounds
    assert rounds_of(path) == written
    assert written == {
        0: RoundRecord(
            0, **START, result_digest="r", release_digest="m", is_released=True
        ),
        1: RoundRecord(
            1,
            **START,
            release_digest="m",
            skipped_because="another cohort",
            starts=2,
        ),
        2: RoundRecord(2, **START),
    }
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_the_first_state_is_known_and_fixed_when_a_round_begins(path):
    with Ledger(path, RUN) as ledger:
        assert ledger.initial_digest is None
        ledger.initial("of a state that was never saved")
        ledger.initial("s")
        ledger.started(0, **START)
        with pytest.raises(ValueError, match="has its first state"):
            ledger.initial("another")
    with Ledger(path, RUN) as ledger:
        assert ledger.initial_digest == "s"


def test_an_entry_is_in_the_file_when_the_call_returns(path):
    with Ledger(path, RUN) as ledger:
        for size, act in enumerate(
            (
                lambda: ledger.started(0, **START),
                lambda: ledger.result(0, "r"),
                lambda: ledger.released(0),
            ),
            start=2,
        ):
            act()
            with open(path, "rb") as file:
                assert file.read().count(b"\n") == size


@pytest.mark.parametrize(
    "change", [dict(key_id=8), dict(cohort=("a",)), dict(state_digest="t")]
)
def test_a_round_begun_for_others_is_refused_and_not_written(path, change):
    with Ledger(path, RUN) as ledger:
        ledger.started(0, **START)
        with pytest.raises(ValueError, match="must not be used for this one"):
            ledger.started(0, **{**START, **change})
    assert rounds_of(path) == {0: RoundRecord(0, **START)}


def test_another_result_of_a_round_is_refused(path):
    with Ledger(path, RUN) as ledger:
        ledger.started(0, **START)
        ledger.result(0, "r")
        ledger.result(0, "r")
        with pytest.raises(ValueError, match="another result"):
            ledger.result(0, "other")


def test_another_model_after_a_round_is_refused(path):
    with Ledger(path, RUN) as ledger:
        ledger.started(0, **START)
        with pytest.raises(ValueError, match="no result to release"):
            ledger.releasing(0, "m")
        ledger.result(0, "r")
        for _ in range(2):
            ledger.releasing(0, "m")
        ledger.skipped(0, "lost")
        with pytest.raises(ValueError, match="Another model was released"):
            ledger.releasing(0, "other")
        ledger.released(0)
    assert rounds_of(path)[0].is_released


def test_entries_in_a_wrong_order_are_refused(path):
    with Ledger(path, RUN) as ledger:
        for act in (ledger.released, lambda t: ledger.result(t, "r")):
            with pytest.raises(ValueError, match="not begun"):
                act(0)
        with pytest.raises(ValueError, match="not begun"):
            ledger.skipped(0, "reason")
        with pytest.raises(ValueError, match="Round 0 is the next"):
            ledger.started(1, **START)
        ledger.started(0, **START)
        with pytest.raises(ValueError, match="no result"):
            ledger.released(0)
        ledger.skipped(0, "reason")
        with pytest.raises(ValueError, match="skipped"):
            ledger.started(0, **START)
        with pytest.raises(ValueError, match="skipped"):
            ledger.result(0, "r")


def test_a_line_that_a_crash_cut_is_dropped(path):
    with Ledger(path, RUN) as ledger:
        ledger.started(0, **START)
        ledger.result(0, "r")
    with open(path, "rb") as file:
        whole = file.read()
    begin_of_last = whole[:-1].rindex(b"\n") + 1
    for length in range(begin_of_last, len(whole)):
        with open(path, "wb") as file:
            file.write(whole[:length])
        assert rounds_of(path) == {0: RoundRecord(0, **START)}
    # And what is written next follows the last whole line.
    with Ledger(path, RUN) as ledger:
        ledger.result(0, "r")
    with open(path, "rb") as file:
        assert file.read() == whole


def test_a_changed_removed_or_moved_line_is_seen(path):
    with Ledger(path, RUN) as ledger:
        ledger.started(0, **START)
        ledger.result(0, "r")
        ledger.released(0)
    with open(path, "rb") as file:
        lines = file.read().split(b"\n")
    for damaged in (
        lines[:2] + [lines[2].replace(b'"r"', b'"q"')] + lines[3:],
        lines[:2] + lines[3:],
        [lines[0], lines[2], lines[1], *lines[3:]],
        [lines[0], b"no JSON", *lines[2:]],
        [lines[0], b"[1]", *lines[2:]],
    ):
        with open(path, "wb") as file:
            file.write(b"\n".join(damaged))
        with pytest.raises(ValueError, match="damaged or was changed"):
            Ledger(path, RUN)


def test_another_run_a_second_program_and_open_files_are_refused(path):
    with Ledger(path, RUN):
        with pytest.raises(BlockingIOError, match="Another program"):
            Ledger(path, RUN)
    with pytest.raises(ValueError, match="another run: plan was 'p' and is 'q'"):
        Ledger(path, {**RUN, "plan": "q"})
    os.chmod(path, 0o644)
    with pytest.raises(PermissionError, match="chmod 600"):
        Ledger(path, RUN)
