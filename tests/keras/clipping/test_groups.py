"""Group-wise clipping, beside gradients that are taken and clipped one by one."""

import math

import keras
import numpy as np
import pytest
from clipping_reference import (
    assert_sums_close,
    example_gradients,
    group_sums,
    traced,
)

import tf_bandmf
from tf_bandmf.keras.clipping.sums.settings import Clipping

CLIP = 0.3
SHARES = {"kernel": 3.0, "embed": 1.0, ".*": 2.0}

LAYERS = Clipping(groups="layers")


class Weight:
    def __init__(self, path):
        self.path = path


def model():
    keras.utils.set_random_seed(0)
    built = keras.Sequential(
        [
            keras.Input((6,), dtype="int32"),
            keras.layers.Embedding(9, 5, name="embed"),
            keras.layers.GRU(4, name="gru"),
            keras.layers.Dense(3, name="dense"),
        ]
    )
    built.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return built


def data(seed=0, count=6):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 9, (count, 6)).astype("i4"), rng.integers(0, 3, count)


@pytest.mark.parametrize("kind", ["flat", "automatic"])
@pytest.mark.parametrize("groups", ["layers", SHARES])
@pytest.mark.slow_cases("groups1-flat", "layers-automatic", "layers-flat")
def test_each_group_is_clipped_to_its_own_norm(groups, kind):
    built = model()
    x, y = data()
    _, gradients = example_gradients(built, x, y)
    clipping = Clipping(kind, groups)
    actual = traced(built, x, y, clip=CLIP, clipping=clipping)
    members, clips = Clipping(groups=groups).grouping(built.trainable_variables, CLIP)
    assert len(clips) == 3
    assert_sums_close(
        actual.sums, group_sums(gradients, members, clips, clipping.automatic)
    )


@pytest.mark.parametrize("microbatch_size", [None, 2])
@pytest.mark.slow_cases("2")
@pytest.mark.invariant(17)
def test_one_contribution_has_at_most_the_plan_s_norm(microbatch_size):
    built = model()
    x, y = data(count=1)
    for clip in (1e-3, 0.1):
        sums = traced(
            built, x, y, clip=clip, clipping=LAYERS, microbatch_size=microbatch_size
        ).sums
        norm = math.sqrt(sum(float(np.sum(np.square(s, dtype="f8"))) for s in sums))
        assert 0.99 * clip < norm <= clip


@pytest.mark.invariant(5)
def test_an_example_that_is_not_finite_counts_in_no_group():
    built = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(2), keras.layers.Dense(1)]
    )
    built.compile(loss="mse")
    x = np.array([[1.0, 2.0], [np.inf, 0.0]], "f4")
    y = np.ones((2, 1), "f4")
    both = traced(built, x, y, clip=CLIP, clipping=LAYERS)
    alone = traced(built, x[:1], y[:1], clip=CLIP, clipping=LAYERS)
    for a, b in zip(both.sums, alone.sums, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_squares_of_the_clip_norms_add_up():
    weights = [Weight(p) for p in ("a/kernel", "a/bias", "embed/table", "b/kernel")]
    members, clips = Clipping(groups=SHARES).grouping(weights, 2.0)
    assert members == (0, 1, 2, 0)
    np.testing.assert_allclose(clips, 2.0 * np.array([3, 2, 1]) / math.sqrt(14))
    assert math.hypot(*clips) <= 2.0
    members, clips = Clipping(groups="layers").grouping(weights, 1.0)
    assert members == (0, 0, 1, 2)
    np.testing.assert_allclose(clips, np.full(3, 1 / math.sqrt(3)))
    assert Clipping(groups=None).grouping(weights, 1.0) == ((0, 0, 0, 0), (1.0,))


def test_groups_without_weights_get_nothing():
    _, clips = Clipping(groups={"nothing": 5, ".*": 1}).grouping(
        [Weight("a/kernel")], 1.0
    )
    np.testing.assert_allclose(clips, [1.0])


@pytest.mark.parametrize(
    "groups", ["layer", {}, {"(": 1}, {"a": 0}, {"a": math.nan}, {"a": True}, 3]
)
def test_what_is_no_grouping_is_refused(groups):
    with pytest.raises(ValueError, match="groups"):
        Clipping(groups=groups)


def test_a_weight_without_a_group_is_refused_when_the_run_begins():
    plan = tf_bandmf.plan(
        "identity",
        noise_multiplier=1.0,
        delta=1e-5,
        num_examples=8,
        batch_size=4,
        epochs=1,
    )
    optimizer = tf_bandmf.keras.PrivateOptimizer(
        "sgd", plan, clipping=Clipping(groups={"embed": 1})
    )
    with pytest.raises(ValueError, match="gru/gru_cell/kernel' is in no group"):
        optimizer.build(model().trainable_variables)


@pytest.mark.parametrize("gamma", [0.0, -1.0, math.inf, True])
def test_automatic_clipping_needs_a_positive_gamma(gamma):
    with pytest.raises(ValueError, match="gamma"):
        Clipping("automatic", gamma=gamma)
