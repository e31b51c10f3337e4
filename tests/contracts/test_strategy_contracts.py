"""What every registered family of strategies must do, in all its variants."""

import numpy as np
import pytest
from patterns import brute_force, fixed_patterns, min_sep_patterns

import tf_bandmf
from tf_bandmf import workloads
from tf_bandmf.noise import NoiseGenerator
from tf_bandmf.noise.keys import NoiseKey
from tf_bandmf.strategies import FAMILIES, Family, Option, register, registry

N, B, K = 12, 4, 3
WORKLOAD = workloads.prefix_sum(N)
BUDGET = {"epsilon": 2.0, "delta": 1e-5}
SPECIFICATIONS = [s for name in sorted(FAMILIES) for s in FAMILIES[name].examples]
PARTICIPATIONS = {
    "min_sep": tf_bandmf.MinSep(B, K),
    "fixed_order": tf_bandmf.FixedEpochOrder(B * 5, 5, K),
}


@pytest.fixture(params=SPECIFICATIONS, scope="module")
def specification(request):
    return request.param


@pytest.fixture(scope="module")
def built(specification):
    """Optimized strategies are found once for all tests."""
    name, options = registry.parse(specification)
    participation = PARTICIPATIONS["min_sep"]
    return registry.build_strategy(name, WORKLOAD, participation, **options)


def test_it_is_called_as_it_was_asked_for(specification, built):
    assert built.family == specification.split(":")[0]
    assert built.num_steps == N
    assert built.is_column_normalized or not specification.endswith(":normalized")
    registry.parse(built.family)


def test_what_its_record_says_of_its_structure_is_so(built):
    family = registry.family_of(built.family)
    if family.banded == "C":
        assert built.matrix.bands < N
    assert built.is_inverse_banded == (family.banded == "inverse")
    if family.banded == "inverse":
        assert built.memory_vectors == 0


@pytest.mark.parametrize("kind", sorted(PARTICIPATIONS))
def test_the_sensitivity_is_at_least_that_of_every_pattern(built, kind):
    participation = PARTICIPATIONS[kind]
    actual = built.sensitivity(participation)
    fixed = kind == "fixed_order"
    patterns = fixed_patterns(N, B) if fixed else min_sep_patterns(N, B, K)
    largest = brute_force(built.matrix.to_dense(), patterns)
    assert actual.value >= largest * (1.0 - 1e-12)
    if actual.is_exact:
        assert actual.value == pytest.approx(largest, rel=1e-9)


def streamed(strategy):
    """All rows of a generator's noise, shape [N, 8], and the generator."""
    generator = NoiseGenerator(strategy, 8, jit_compile=False)
    state = generator.initial_state(NoiseKey.for_testing(3))
    rows = []
    for step in range(N):
        row, state = generator.next(state, step)
        rows.append(row.numpy())
    return np.array(rows), generator


@pytest.fixture(scope="module")
def independent():
    """Independent noise by the same key."""
    return streamed(tf_bandmf.strategies.identity(N))[0]


def test_streamed_noise_is_that_of_the_dense_inverse(built, independent):
    strategy = built.in_float32()
    rows, generator = streamed(strategy)
    z = independent.astype(np.float64)
    expected = np.linalg.solve(strategy.matrix.to_dense(), z)
    np.testing.assert_allclose(rows, expected, rtol=2e-4, atol=5e-5)
    assert generator.memory_vectors == strategy.memory_vectors


def test_a_table_and_a_plan_of_it_agree_and_the_plan_is_saved(
    specification, built, tmp_path
):
    participation = PARTICIPATIONS["min_sep"]
    use = {"num_steps": N, "sampling": participation, "workload": WORKLOAD}
    (row,) = tf_bandmf.compare([built], **use)
    plan = tf_bandmf.plan(built, **BUDGET, **use)
    assert plan.rmse() == pytest.approx(row.rmse * plan.noise_multiplier, rel=1e-4)
    assert plan.strategy.memory_vectors == row.memory_vectors
    path = str(tmp_path / "plan.json")
    plan.save(path)
    again = tf_bandmf.Plan.load(path)
    assert again.fingerprint == plan.fingerprint
    np.testing.assert_array_equal(
        again.strategy.matrix.to_dense(), plan.strategy.matrix.to_dense()
    )


def test_errors_in_closed_form_are_the_dense_ones(built):
    factor = WORKLOAD.to_dense() @ np.linalg.inv(built.matrix.to_dense())
    np.testing.assert_allclose(
        built.per_step_squared_error(WORKLOAD), np.sum(factor**2, axis=1), rtol=1e-8
    )


def test_a_record_that_contradicts_itself_is_refused_with_its_name():
    def build(workload, participation):
        raise AssertionError("never built")

    with pytest.raises(ValueError, match="build of toy must take its option bands"):
        register(Family("toy", build, "a toy", (Option("bands"),)))
    with pytest.raises(ValueError, match="The name dp_sgd is taken"):
        register(Family("dp_sgd", build, "a toy"))
    assert "toy" not in FAMILIES
