"""A batch's fingerprint changes if its contents, plan, schedule or step change."""

import numpy as np
import pytest
import tensorflow as tf
from small_plans import schedule_for

import tf_bandmf
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.sampling.identity import FINGERPRINT, content_digest, with_fingerprint

M = 24
RNG = np.random.default_rng(0)
X = {
    "image": RNG.normal(size=(M, 4, 3)).astype(np.float32),
    "text": np.array([f"t{i}".encode() for i in range(M)]),
    "flags": RNG.random((M, 2)) > 0.5,
}
Y = RNG.integers(0, 5, M)
W = RNG.random(M).astype(np.float32)


SEED = NoiseKey.for_testing(0).sampler_seed()


def batches(padded=False, x=X, **arguments):
    participation = tf_bandmf.Poisson(M, 6)
    arguments = {"y": Y, "sample_weight": W, **arguments}
    return schedule_for(participation, 12, 7, x, padded=padded, **arguments).join(SEED)


def full(schedule):
    return next(b for b in schedule if 5 < b["y"].shape[0])


def flip_one_bit(tensor):
    bits = tf.bitcast(tensor, tf.int32)
    bits = tf.tensor_scatter_nd_add(bits, [[0, 1, 2]], [1])
    return tf.bitcast(bits, tf.float32)


def is_as_drawn(batch):
    """Returns whether a batch's fingerprint is the digest of its contents and ids."""
    digest = content_digest(batch)
    return digest == tf.cast(batch.get(FINGERPRINT, digest + 1), tf.int64)


def put(**changes):
    """Returns a function that replaces entries of a batch by results of `changes`."""
    return lambda b: {**b, **{name: change(b) for name, change in changes.items()}}


def inputs(name, change):
    return put(x=lambda b: {**b["x"], name: change(b["x"][name])})


def without(name):
    return lambda b: {key: value for key, value in b.items() if key != name}


EDITS = {
    "one bit": inputs("image", flip_one_bit),
    "all signs": inputs("image", lambda t: -t),
    "a text": inputs("text", lambda t: tf.concat([[b"?"], t[1:]], 0)),
    "a flag": inputs("flags", tf.math.logical_not),
    "targets": put(y=lambda b: tf.reverse(b["y"], [0])),
    "weights": put(sample_weight=lambda b: 2.0 * b["sample_weight"]),
    "no weights": without("sample_weight"),
    "dtype": put(y=lambda b: tf.cast(b["y"], tf.float64)),
    "bits of another dtype": put(y=lambda b: tf.bitcast(b["y"], tf.float64)),
    "shape": inputs("image", lambda t: tf.reshape(t, [-1, 3, 4])),
    "structure": put(x=lambda b: tuple(b["x"].values())),
    "step": put(step=lambda b: b["step"] + 1),
    "plan": put(plan_id=lambda b: b["plan_id"] + 1),
    "schedule": put(schedule_id=lambda b: b["schedule_id"] + 1),
    "part": put(part=lambda b: tf.constant([0, 2])),
    "no fingerprint": without(FINGERPRINT),
    "zero": put(**{FINGERPRINT: lambda b: tf.constant(0, tf.int64)}),
}


def rows(change):
    def edit(batch):
        content = ("x", "y", "sample_weight")
        return {
            name: tf.nest.map_structure(change, value) if name in content else value
            for name, value in batch.items()
        }

    return edit


EDITS["permuted"] = rows(lambda t: tf.reverse(t, [0]))
EDITS["rotated"] = rows(lambda t: tf.roll(t, 1, 0))
EDITS["repeated"] = rows(lambda t: tf.concat([t] * 4, 0))
EDITS["cut"] = rows(lambda t: t[1:])
EDITS["one row twice"] = rows(lambda t: tf.concat([t[:1], t[:1], t[2:]], 0))


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", EDITS)
@pytest.mark.invariant(20)
def test_every_edit_of_a_batch_shows(name, padded):
    batch = full(batches(padded))
    assert is_as_drawn(batch)
    for way in (EDITS[name], tf.function(EDITS[name], autograph=False)):
        assert not is_as_drawn(way(batch))
    verify = tf.function(is_as_drawn, autograph=False)
    assert verify(batch) and not verify(EDITS[name](batch))
    if name not in ("no fingerprint", "zero"):
        assert content_digest(batch) != content_digest(EDITS[name](batch))


@pytest.mark.invariant(20)
def test_ids_count_as_they_always_did():
    """The digest of a batch is a known value, on which keys of saved runs depend."""
    ids = {"plan_id": 77, "schedule_id": -5, "step": 3}
    content = {
        "x": np.arange(6, dtype=np.float32).reshape(3, 2),
        "y": np.arange(3),
        "num_examples": tf.constant(2),
        "part": tf.constant([0, 2]),
        **{name: tf.constant(value, tf.int64) for name, value in ids.items()},
    }
    assert int(content_digest(content)) == -713929003541524621


def test_every_batch_is_as_drawn_also_empty_and_as_numpy():
    schedule = schedule_for(tf_bandmf.Poisson(M, 1), 40, 7, X, Y).join(SEED)
    sizes = set()
    for batch, plain in zip(schedule, schedule.dataset().as_numpy_iterator()):
        assert is_as_drawn(batch) and is_as_drawn(plain)
        sizes.add(len(plain["y"]))
    assert 0 in sizes and len(sizes) > 2


@pytest.mark.invariant(18)
@pytest.mark.parametrize("shape", [(1, 0), (2, 0, 2)])
def test_texts_of_no_width_are_as_drawn(shape):
    """Empty string tensors have the same fingerprint each time.

    TensorFlow's hash of an empty tensor is uninitialized memory, so fingerprints must
    not depend on it.
    """
    content = {"x": tf.zeros(shape, tf.string), "step": 3}
    drawn = with_fingerprint(content)
    assert all(is_as_drawn(drawn) for _ in range(50))
    assert len({int(content_digest(content)) for _ in range(50)}) == 1
    assert not is_as_drawn({**drawn, "x": tf.zeros((*shape, 1), tf.string)})


@pytest.mark.slow_cases("False")
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.invariant(20)
def test_parts_have_fingerprints_of_their_own(padded):
    schedule = batches(padded)
    parts = list(schedule.dataset(0, [0, 1, 2], 3))
    assert len(parts) == 36
    for part in parts:
        assert is_as_drawn(part)
        assert not is_as_drawn({**part, "part": tf.constant([1, 2])})
    first, second, *_ = parts
    assert not is_as_drawn({**first, "part": second["part"]})
    # The concatenated parts of a batch equal the batch. Parts can also be read alone.
    for step, batch in enumerate(schedule.dataset()):
        of_step = [part["x"] for part in parts[3 * step : 3 * step + 3]]
        joined = tf.nest.map_structure(lambda *p: tf.concat(p, 0), *of_step)
        tf.nest.map_structure(np.testing.assert_array_equal, joined, batch["x"])
    part = next(iter(schedule.dataset(2, [2, 0], 3)))
    assert part["fingerprint"] == parts[8]["fingerprint"]
