"""Tests that no clipped contribution exceeds the clip norm despite rounding errors."""

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from tf_bandmf.keras.clipping.factors import base, norms, tables
from tf_bandmf.keras.clipping.sums.settings import Clip

pytestmark = pytest.mark.invariant(17)

# The documented bound on the relative rounding error of a clipped contribution.
TOLERANCE = 1e-3
CLIP = 0.5


def norms_of(measured):
    return norms.all_norms([measured.norms])[0]


def contribution(factor, clip=CLIP):
    """Computes the clipped sum of a batch, and the clipping weight of each example."""
    measured = factor.measure()
    bounds = norms_of(measured).bounds
    finite = tf.math.is_finite(bounds)
    settings = Clip((0,), (clip,), False, 1.0)
    weights = settings.weights(bounds[None], settings.allowed(None), None)[0]
    weights = tf.where(finite, weights, 0.0)[:, None]
    tensors = base.cleaned(finite, measured.tensors)
    return tf.convert_to_tensor(measured.weighted_sum(weights, *tensors)), weights


def product(left, right):
    return base.Product(left, right, (left.shape[-1], right.shape[-1]))


def two_calls(left, right):
    first = product(left[:, :1], right[:, :1])
    return base.add_factors([first, product(left[:, 1:], right[:, 1:])])


def formed(left, right):
    return base.Instantiated(tf.einsum("bti,bto->bio", left, right))


def rows_of(ids):
    def make(left, right):
        del left
        count = right.shape[1]
        table = tf.constant([[ids(t) for t in range(count)]])
        return tables.Rows(table, right, 3)

    return make


# Each case is a function that builds a factorized gradient, followed by the gradient's
# number of terms, number of inputs and number of outputs. Norms of gradients with more
# than 40,000 parameters are computed from inner products.
KINDS = {
    "one outer product": (lambda x, g: product(x[:, 0], g[:, 0]), 1, 40, 30),
    "formed": (product, 4, 20, 30),
    "inner products": (product, 6, 201, 211),
    "unknown number of terms": (product, 6, 201, 211),
    "unknown number of long terms": (product, 6, 1100, 211),
    "many terms": (product, 1024, 201, 211),
    "wide": (product, 2, 11, 4001),
    "two calls": (two_calls, 2, 256, 256),
    "kept": (formed, 4, 7, 37),
    "a prime number": (formed, 4, 1, 1009),
    "different rows": (rows_of(lambda t: t), 3, 1, 50),
    "repeated rows": (rows_of(lambda t: t % 2), 8, 1, 50),
    "many repeats": (rows_of(lambda t: t % 3), 300, 1, 9),
}
_COMPILED = {}


def compiled(name, dtype, xla):
    key = name, dtype, xla
    if key not in _COMPILED:
        make, count, *sizes = KINDS[name]
        count = None if name.startswith("unknown") else count
        signature = [tf.TensorSpec([1, count, size]) for size in sizes]

        @tf.function(autograph=False, jit_compile=xla, input_signature=signature)
        def run(left, right):
            return contribution(make(tf.cast(left, dtype), tf.cast(right, dtype)))

        _COMPILED[key] = run
    return _COMPILED[key]


def terms(rng, count, size, form, nearness):
    """Returns `count` random vectors, unrelated or almost equal up to their signs."""
    if form == "unrelated":
        return rng.normal(size=(count, size))
    base = np.ones((1, size)) if form == "ties" else rng.normal(size=(1, size))
    signs = np.where(np.arange(count)[:, None] % 2, -1.0, 1.0)
    if form in ("alike", "ties"):
        signs = np.ones_like(signs)
    return signs * base + nearness * rng.normal(size=(count, size))


@st.composite
def pairs(draw):
    """Draws the arguments of `factor_inputs`: a seed, forms, exponents and a nearness.

    There are two factors, each with a form (see `terms`) and an exponent e, which
    multiplies it by 10^e. Unless a form is "unrelated", the terms of a factor are equal
    up to signs and random differences of about 10^nearness.
    """
    forms = st.sampled_from(["unrelated", "alike", "opposite", "ties"])
    exponent = st.floats(-30, 30)
    return (
        draw(st.integers(0, 2**31)),
        draw(st.tuples(forms, forms)),
        draw(st.tuples(exponent, exponent)),
        draw(st.floats(-9, 0)),
    )


def factor_inputs(name, case):
    seed, (left_form, right_form), exponents, nearness = case
    _, count, inputs, outputs = KINDS[name]
    rng = np.random.default_rng(seed)
    with np.errstate(over="ignore"):
        return [
            tf.constant(
                np.float32(10.0**e * terms(rng, count, n, form, 10.0**nearness))
            )[None]
            for n, form, e in zip(
                (inputs, outputs), (left_form, right_form), exponents, strict=True
            )
        ]


def assert_within(total, clip=CLIP):
    assert np.all(np.isfinite(total))
    assert np.linalg.norm(np.asarray(total, "f8")) <= clip * (1 + TOLERANCE)


FAST = ("inner products", "kept", "repeated rows")
CASES = {
    **{name: (name, tf.float32, False) for name in KINDS},
    **{f"{name}-bfloat16": (name, tf.bfloat16, False) for name in FAST},
    **{f"{name}-float16": (name, tf.float16, False) for name in FAST},
    **{f"{name}-xla": (name, tf.float32, True) for name in KINDS},
}


@pytest.mark.slow_cases("*-xla")
@pytest.mark.parametrize("case", CASES)
def test_no_contribution_is_larger_than_the_clip_norm(case):
    """Asserts that a guided search finds no contribution above the clip norm."""
    name, dtype, xla = CASES[case]
    run = compiled(name, dtype, xla)

    @hypothesis.settings(
        max_examples=50, deadline=None, derandomize=True, database=None
    )
    @hypothesis.example((3, ("alike", "opposite"), (3.0, 3.0), -6.0))
    @hypothesis.given(pairs())
    def search(pair):
        total, _ = run(*factor_inputs(name, pair))
        assert_within(total)
        hypothesis.target(float(np.linalg.norm(total)))

    search()


@pytest.mark.parametrize(
    "forms", [("unrelated",) * 2, ("alike",) * 2, ("ties", "alike")]
)
@pytest.mark.parametrize("name", KINDS)
def test_bounds_of_terms_that_do_not_cancel_are_close_at_all_scales(name, forms):
    scales = [((0.0, 0.0), -7.0), ((6.0, -3.0), -2.0), ((-4.0, 8.0), 0.0)]
    for exponents, nearness in scales:
        left, right = factor_inputs(name, (7, forms, exponents, nearness))
        factor = KINDS[name][0](left, right)
        exact = np.linalg.norm(np.asarray(factor.instantiate(), "f8"))
        measured = [norms_of(factor.measure())]
        # The norm of a product can also be computed from its terms.
        if isinstance(factor, base.Product):
            measured.append(norms.of_terms(left, right))
        for each in measured:
            assert (1 - 1e-6) * exact <= np.sqrt(each.bounds[0]) <= 1.01 * exact


def test_terms_that_cancel_exactly_leave_rounding_within_the_bound():
    # The exact sum of the outer products is zero, but their float32 sum is not.
    rng = np.random.default_rng(0)
    half = 1e6 * rng.normal(size=(1, 3, 256)).astype("f4")
    left = tf.constant(np.concatenate([half, half[:, ::-1]], axis=1))
    right = rng.normal(size=(1, 3, 256)).astype("f4")
    right = tf.constant(np.concatenate([right, -right[:, ::-1]], axis=1))
    total, weights = contribution(product(left, right))
    assert_within(total)
    lengths = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
    # The weighted terms must be small, because the rounding errors of larger terms
    # could swamp the contributions of other examples.
    assert weights[0] * lengths.sum() <= 256 * CLIP * (1 + 1e-5)


def test_squares_that_vanish_are_counted():
    # Each squared entry of `left` underflows to 0, but the product is not small.
    left = tf.fill([1, 1, 40000], 1e-19)
    right = tf.fill([1, 1, 2], 1e19)
    total, _ = contribution(product(left, right))
    assert_within(total)
    tiny = base.Instantiated(tf.fill([1, 100, 100], 1e-20))
    assert_within(contribution(tiny, clip=1e-19)[0], clip=1e-19)


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("size", [2**22, 999_983])
def test_long_sums_of_equal_numbers(size, xla):
    # Adding this many equal float32 terms one by one would give too small a sum.
    @tf.function(autograph=False, jit_compile=xla)
    def run(gradients):
        return contribution(base.Instantiated(gradients))

    assert_within(run(tf.fill([1, size], 0.1))[0])


def test_a_row_that_an_example_has_twice_is_measured_as_one():
    rng = np.random.default_rng(4)
    ids = np.array([[0, 1, 2], [3, 1, 3], [2, -1, -1], [4, 4, 4], [5, 0, 3]])
    values = rng.normal(size=(5, 3, 7)).astype("f4")
    values[3, 2] = -values[3, 0] - values[3, 1]
    values[2, 1:] = 0.0
    rows = tables.Rows(tf.constant(ids), tf.constant(values), 6)
    bounds = norms_of(rows.measure()).bounds.numpy()
    table = np.zeros([5, 7, 7])
    np.add.at(table, (np.arange(5)[:, None], ids), values)
    exact = np.sum(table[:, :6] ** 2, axis=(1, 2))
    assert np.all(bounds >= exact)
    others = [0, 1, 2, 4]
    np.testing.assert_allclose(bounds[others], exact[others], rtol=1e-3)
    # The terms of example 3 cancel, so its bound is computed from the norms of the
    # terms.
    lengths = np.sum(np.linalg.norm(values[3], axis=-1))
    np.testing.assert_allclose(bounds[3], (lengths / 256) ** 2, rtol=3e-3)


def test_lookups_that_cancel_a_projection():
    """Asserts that the norm bound covers a sum that consists of rounding errors only.

    The terms of the gradient cancel each other, so only float32 rounding errors remain.
    """
    ids = tf.constant([[0, 7, 7, 9]] * 3)
    values = tf.constant(
        1e4 * np.random.default_rng(0).normal(size=(3, 4, 16)), tf.float32
    )
    rows = tables.Rows(ids, values, 3000)
    opposite = base.Product(tf.one_hot(ids, 3000), -values, (3000, 16))
    measured = base.add_factors([rows, opposite]).measure()
    total = measured.weighted_sum(tf.constant([[1.0], [0], [0]]), *measured.tensors)
    bound = float(norms_of(measured).bounds[0]) ** 0.5
    assert bound >= np.linalg.norm(np.asarray(total, "f8"))
    # The bound is at least 1/256 of the sum of the norms of all terms.
    terms = float(tf.reduce_sum(tf.norm(values[0], axis=-1)))
    assert bound >= 2 * terms / 256 * 0.999
