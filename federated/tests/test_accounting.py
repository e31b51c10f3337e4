"""Tests of the guarantee that follows from the participations in a run's record."""

import collections
import itertools

import hypothesis
import numpy as np
import pytest
from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss
from hypothesis import strategies as st
from patterns import min_sep_patterns
from plans import min_sep_plan

import tf_bandmf
from tf_bandmf_federated import (
    MeasuredParticipation,
    measure_participation,
    measured_guarantee,
)

N, B, K = 9, 3, 3


def make_plan(mechanism="banded", b=B, k=K, **options):
    if mechanism in ("banded", "bsr", "bisr"):
        mechanism = f"{mechanism}:3"
    return min_sep_plan(mechanism, N, b, k, **{"noise_multiplier": 1.5, **options})


PLAN = make_plan(l2_norm_clip=0.25)


def measured(b, k, n=N):
    """Returns a measurement of two clients: one took part k times, every b rounds."""
    return MeasuredParticipation(n, 2, b, k, k + 1)


# The next tests check how participation is measured from a record of cohorts.


@hypothesis.settings(deadline=None, derandomize=True, max_examples=200)
@hypothesis.given(st.lists(st.sets(st.integers(0, 5)), max_size=15))
def test_measures_what_brute_force_measures(cohorts):
    rounds = collections.defaultdict(list)
    for round_number, cohort in enumerate(cohorts):
        for client in cohort:
            rounds[client].append(round_number)
    gaps = [
        abs(i - j)
        for past in rounds.values()
        for i, j in itertools.combinations(past, 2)
    ]
    # The result must not depend on the order of the rounds in the record.
    record = dict(reversed(list(enumerate(cohorts))))
    assert measure_participation(record, 15) == MeasuredParticipation(
        num_rounds=15,
        num_clients=len(rounds),
        min_separation=min(gaps, default=None),
        max_participations=max(map(len, rounds.values()), default=0),
        num_participations=sum(map(len, rounds.values())),
    )


def test_record_that_cannot_be_is_refused():
    with pytest.raises(ValueError, match="'a' twice in round 1"):
        measure_participation({0: ["b"], 1: ["a", "b", "a"]})
    with pytest.raises(ValueError, match=r"in \[0, 4\), but found .* from -1 to 3"):
        measure_participation({-1: ["a"], 3: ["a"]})
    with pytest.raises(ValueError, match=r"must be in \[0, 3\)"):
        measure_participation({3: ["a"]}, 3)
    assert measure_participation({9: ["a"]}).num_rounds == 10


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((9, 2, None, 2, 3), "must be None if max_participations <= 1"),
        ((9, 2, 5, 3, 4), "min_separation must be from 1 to "),
    ],
)
def test_measurement_that_contradicts_itself_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        MeasuredParticipation(*fields)


# The remaining tests check the guarantee for a measured participation.


@pytest.mark.parametrize(
    ("b", "k"), [(4, 2), (8, 2), (3, 2), (3, 3), (2, 3), (1, 3), (2, 4), (1, 9)]
)
@pytest.mark.parametrize("plan", [PLAN, make_plan("bsr"), make_plan("lambda_cgd")])
@pytest.mark.invariant(3)
def test_is_that_of_the_worst_pattern_also_below_the_bands(plan, b, k):
    # No strategy matrix has a negative entry, so equal updates are the worst case.
    matrix = plan.strategy.matrix.to_dense()
    assert np.all(matrix >= 0)
    worst = max(
        np.linalg.norm(matrix[:, rounds].sum(axis=1))
        for rounds in min_sep_patterns(N, b, k)
    )
    actual = measured_guarantee(plan, measured(b, k))
    assert actual.participation == tf_bandmf.MinSep(b, k)
    stddev = plan.noise_stddev / plan.l2_norm_clip
    if actual.guarantee.kind == "exact":
        assert actual.sensitivity.value == pytest.approx(worst, rel=1e-6)
        loss = GaussianPrivacyLoss(stddev, sensitivity=worst)
        delta = loss.get_delta_for_epsilon(actual.guarantee.epsilon)
        assert delta == pytest.approx(1e-5, rel=1e-4)
        rho = worst**2 / (2 * stddev**2)
        assert actual.guarantee.zcdp_rho == pytest.approx(rho, rel=1e-6)
    else:
        assert actual.guarantee.kind == "bound" and not actual.sensitivity.is_exact
        assert worst <= actual.sensitivity.value * (1 + 1e-9) < 1.5 * worst


def test_only_what_keeps_the_participation_is_within_the_plan():
    for b, k, expected in [(3, 3, True), (5, 2, True), (2, 2, False), (2, 4, False)]:
        assert measured_guarantee(PLAN, measured(b, k)).is_within_plan == expected
    once = measured_guarantee(PLAN, MeasuredParticipation(N, 5, None, 1, 5))
    assert once.is_within_plan
    limited = make_plan(k=2)
    assert not measured_guarantee(limited, measured(3, 3)).is_within_plan
    assert measured_guarantee(make_plan(k=None), measured(3, 3)).is_within_plan


def test_what_cannot_be_accounted_for_is_refused():
    with pytest.raises(ValueError, match=r"num_rounds must be in \[1, 9\]"):
        measured_guarantee(PLAN, measured(B, K, n=10))
    with pytest.raises(ValueError, match="has no participations"):
        measured_guarantee(PLAN, MeasuredParticipation(N, 0, None, 0, 0))
    with pytest.raises(ValueError, match="delta must be in"):
        measured_guarantee(PLAN, measured(B, K), delta=1.0)
    fixed = make_plan("identity", sampling=tf_bandmf.FixedEpochOrder(30, 10, 3))
    with pytest.raises(ValueError, match="must have sampling=MinSep"):
        measured_guarantee(fixed, measured(B, K))
