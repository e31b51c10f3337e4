"""Trains a two-tower recommender with user-level privacy; it works for new users.

The user tower reads only the items in a user's history, so there is no table of user
embeddings. The item tower looks up an item's embedding in a table that both towers
share. The loss is a sampled softmax, which compares one of the user's items with random
items. The gradients of all training rows of a user are summed, and the sum is clipped.

    python examples/recommender.py                        # generated users; takes minutes
    python examples/recommender.py --movielens ml-25m     # a folder with MovieLens data

The program prints the table of docs/large-tables.md: the share of held-out users whose
hidden item is among the top ten of all items outside their history.
"""

from __future__ import annotations

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import functools
import math
import pathlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import click
import dp_accounting
import keras
import numpy as np
import rich.console
import rich.table
import tensorflow as tf

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf.accounting.gaussian import calibrate_noise_stddev

EPSILON, DELTA = 2.0, 1e-6
HISTORY, NEGATIVES, WIDTH = 20, 20, 16
ROWS_PER_USER, BATCH, EPOCHS = 2, 1000, 5
# The share of the privacy budget for the private selection of items, measured as squared
# mu of Gaussian DP, and the maximum number of items per user that the selection counts.
SELECTION_SHARE, MOST_COUNTED = 0.05, 10


class Way(NamedTuple):
    """A training method, which is a row of the printed table.

    Attributes:
      mechanism: the plan's mechanism; None to train without privacy.
      sampling: the plan's sampling; None to train without privacy.
      rate: the learning rate.
      selects: True if items are selected privately before training.
    """

    mechanism: str | None
    sampling: str | None
    rate: float
    selects: bool = False


WAYS = {
    "plain Keras": Way(None, None, 20.0),
    "DP-SGD, all items": Way("dp_sgd", "poisson", 40.0),
    "λ-CGD, all items": Way("lambda_cgd", "balls-in-bins", 40.0),
    "DP-SGD, frequent items": Way("dp_sgd", "poisson", 40.0, True),
    "λ-CGD, frequent items": Way("lambda_cgd", "balls-in-bins", 40.0, True),
    "DP-SGD, frequent items, in order": Way("dp_sgd", "fixed-order", 20.0, True),
    "λ-CGD, frequent items, in order": Way("lambda_cgd", "fixed-order", 40.0, True),
}


class Users(NamedTuple):
    """Users with their items, each of which has an id >= 1. The id 0 means "no item".

    Attributes:
      items: items of each user, [users, HISTORY + 1] int32, padded on the right.
      num_items: number of items in the public catalogue, whose ids are 1 to `num_items`.
    """

    items: np.ndarray
    num_items: int


def generated(num_users: int, num_items: int, seed: int) -> Users:
    """Generates users who have two of twelve tastes, and items with Zipf popularity.

    A user's items are sampled without replacement, with probabilities proportional to
    the item's popularity times `exp(3 cos(angle between taste and item))`.
    """
    rng = np.random.default_rng(seed)
    tastes = rng.normal(size=(12, 8))
    tastes /= np.linalg.norm(tastes, axis=1, keepdims=True)
    styles = tastes[rng.integers(0, 12, num_items)] + 0.3 * rng.normal(
        size=(num_items, 8)
    )
    styles /= np.linalg.norm(styles, axis=1, keepdims=True)
    popularity = -np.log(rng.permutation(num_items) + 10.0)
    counts = rng.integers(6, HISTORY + 2, num_users)
    items = np.zeros([num_users, HISTORY + 1], np.int32)
    for first in range(0, num_users, 1000):
        part = slice(first, min(first + 1000, num_users))
        size = part.stop - part.start
        taste = tastes[rng.integers(0, 12, (2, size))].sum(axis=0)
        taste /= np.linalg.norm(taste, axis=1, keepdims=True)
        score = popularity + 6.0 * np.float32(taste) @ np.float32(styles).T
        score += rng.gumbel(size=score.shape)
        best = np.argpartition(-score, HISTORY + 1, axis=1)[:, : HISTORY + 1]
        order = np.argsort(-np.take_along_axis(score, best, axis=1), axis=1)
        best = np.take_along_axis(best, order, axis=1) + 1
        best[np.arange(HISTORY + 1) >= counts[part, None]] = 0
        items[part] = best
    return Users(items, num_items)


def from_movielens(folder: pathlib.Path, seed: int) -> Users:
    """Reads users and their items from a MovieLens folder.

    A user's items are the movies that the user rated 4 or higher, newest rating first, at
    most HISTORY + 1 of them. Users with fewer than 6 such movies are left out. Ids are row
    numbers in `movies.csv`, which is public.

    Args:
      folder: folder with `movies.csv` and `ratings.csv`.
      seed: seed of the random order of the users, the last of whom are held out.
    """
    movies = np.loadtxt(
        folder / "movies.csv",
        str,
        delimiter=",",
        skiprows=1,
        usecols=0,
        quotechar='"',
        encoding="utf-8",
    ).astype(np.int64)
    ratings = np.loadtxt(folder / "ratings.csv", delimiter=",", skiprows=1)
    ratings = ratings[ratings[:, 2] >= 4.0]
    ratings = ratings[np.lexsort([-ratings[:, 3], ratings[:, 0]])]
    order = np.argsort(movies)
    ids = (
        1 + order[np.searchsorted(movies, ratings[:, 1].astype(np.int64), sorter=order)]
    )
    starts = np.flatnonzero(np.diff(ratings[:, 0], prepend=-1))
    lengths = np.diff(starts, append=len(ratings))
    starts, lengths = starts[lengths >= 6], lengths[lengths >= 6]
    places = np.arange(HISTORY + 1)
    items = ids[np.minimum(starts[:, None] + places, len(ids) - 1)]
    items[places >= lengths[:, None]] = 0
    order = np.random.default_rng(seed).permutation(len(items))
    return Users(items[order].astype(np.int32), len(movies))


class Rows(NamedTuple):
    """Training rows, each with a history of HISTORY items, a target item, and the user.

    A user without rows gets one row of weight 0. Therefore the number of users in the data
    does not depend on the users' items, and may be public.
    """

    history: np.ndarray
    item: np.ndarray
    weight: np.ndarray
    user: np.ndarray


def rows_of(users: Users, ids: np.ndarray) -> Rows:
    """Returns training rows, one for each item of each user.

    Items without a new id are omitted.

    Args:
      users: users with their items.
      ids: the new id of each item, or 0 if it has none, shape [num_items + 1].
    """
    items = ids[users.items]
    is_known = items > 0
    none = ~is_known.any(axis=1)
    is_known[none, 0] = True
    user, place = np.nonzero(is_known)
    others = np.arange(HISTORY + 1)[None] != place[:, None]
    history = items[user][others].reshape(-1, HISTORY)
    item = items[user, place]
    return Rows(history, np.maximum(item, 1), np.float32(~none[user]), user)


def frequent(users: Users, kept: int, noise: float) -> np.ndarray:
    """Selects the most frequent items privately, and gives them new ids.

    The method is DP-FEST (arXiv:2311.08357): Gaussian noise is added to item counts. At
    most `MOST_COUNTED` items per user are counted, each of them once, so a user changes
    the vector of counts by at most `sqrt(MOST_COUNTED)` in l2 norm.

    Args:
      users: the private users.
      kept: number of items to keep.
      noise: the noise multiplier.

    Returns:
      The new id of each item, or 0 if the item is not kept, shape [num_items + 1].
    """
    counted = users.items[:, :MOST_COUNTED].reshape(-1)
    counts = np.bincount(counted, minlength=users.num_items + 1)[1:]
    stddev = noise * np.sqrt(MOST_COUNTED)
    noisy = counts + stddev * np.random.default_rng().normal(size=users.num_items)
    ids = np.zeros([users.num_items + 1], np.int32)
    ids[1 + np.argsort(-noisy)[:kept]] = np.arange(1, kept + 1)
    return ids


def two_towers(num_items: int) -> keras.Model:
    """Builds a model that computes scores, [batch, candidates], for candidate items."""
    history = keras.Input((HISTORY,), dtype="int32", name="history")
    candidates = keras.Input((None,), dtype="int32", name="candidates")
    items = keras.layers.Embedding(
        num_items + 1,
        WIDTH,
        mask_zero=True,
        embeddings_initializer=keras.initializers.RandomNormal(stddev=0.1),
        name="items",
    )
    bag = keras.layers.GlobalAveragePooling1D()(items(history))
    user = keras.layers.Dense(
        WIDTH,
        kernel_initializer=keras.initializers.Identity(2.0),
        bias_initializer=keras.initializers.RandomNormal(stddev=0.3),
        name="user",
    )(bag)
    scores = keras.layers.Dot(axes=(1, 2))([user, items(candidates)])
    return keras.Model({"history": history, "candidates": candidates}, scores)


def with_negatives(num_items: int):
    """Returns a function that adds random items as candidates to a training row.

    The function is the argument `map` of `plan.batches`.
    """

    def candidates(x, y, seed):
        others = tf.random.stateless_uniform(
            [NEGATIVES], seed, 1, num_items + 1, dtype=tf.int32
        )
        x = {"history": x["history"], "candidates": tf.concat([y[None], others], 0)}
        return x, tf.zeros_like(y)

    return candidates


def scores_of(model: keras.Model, ids: np.ndarray, history: np.ndarray) -> np.ndarray:
    """Returns the scores of all items, [users, num_items + 1].

    The score of an item without a new id is -inf.
    """
    table = model.get_layer("items").embeddings.numpy()
    items = ids[history]
    is_there = (items > 0)[..., None]
    bags = (table[items] * is_there).sum(axis=1) / np.maximum(is_there.sum(axis=1), 1)
    kernel, bias = model.get_layer("user").get_weights()
    scores = (bags @ kernel + bias) @ table[ids].T
    scores[:, ids == 0] = -np.inf
    return scores


def by_frequency(counts: np.ndarray, history: np.ndarray) -> np.ndarray:
    """Returns item frequencies as scores, which are the same for all histories."""
    return np.tile(counts, [len(history), 1])


def hit_rate(scores_for: Callable[[np.ndarray], np.ndarray], held_out: Users) -> float:
    """Returns the share of users whose hidden last item is in the top ten.

    Args:
      scores_for: function that maps histories to the scores of all items.
      held_out: users who were not used in training.
    """
    lengths = (held_out.items > 0).sum(axis=1)
    every = np.arange(len(lengths))
    hidden = held_out.items[every, lengths - 1]
    history = held_out.items.copy()
    history[every, lengths - 1] = 0
    scores = scores_for(history[:, :HISTORY])
    np.put_along_axis(scores, history, -np.inf, axis=1)
    scores[:, 0] = -np.inf
    targets = scores[every, hidden]
    rank = (scores > targets[:, None]).sum(axis=1)
    return float(np.mean(np.isfinite(targets) & (rank < 10)))


def plans(way: Way, num_users: int) -> tuple[tf_bandmf.Plan, list[Any]]:
    """Returns the plan of a training method, and the list of all its releases.

    Together, the releases cost at most `EPSILON`.

    If items are selected before training, the selection is a Gaussian mechanism with a
    share of the budget, and the plan gets the rest of the budget. This rest is found by
    bisection on the joint guarantee of selection and training.
    """

    def plan(epsilon: float) -> tf_bandmf.Plan:
        return tf_bandmf.plan(
            way.mechanism,
            epsilon=epsilon,
            delta=DELTA,
            num_examples=num_users,
            batch_size=min(BATCH, num_users // 10),
            epochs=EPOCHS,
            sampling=way.sampling,
            unit="one user",
            l2_norm_clip=0.3,
        )

    if not way.selects:
        result = plan(EPSILON)
        return result, [result]
    stddev = calibrate_noise_stddev(EPSILON, DELTA) / math.sqrt(SELECTION_SHARE)
    selection = tf_bandmf.Release(
        "noisy counts of items", event=dp_accounting.GaussianDpEvent(stddev)
    )
    low, high = 0.5 * EPSILON, EPSILON
    for _ in range(6):
        middle = (low + high) / 2
        joint = tf_bandmf.compose([selection, plan(middle)]).epsilon(DELTA)
        low, high = (middle, high) if joint <= EPSILON else (low, middle)
    result = plan(low)
    return result, [selection, result]


def trained(
    way: Way, users: Users, seed: int, kept: int
) -> tuple[keras.Model, np.ndarray, str]:
    """Trains a model with one method.

    Returns:
      The model, the new ids of the items, and a statement that covers all releases.
    """
    keras.utils.set_random_seed(seed)
    ids = np.arange(users.num_items + 1, dtype=np.int32)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if way.mechanism is None:
        rows = rows_of(users, ids)
        model = two_towers(users.num_items)
        model.compile(keras.optimizers.SGD(way.rate), loss, jit_compile=False)
        count, most = BATCH * ROWS_PER_USER, users.num_items + 1

        def with_others(x, y):
            shape = [tf.shape(y)[0], NEGATIVES]
            others = tf.random.uniform(shape, 1, most, tf.int32)
            candidates = tf.concat([y[:, None], others], axis=1)
            return {**x, "candidates": candidates}, tf.zeros_like(y)

        order = np.random.default_rng(seed).permutation(len(rows.item))
        data = tf.data.Dataset.from_tensor_slices(
            ({"history": rows.history[order]}, rows.item[order])
        )
        data = data.batch(count).map(with_others).repeat()
        steps = -(-len(rows.item) // count)
        model.fit(data, epochs=4, steps_per_epoch=steps, verbose=0)
        return model, ids, ""
    plan, released = plans(way, len(users.items))
    if way.selects:
        ids = frequent(users, kept, released[0].event.noise_multiplier)
    rows, num_items = rows_of(users, ids), int(ids.max())
    model = tf_bandmf.keras.make_private(two_towers(num_items), tables="lazy")
    # Each training method is a separate run. If several models were released, the privacy
    # losses of their runs would add up, and `tf_bandmf.compose` would give the guarantee.
    private = tf_bandmf.keras.PrivateOptimizer(
        keras.optimizers.SGD(way.rate), plan, additional_run=True
    )
    model.compile(private, loss)
    batches = plan.batches(
        {"history": rows.history},
        rows.item,
        rows.weight,
        map=with_negatives(num_items),
        users=rows.user,
        rows_per_user=ROWS_PER_USER,
    )
    model.fit(batches, epochs=EPOCHS, verbose=0)
    return model, ids, str(tf_bandmf.compose(released).statement())


@click.command()
@click.option("--users", default=20_000, show_default=True)
@click.option("--items", default=5_000, show_default=True)
@click.option(
    "--kept", default=300, show_default=True, help="items with a row, if chosen"
)
@click.option("--seeds", default=3, show_default=True, help="how many runs of each")
@click.option("--movielens", type=click.Path(exists=True, path_type=pathlib.Path))
@click.option("--only", multiple=True, type=click.Choice(list(WAYS)))
def main(
    users: int,
    items: int,
    kept: int,
    seeds: int,
    movielens: pathlib.Path | None,
    only: tuple[str, ...],
) -> None:
    """Trains models with all methods, and prints a table of the results."""
    table = rich.table.Table(title=f"ε = {EPSILON:g}, δ = {DELTA:g}, {seeds} seeds")
    for heading in ("way", "hit rate at 10", "seconds"):
        table.add_column(heading)
    chosen = {name: WAYS[name] for name in only or WAYS}
    rates: dict[str, list[tuple[float, float]]] = {"by frequency alone": []}
    statement = ""
    for seed in range(seeds):
        if movielens is None:
            everybody = generated(users + users // 10, items, seed)
        else:
            everybody = from_movielens(movielens, seed)
        split = len(everybody.items) * 10 // 11
        training, held_out = (
            Users(part, everybody.num_items)
            for part in (everybody.items[:split], everybody.items[split:])
        )
        counts = np.bincount(
            training.items.reshape(-1), minlength=training.num_items + 1
        ).astype(np.float32)
        hits = hit_rate(functools.partial(by_frequency, counts), held_out)
        rates["by frequency alone"].append((hits, 0.0))
        for name, way in chosen.items():
            start = time.perf_counter()
            model, ids, said = trained(way, training, seed, kept)
            hits = hit_rate(functools.partial(scores_of, model, ids), held_out)
            rates.setdefault(name, []).append((hits, time.perf_counter() - start))
            statement = said or statement
            print(f"seed {seed}, {name}: {hits:.3f}", flush=True)
    for name, results in rates.items():
        hits, seconds = np.transpose(results)
        error = np.std(hits, ddof=1) / np.sqrt(seeds) if seeds > 1 else np.nan
        table.add_row(name, f"{hits.mean():.3f} ± {error:.3f}", f"{seconds.mean():.0f}")
    rich.console.Console(width=80).print(table)
    print(statement)


if __name__ == "__main__":
    main()
