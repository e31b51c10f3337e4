"""The privacy statement names the guarantee, its privacy unit and its limits."""

import dataclasses

import pytest
from small_plans import planned, small_plan

import tf_bandmf
from tf_bandmf.accounting.guarantee import fill


def make_plan(mechanism="identity", **changes):
    return small_plan(mechanism, 600, 60, 5, **changes)


@pytest.mark.invariant(15)
def test_what_is_outside_the_guarantee_is_said():
    plan = make_plan("lambda_cgd")
    for text in (str(plan.statement()), plan.statement().to_markdown()):
        for expected in (
            "(epsilon = 4, delta = 1e-05)-DP",
            "zCDP",
            "Zero-out",
            "one training example".capitalize(),
            "No amplification",
            "600 examples",
            "Theorem 1",
            "Training metrics",
            "hyper-parameters",
            "Floating-point",
            "cryptographically",
            plan.fingerprint,
        ):
            assert expected in text, expected


def test_privacy_parameters_are_rounded_up():
    plan = make_plan(epsilon=10.04, delta=1.004e-5)
    release = tf_bandmf.Release("theirs", epsilon=0.10000041, delta=1.004e-7)
    joint = tf_bandmf.compose([plan, release]).statement(delta=1.0149e-5)
    for text, expected in (
        (plan.statement(), "(epsilon = 10.04, delta = 1.01e-05)-DP"),
        (plan.statement().card(), "Epsilon is 10.1, delta 1.1e-05"),
        (joint, "delta = 1.02e-05)-DP for all runs together"),
        (joint, "itself (epsilon = 10.04, delta = 1.01e-05)-DP"),
        (joint, "theirs: (epsilon = 0.100001, delta = 1.01e-07)-DP"),
    ):
        assert expected in str(text)
    for value, form, expected in (
        (0.1 + 0.2, ".6g", "0.3"),
        (2.0000013, ".6g", "2.00001"),
        (1e-5, ".3g", "1e-05"),
        (4.00001, ".4f", "4.0001"),
    ):
        assert fill(f"{{:{form} up}}", value) == expected


@pytest.mark.invariant(8)
def test_a_test_seed_marks_the_statement():
    statement = make_plan(test_seed=1).statement()
    assert dict(statement.points())["Formal statement"].startswith("NONE")


@pytest.mark.invariant(2)
def test_without_a_sampler_only_the_worst_case_is_claimed():
    plan = planned("identity", num_steps=50, sampling=tf_bandmf.MinSep(10))
    statement = plan.statement()
    assert "caller asserts" in str(statement)
    assert "No amplification" in str(statement)


@pytest.mark.slow
@pytest.mark.invariant(12)
def test_rho_of_zcdp_is_that_of_the_stated_adjacency():
    # In the worst case, an example is used in every step that samples from its part of
    # the data. Replacing the example changes the sum of each such step by up to twice
    # the clip norm, and removing it by up to the clip norm.
    for sampling, distance in (("cyclic-fixed-size", 2.0), ("cyclic-poisson", 1.0)):
        plan = small_plan("identity", 600, 60, 2, sampling=sampling, l2_norm_clip=0.5)
        assert ("Replace-one" in plan.adjacency) == (distance == 2.0)
        takes_part = -(-plan.num_steps // plan.participation.num_parts)
        moved = distance * plan.l2_norm_clip
        rho = (
            takes_part
            * (moved / plan.l2_norm_clip) ** 2
            / (2.0 * plan.unit_noise_stddev**2)
        )
        assert plan.zcdp_rho == pytest.approx(rho, rel=1e-12)
        assert plan.guarantee.zcdp_rho == plan.zcdp_rho
        assert plan.statement().guarantee.zcdp_rho == plan.zcdp_rho
        assert f"{rho:.6g}-zCDP" in str(plan.statement())


@pytest.mark.invariant(15)
def test_the_unit_is_what_the_caller_says():
    plan = make_plan()
    points = dict(plan.statement(unit="one device").points())
    assert points["Unit of privacy"] == "One device."
    assert "One training example." in str(plan.statement())
    users = str(make_plan(unit="one user").statement())
    assert "Unit of privacy: One user." in users
    assert 'An "example" means one user' in users
    for bad in ("", " ", "one\ndevice", 3):
        with pytest.raises(ValueError, match="unit must be one line"):
            plan.statement(unit=bad)


@pytest.mark.invariant(15)
def test_no_field_of_a_statement_has_a_default():
    fields = dataclasses.fields(tf_bandmf.PrivacyStatement)
    assert all(
        field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
        for field in fields
    )


@pytest.mark.invariant(15)
def test_remarks_about_a_run_are_in_its_statement():
    plan = make_plan()
    assert "This run" not in dict(plan.statement().points())
    remarked = dataclasses.replace(plan.statement(), remarks=("One.", "Two."))
    points = dict(remarked.points())
    assert points["This run"] == "One. Two."
