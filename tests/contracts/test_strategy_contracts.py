"""Every registered strategy family fulfills its contract, in all its variants."""

import numpy as np
import pytest
from patterns import brute_force, fixed_patterns, min_sep_patterns

import tf_bandmf
from tf_bandmf import workloads
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
    """Builds the strategy of a specification once for all tests of this module."""
    name, options = registry.parse(specification)
    participation = PARTICIPATIONS["min_sep"]
    return registry.build_strategy(name, WORKLOAD, participation, **options)


def test_it_is_called_as_it_was_asked_for(specification, built):
    assert built.family == specification.split(":")[0]
    assert built.num_steps == N
    assert np.ptp(built.matrix.column_norms()) < 1e-9 or not specification.endswith(
        ":normalized"
    )
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
    assert actual.is_exact or not (fixed and built.matrix.is_nonnegative())
    if actual.is_exact:
        assert actual.value == pytest.approx(largest, rel=1e-9)


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


def test_a_record_that_contradicts_itself_is_refused_with_its_name():
    def build(workload, participation):
        raise AssertionError("never built")

    with pytest.raises(ValueError, match="family 'toy' lists 'bands'"):
        register(Family("toy", build, (Option("bands"),)))
    with pytest.raises(ValueError, match="strategy names dp_sgd"):
        register(Family("dp_sgd", build))
    assert "toy" not in FAMILIES
