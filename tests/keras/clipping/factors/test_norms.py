"""Searches for gradients whose clipped contribution is larger than the clip norm."""

import hypothesis
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import strategies as st

from tf_bandmf.keras.clipping.factors import base, norms, tables

# The stated relative error of float rounding.
TOLERANCE = 1e-3
LAYOUT = base.Layout.plain
CLIP = 0.5


def contribution(factor, clip=CLIP):
    """The clipped sum of a batch, and its weights."""
    measured = factor.measure()
    finite = tf.math.is_finite(measured.norms.bounds)
    weights = tf.where(finite, norms.clip_weights(measured.norms.bounds, clip), 0.0)
    tensors = base.cleaned(finite, measured.tensors)
    return measured.weighted_sum(weights, tensors), weights


def product(left, right):
    return base.Product(left, right, LAYOUT((left.shape[-1], right.shape[-1])))


def grouped(left, right):
    left, right = (tf.stack([part, part[:, ::-1]], axis=1) for part in (left, right))
    shape = (2, left.shape[-1], right.shape[-1])
    return base.Product(left, right, LAYOUT(shape))


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


# Name: (kind, T, I, O); inner products are used above 40,000 parameters.
KINDS = {
    "one outer product": (product, 1, 40, 30),
    "formed": (product, 4, 20, 30),
    "inner products": (product, 6, 201, 211),
    "wide": (product, 2, 11, 4001),
    "groups": (grouped, 4, 201, 101),
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
        make = KINDS[name][0]

        @tf.function(autograph=False, jit_compile=xla)
        def run(left, right):
            return contribution(make(tf.cast(left, dtype), tf.cast(right, dtype)))

        _COMPILED[key] = run
    return _COMPILED[key]


def terms(rng, count, size, form, nearness):
    """Rows [T, n] that are alike, opposite, equal or unrelated."""
    if form == "unrelated":
        return rng.normal(size=(count, size))
    base = np.ones((1, size)) if form == "ties" else rng.normal(size=(1, size))
    signs = np.where(np.arange(count)[:, None] % 2, -1.0, 1.0)
    if form in ("alike", "ties"):
        signs = np.ones_like(signs)
    return signs * base + nearness * rng.normal(size=(count, size))


@st.composite
def pairs(draw):
    """Seed, forms, sizes and nearness of the terms of a gradient."""
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
CASES = [pytest.param(name, tf.float32, False, id=name) for name in KINDS]
CASES += [
    pytest.param(name, tf.bfloat16, False, id=f"{name}-bfloat16") for name in FAST
]
CASES += [pytest.param(name, tf.float16, False, id=f"{name}-float16") for name in FAST]
CASES += [
    pytest.param(
        name,
        tf.float32,
        True,
        id=f"{name}-xla",
        marks=[] if name in FAST else [pytest.mark.slow],
    )
    for name in KINDS
]


@pytest.mark.slow_cases("inner products-xla", "repeated rows-xla")
@pytest.mark.parametrize(("name", "dtype", "xla"), CASES)
@pytest.mark.invariant(17)
def test_no_contribution_is_larger_than_the_clip_norm(name, dtype, xla):
    run = compiled(name, dtype, xla)

    @hypothesis.settings(
        max_examples=25, deadline=None, derandomize=True, database=None
    )
    @hypothesis.given(pairs())
    def search(case):
        total, _ = run(*factor_inputs(name, case))
        assert_within(total)

    search()


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.invariant(17)
def test_an_adversarial_search(name):
    """Climbs towards the largest contribution, from terms that cancel."""
    run = compiled(name, tf.float32, False)
    rng = np.random.default_rng(0)

    def norm(case):
        total, _ = run(*factor_inputs(name, case))
        assert_within(total)
        return np.linalg.norm(total)

    best = (3, ("alike", "opposite"), (3.0, 3.0), -6.0)
    largest = norm(best)
    for _ in range(60):
        seed, forms, exponents, nearness = best
        moved = (
            seed + int(rng.integers(2)),
            forms,
            tuple(np.clip(np.add(exponents, rng.normal(size=2)), -30, 30)),
            float(np.clip(nearness + rng.normal(), -9, 0)),
        )
        actual = norm(moved)
        if actual > largest:
            best, largest = moved, actual
    assert largest > 0.0


@pytest.mark.parametrize("name", KINDS)
def test_ordinary_gradients_lose_less_than_a_thousandth(name):
    case = (5, ("unrelated", "unrelated"), (0.0, 0.0), 0.0)
    total, weights = compiled(name, tf.float32, False)(*factor_inputs(name, case))
    assert weights[0] < 1.0
    assert np.linalg.norm(total) >= CLIP * (1 - 1e-3)


@pytest.mark.parametrize(
    "forms", [("unrelated",) * 2, ("alike",) * 2, ("ties", "alike")]
)
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.invariant(17)
def test_bounds_of_terms_that_do_not_cancel_are_close_at_all_scales(name, forms):
    for exponents, nearness in [
        ((0.0, 0.0), -7.0),
        ((6.0, -3.0), -2.0),
        ((-4.0, 8.0), 0.0),
    ]:
        left, right = factor_inputs(name, (7, forms, exponents, nearness))
        factor = KINDS[name][0](left, right)
        exact = np.linalg.norm(np.asarray(factor.instantiate(), "f8"))
        bound = np.sqrt(factor.measure().norms.bounds[0])
        assert (1 - 1e-6) * exact <= bound <= 1.01 * exact


@pytest.mark.invariant(17)
def test_terms_that_cancel_exactly_leave_rounding_within_the_bound():
    # The sum of l rᵀ over all terms is zero; in float32 it is not.
    rng = np.random.default_rng(0)
    half = 1e6 * rng.normal(size=(1, 3, 256)).astype("f4")
    left = tf.constant(np.concatenate([half, half[:, ::-1]], axis=1))
    right = rng.normal(size=(1, 3, 256)).astype("f4")
    right = tf.constant(np.concatenate([right, -right[:, ::-1]], axis=1))
    total, weights = contribution(product(left, right))
    assert_within(total)
    lengths = np.linalg.norm(left, axis=-1) * np.linalg.norm(right, axis=-1)
    # Nor may the terms be so large that what others add is rounded away.
    assert weights[0] * lengths.sum() <= 256 * CLIP * (1 + 1e-5)


@pytest.mark.parametrize("length", [3, 200])
@pytest.mark.invariant(17)
def test_unknown_number_of_terms(length):
    @tf.function(
        autograph=False,
        input_signature=[
            tf.TensorSpec([1, None, 201]),
            tf.TensorSpec([1, None, 203]),
        ],
    )
    def run(left, right):
        return contribution(product(left, right))

    rng = np.random.default_rng(1)
    left = 1e4 * terms(rng, length, 201, "alike", 1e-6)[None]
    right = 1e4 * terms(rng, length, 203, "opposite", 1e-6)[None]
    total, _ = run(np.float32(left), np.float32(right))
    assert_within(total)
    left, right = rng.normal(size=(1, length, 201)), rng.normal(size=(1, length, 203))
    total, _ = run(np.float32(left), np.float32(right))
    assert np.linalg.norm(total) >= CLIP * (1 - 1e-2)


@pytest.mark.invariant(17)
def test_squares_that_vanish_are_counted():
    # Each square is flushed to zero, and the product of the vectors is not small.
    left = tf.fill([1, 1, 40000], 1e-19)
    right = tf.fill([1, 1, 2], 1e19)
    total, _ = contribution(product(left, right))
    assert_within(total)
    tiny = base.Instantiated(tf.fill([1, 100, 100], 1e-20))
    assert_within(contribution(tiny, clip=1e-19)[0], clip=1e-19)


@pytest.mark.parametrize("xla", [False, True])
@pytest.mark.parametrize("size", [2**22, 999_983])
@pytest.mark.invariant(17)
def test_long_sums_of_equal_numbers(size, xla):
    # In float32, one after the other, such sums are too small.
    @tf.function(autograph=False, jit_compile=xla)
    def run(gradients):
        return contribution(base.Instantiated(gradients))

    assert_within(run(tf.fill([1, size], 0.1))[0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38])
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.invariant(18)
def test_what_cannot_be_bounded_contributes_zero(name, bad):
    case = (5, ("unrelated", "unrelated"), (0.0, 0.0), 0.0)
    left, right = (np.array(part) for part in factor_inputs(name, case))
    right[0, 0, 0] = bad
    total, weights = compiled(name, tf.float32, False)(left, right)
    assert_within(total)
    if not np.isfinite(bad):
        assert weights[0] == 0.0 and not np.any(total)


# Terms, and by how much the norm that clipping uses is at most too large.
RELATED = {
    "a row that most positions look up": "rows",
    "positive activations, as after a relu": (200, 700, 512),
    "many positions": (1024, 700, 512),
}


@pytest.mark.parametrize("name", RELATED)
@pytest.mark.invariant(17)
def test_bounds_are_above_the_exact_norm_by_less_than_a_hundredth(name):
    rng = np.random.default_rng(0)
    if RELATED[name] == "rows":  # as padding has: 200 of 256 positions
        ids = np.zeros((1, 256), "i4")
        ids[0, 200:] = np.arange(1, 57)
        values = rng.normal(size=(1, 256, 512)).astype("f4")
        factor = tables.Rows(tf.constant(ids), tf.constant(values), 60)
        exact = np.zeros((60, 512))
        np.add.at(exact, ids[0], values[0])
    else:
        length, inputs, outputs = RELATED[name]
        left = np.abs(rng.normal(size=(length, inputs))).astype("f4")
        right = rng.normal(size=(length, outputs)).astype("f4")
        shape = LAYOUT((1, inputs, outputs))
        factor = base.Product(tf.constant(left[None]), tf.constant(right[None]), shape)
        exact = left.T.astype(float) @ right
    size = np.linalg.norm(exact)
    actual = [factor.measure().norms]
    if isinstance(factor, base.Product):  # however many terms there are
        actual.append(norms.of_terms(factor.left, factor.right))
    for each in actual:
        assert size <= np.sqrt(each.bounds[0]) <= 1.01 * size


def _of_short_operands(kind, dtype, terms, width, monkeypatch):
    """Bounds, sum and dtypes of what waits, of a product of 16-bit tensors under XLA."""
    monkeypatch.setattr(norms, "device_kind", lambda: kind)
    rng = np.random.default_rng(0)
    operands = [
        tf.cast(rng.normal(size=(3, terms, size)), dtype) for size in (width, 300)
    ]
    waiting = []

    @tf.function(autograph=False, jit_compile=True)
    def compiled(left, right):
        measured = product(left, right).measure()
        waiting.extend(tensor.dtype for tensor in measured.tensors)
        tensors = base.cleaned(tf.constant([True, False, True]), measured.tensors)
        weights = tf.constant([0.5, 0.0, 2.0])
        return measured.norms.bounds, measured.weighted_sum(weights, tensors)

    return *compiled(*operands), set(waiting)


@pytest.mark.slow_cases("4-200-dtype1", "4-200-dtype0")
@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
@pytest.mark.parametrize("terms, width", [(1, 5), (4, 200), (4, 5)])
@pytest.mark.invariant(17)
def test_what_has_16_bits_waits_so_on_accelerators_and_norms_are_the_same(
    dtype, terms, width, monkeypatch
):
    actual = _of_short_operands("GPU", dtype, terms, width, monkeypatch)
    expected = _of_short_operands("CPU", dtype, terms, width, monkeypatch)
    is_formed = (terms, width) == (4, 5)
    assert actual[2] == {tf.float32 if is_formed else dtype}
    # The control: the CPU keeps float32.
    assert expected[2] == {tf.float32}
    for own, other in zip(actual[:2], expected[:2], strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-6, atol=1e-5)


def test_a_row_that_an_example_has_twice_is_measured_as_one():
    rng = np.random.default_rng(4)
    ids = np.array([[0, 1, 2], [3, 1, 3], [2, -1, -1], [4, 4, 4], [5, 0, 3]])
    values = rng.normal(size=(5, 3, 7)).astype("f4")
    values[3, 2] = -values[3, 0] - values[3, 1]
    values[2, 1:] = 0.0
    rows = tables.Rows(tf.constant(ids), tf.constant(values), 6)
    bounds = rows.measure().norms.bounds.numpy()
    table = np.zeros([5, 7, 7])
    np.add.at(table, (np.arange(5)[:, None], ids), values)
    exact = np.sum(table[:, :6] ** 2, axis=(1, 2))
    assert np.all(bounds >= exact)
    others = [0, 1, 2, 4]
    np.testing.assert_allclose(bounds[others], exact[others], rtol=1e-3)
    # What cancels is bounded by its terms.
    lengths = np.sum(np.linalg.norm(values[3], axis=-1))
    np.testing.assert_allclose(bounds[3], (lengths / 256) ** 2, rtol=3e-3)
