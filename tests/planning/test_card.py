"""Privacy cards, which use plain words, are true, complete and safe to display."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
from dp_accounting import pld
from scipy import stats
from small_plans import planned

import tf_bandmf
from tf_bandmf.accounting.guarantee import fill

ARGUMENTS = {"epsilon": 1.0, "delta": 1e-5, "num_examples": 600, "batch_size": 60}


@pytest.fixture(scope="module")
def plan():
    return tf_bandmf.plan("bsr:4", epochs=2, **ARGUMENTS)


def said_of(plan, epsilon, delta=1e-5, mu=None, kind="exact", confidence=None):
    """Returns the plan's privacy statement with its guarantee replaced."""
    made = tf_bandmf.Guarantee(epsilon, delta, kind, "test", confidence=confidence)
    return dataclasses.replace(plan.statement(unit="one user"), guarantee=made, mu=mu)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 30.0, 900.0])
@pytest.mark.parametrize("delta", [1e-9, 0.01])
def test_no_test_of_randomized_response_does_better(plan, epsilon, delta):
    """No attack on a worst-case (epsilon, delta)-DP mechanism exceeds the card's bounds."""
    right = 1.0 / (1.0 + math.exp(-epsilon))
    wrong = math.exp(-epsilon) * right
    out = np.array([delta, 0.0, (1 - delta) * right, (1 - delta) * wrong])
    other = np.array([0.0, delta, (1 - delta) * wrong, (1 - delta) * right])
    said = said_of(plan, epsilon, delta)
    best = 0.0
    for choice in itertools.product([0.0, 0.5, 1.0], repeat=4):
        power, accused = out @ np.array(choice), other @ np.array(choice)
        assert power <= said.found(accused) * (1 + 1e-12) + 1e-15
        best = max(best, 0.5 * (1.0 + power - accused))
    assert said.right() == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize("mu", [0.01, 0.3, 2.0])
def test_a_gaussian_mechanism_is_known_exactly(plan, mu):
    said = said_of(plan, 50.0, mu=mu)
    normal = stats.norm
    for accused in (0.001, 0.05, 0.5):
        expected = normal.sf(normal.isf(accused) - mu)
        assert said.found(accused) == pytest.approx(expected, rel=1e-9)
    assert said.right() == pytest.approx(normal.cdf(mu / 2.0), rel=1e-9)
    assert said.right() >= normal.cdf(mu / 2.0)


def test_a_sampled_run_is_known_by_its_privacy_profile():
    run = tf_bandmf.plan("identity", epochs=2, sampling="poisson", **ARGUMENTS)
    said, accountant = run.statement(), pld.PLDAccountant().compose(run.dp_event())
    tests = [(one, accountant.get_delta(one)) for one in np.linspace(0.0, 4.0, 81)]
    for accused in (0.001, 0.05):
        best = min(math.exp(epsilon) * accused + delta for epsilon, delta in tests)
        assert 0.999 * best < said.found(accused) < 1.2 * best
    assert 0.5 * (1.0 + tests[0][1]) < said.right() < 0.55 * (1.0 + tests[0][1])
    assert tf_bandmf.compose([run, run]).statement().found(0.05) > said.found(0.05)


def test_plain_words_come_first_and_name_the_numbers(plan):
    card = plan.statement(unit="one user").card("churn-2026")
    points = dict(card.points())
    assert list(points)[:3] == ["What is protected", "From whom", "How strongly"]
    said = card.statement
    assert said.mu == pytest.approx(1.0 / plan.noise_multiplier)
    example = points["What that means for one person"]
    assert f"at most {math.ceil(100 * said.right())} times" in example
    assert f"at most {math.ceil(100 * said.found(0.05))} out of 100" in example
    assert "one user" in example and "a strong guarantee" in points["How strongly"]
    text = card.to_markdown()
    assert text.index("In plain words") < text.index("## Privacy statement")
    for _, technical in card.statement.points():
        assert technical in text


def test_what_is_an_estimate_or_nothing_says_so(plan):
    seeded = planned("identity", epochs=1, **ARGUMENTS, test_seed=1)
    card = seeded.statement().card()
    assert dict(card.points())["What is protected"].startswith("NOTHING")
    assert len(card.points()) == 1 and card.to_record()["guarantee"] is None
    assert "differential_privacy" not in card.to_model_card()
    for kind, confidence, word in (
        ("estimate", None, "ESTIMATE"),
        ("bound", 0.999, "wrong is at most 0.001"),
        ("bound", None, "proven"),
    ):
        statement = said_of(plan, 1.0, kind=kind, confidence=confidence)
        assert word in dict(statement.card().points())["How sure the numbers are"]


def test_replacements_and_several_releases():
    sampling = tf_bandmf.CyclicFixedSize(600, 6, 1)
    plan = planned("identity", num_steps=20, sampling=sampling, noise_multiplier=0.36)
    points = dict(plan.statement().card().points())
    assert "with other data in their place" in points["What is protected"]
    assert "which of two possible records" in points["What that means for one person"]
    joint = tf_bandmf.compose([tf_bandmf.Release(rho=0.1)])
    said = joint.statement(1e-5, unit="one user")
    # If only the rho of a release is known, the release need not be a Gaussian
    # mechanism, so no mu is stated for it.
    assert said.mu is None and "1 other release(s)" in said.covered


HOSTILE = "a<script>alert(1)</script> & \"b': [x](y) `z`"


def test_names_are_text_in_every_format_and_metadata_are_those_of_keras(plan):
    yaml = pytest.importorskip("yaml")
    card = plan.statement().card(HOSTILE)
    record = json.loads(card.to_json())
    assert record["model_name"] == HOSTILE
    assert record["guarantee"]["epsilon"] == plan.epsilon
    heading = card.to_markdown().split("\n")[0]
    assert "<script>" not in heading.replace("\\<", "")
    with pytest.raises(ValueError, match="model_name must be"):
        plan.statement().card("two\nlines")
    text = card.to_model_card(license="mit", datasets=["mnist"], tags=["vision"])
    _, front, body = text.split("---\n", 2)
    actual = yaml.safe_load(front)
    assert actual["library_name"] == "keras" and actual["license"] == "mit"
    assert actual["datasets"] == ["mnist"] and actual["model_name"] == HOSTILE
    assert actual["tags"] == ["differential-privacy", "tf-bandmf", "vision"]
    assert actual["differential_privacy"]["epsilon"] == plan.epsilon
    assert body.strip() == card.to_markdown().strip()


def test_line_one_does_not_say_what_the_run_would_be_without_its_sampling(plan):
    sampled = tf_bandmf.plan("identity", epochs=2, sampling="poisson", **ARGUMENTS)
    statements = (plan.statement(), False), (sampled.statement(), True)
    for statement, is_sampled in statements:
        points = dict(statement.points())
        assert ("zCDP" in points["Formal statement"]) != is_sampled
        assert ("Without amplification by sampling" in points) == is_sampled
        assert fill("{:.6g up}-zCDP", statement.guarantee.zcdp_rho) in str(statement)
    joint = tf_bandmf.compose([plan, sampled]).statement()
    points = dict(joint.points())
    assert "zCDP" not in points["Formal statement"]
    assert "zCDP" in points["Without amplification by sampling"]
