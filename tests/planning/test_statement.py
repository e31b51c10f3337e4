"""Privacy statements."""

import dataclasses

import pytest

import tf_bandmf

ARGUMENTS = {
    "epsilon": 4.0,
    "delta": 1e-5,
    "num_examples": 600,
    "batch_size": 60,
    "epochs": 5,
}


def test_invariant_15_what_is_outside_the_guarantee_is_said():
    plan = tf_bandmf.plan("lambda_cgd", **ARGUMENTS)
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


@pytest.mark.parametrize("claim", ["accounting", "adjacency", "sampling"])
def test_invariant_15_no_claim_has_a_default(claim):
    statement = tf_bandmf.plan("lambda_cgd", **ARGUMENTS).statement()
    fields = dataclasses.asdict(statement)
    del fields[claim]
    with pytest.raises(TypeError, match=claim):
        type(statement)(**fields)


def test_invariant_8_a_test_seed_marks_the_statement():
    statement = tf_bandmf.plan("identity", **ARGUMENTS, test_seed=1).statement()
    assert dict(statement.points())["Formal statement"].startswith("NONE")


def test_invariant_2_without_a_sampler_only_the_worst_case_is_claimed():
    statement = tf_bandmf.plan(
        "identity",
        epsilon=4.0,
        delta=1e-5,
        num_steps=50,
        participation=tf_bandmf.MinSep(10),
    ).statement()
    assert "caller asserts" in str(statement)
    assert "No amplification" in str(statement)
