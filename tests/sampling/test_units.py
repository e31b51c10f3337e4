"""If users are the privacy units, each step samples users and limits their rows."""

import numpy as np
import pytest
from small_plans import small_plan

USERS = np.array(list("dacabbbbbbcda"))


def make_plan(num_users=4, sampling=None, **changes):
    options = {"epochs": 8, "test_seed": 0, "unit": "one user", **changes}
    return small_plan("identity", num_users, 2, sampling=sampling, **options)


def batches(most=2, plan=None, **changes):
    rows = np.arange(len(USERS))
    schedule = (plan or make_plan()).batches(
        rows, users=USERS, rows_per_user=most, **changes
    )
    return list(schedule.dataset().as_numpy_iterator())


@pytest.mark.slow_cases("poisson")
@pytest.mark.parametrize("sampling", ["fixed-order", "poisson", "balls-in-bins"])
@pytest.mark.invariant(2)
def test_steps_draw_users_and_cap_their_rows(sampling):
    plan = make_plan(sampling=sampling)
    schedule = plan.batches(np.arange(len(USERS)), users=USERS, rows_per_user=2)
    for step, batch in enumerate(schedule.dataset().as_numpy_iterator()):
        drawn = np.unique(USERS)[schedule.example_indices(step)]
        assert batch["x"].shape == (len(drawn), 2)
        for user, rows, present in zip(drawn, batch["x"], batch["rows"], strict=True):
            of_user = np.flatnonzero(USERS == user)
            chosen = rows[present]
            assert set(chosen) <= set(of_user)
            assert len(set(chosen)) == len(chosen) == min(2, len(of_user))
            assert set(rows) <= set(of_user)


def test_rows_beyond_the_cap_take_turns_at_random():
    seen = [
        tuple(rows[present])
        for batch in batches()
        for rows, present in zip(batch["x"], batch["rows"], strict=True)
        if USERS[rows[0]] == "b"
    ]
    # There are 15 possible pairs of rows. Eight random pairs would all be equal with a
    # probability of 15^-7.
    assert len(set(seen)) > 1


def test_padded_batches_have_units_without_rows():
    plan = make_plan(sampling="poisson")
    size = plan.batches(np.arange(13), users=USERS, rows_per_user=2).padded_batch_size
    for batch in batches(plan=plan, padded=True):
        assert batch["rows"].shape == (size, 2)
        there = batch["rows"].any(axis=1)
        assert there.sum() == batch["num_examples"]
        assert "sample_weight" not in batch


def test_wrong_arguments_are_refused():
    rows = np.arange(len(USERS))
    with pytest.raises(ValueError, match="unit='one user'"):
        make_plan(unit="one training example").batches(
            rows, users=USERS, rows_per_user=2
        )
    with pytest.raises(ValueError, match="5 examples, but the data set has 4"):
        make_plan(5).batches(rows, users=USERS, rows_per_user=2)
    # Without `users`, which names the user of each row, rows count as examples.
    with pytest.raises(ValueError, match="must have 4 rows"):
        make_plan().batches(rows)
