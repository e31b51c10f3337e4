"""`examples/recommender.py`: rows of users, private choice of items, and a small run."""

import importlib.util
import pathlib

import click.testing
import keras
import numpy as np
import pytest

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf.keras import clipping

EXAMPLE = pathlib.Path(__file__).resolve().parents[3] / "examples/recommender.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("recommender", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_row_has_the_history_without_its_item_and_users_keep_their_number(example):
    users = example.generated(50, 40, seed=0)
    ids = np.zeros(41, np.int32)
    ids[1:6] = np.arange(1, 6)
    rows = example.rows_of(users, ids)
    np.testing.assert_array_equal(np.unique(rows.user), np.arange(50))
    known = rows.weight > 0
    assert 0 < known.sum() < len(known)
    assert not (rows.history == rows.item[:, None])[known].any()
    assert rows.history[~known].max() == 0
    wanted = np.minimum((users.items > 0) & (users.items < 6), 1).sum()
    assert known.sum() == wanted


def test_frequent_items_keep_a_row(example):
    users = example.generated(300, 40, seed=0)
    ids = example.frequent(users, 10, noise=1e-9)
    counts = np.bincount(users.items[:, : example.MOST_COUNTED].ravel(), minlength=41)
    assert sorted(ids[ids > 0]) == list(range(1, 11))
    assert counts[1:][ids[1:] > 0].min() >= counts[1:][ids[1:] == 0].max()


def test_selection_and_training_cost_the_budget_together(example):
    way = example.WAYS["λ-CGD, frequent items, in order"]
    plan, released = example.plans(way, 2000)
    joint = tf_bandmf.compose(released).epsilon(example.DELTA)
    assert plan.epsilon < example.EPSILON
    assert 0.9 * example.EPSILON < joint <= example.EPSILON
    assert released[1] is plan and plan.unit == "one user"


def test_what_is_hidden_is_looked_for_among_what_a_user_does_not_have(example):
    items = np.zeros([2, example.HISTORY + 1], np.int32)
    items[:, :3] = [[1, 2, 3], [4, 5, 6]]
    held_out = example.Users(items, 30)
    counts = np.zeros(31)
    counts[[1, 2, 3]] = 9.0
    # Of the second user's, ten others come first.
    counts[10:20] = 5.0
    rate = example.hit_rate(lambda history: np.tile(counts, [2, 1]), held_out)
    assert rate == 0.5


def test_the_self_check_takes_examples_that_cancel_but_for_rounding(example):
    # As those that are made up for ids: of two items, of which each likes another one.
    keras.utils.set_random_seed(1)
    model = tf_bandmf.keras.make_private(example.two_towers(300))
    rng = np.random.default_rng(3)
    history = rng.integers(0, 2, (2, example.HISTORY)).astype("int32")
    others = rng.integers(0, 2, (2, example.NEGATIVES + 1)).astype("int32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(), loss)
    x = {"history": history, "candidates": others}
    clipping.self_check(model, x, np.array([0, 1], "int32"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_it_runs(example):
    arguments = "--users 300 --items 60 --kept 20 --seeds 1".split()
    for name in ("plain Keras", "λ-CGD, frequent items, in order"):
        arguments += ["--only", name]
    done = click.testing.CliRunner().invoke(example.main, arguments)
    assert done.exit_code == 0, done.output
    assert "noisy counts of items" in done.output
    assert "One user" in done.output
