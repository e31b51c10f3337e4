"""The command `tf-bandmf` prints the same numbers as Python, and helpful errors."""

import json
import re

import numpy as np
import pytest
from small_plans import small_plan

import tf_bandmf
from tf_bandmf import cli

DATA = ["--num-examples", "2000", "--batch-size", "100", "--epochs", "4"]
BUDGET = ["--epsilon", "4", "--delta", "1e-5"]
PLAN = ["plan", *BUDGET, *DATA]
COMPARE = ["compare", *BUDGET, *DATA]
RATES = ["--num-steps", "60", "--min-separation", "12"]
ADVISE = ["advise", *BUDGET, "--num-examples", "1000", "--num-parameters", "400"]
ADVISE += ["--epochs", "4", "--sampling", "fixed-order", "--mechanism", "bisr:16"]


@pytest.fixture
def run(capsys):
    def go(*arguments, code=0):
        assert cli.main(list(arguments)) == code
        out, err = capsys.readouterr()
        return out if code == 0 else err

    return go


@pytest.fixture
def json_of(run):
    # Parsing fails on NaN and infinity, which are not valid JSON.
    return lambda *words: json.loads(run(*words, "--json"), parse_constant=pytest.fail)


def test_options_are_the_arguments_of_python(json_of):
    plan = small_plan(
        "bisr:4", 2000, 100, 4, l2_norm_clip=0.5, workload="sgd:momentum=0.9"
    )
    more = ["--l2-norm-clip", "0.5", "--workload", "sgd:momentum=0.9"]
    actual = json_of(*PLAN, "--mechanism", "bisr:4", *more)
    assert actual["fingerprint"] == plan.fingerprint
    assert actual["noise_stddev"] == plan.noise_stddev
    # An option with the value 0 is not treated as missing.
    table = json_of(*COMPARE, "--max-memory-vectors", "0")
    assert {row["memory_vectors"] for row in table} == {0}
    # `--generator` selects the noise generator of the plan.
    secure = json_of(*PLAN, "--mechanism", "bisr:4", "--generator", "chacha20")
    assert secure["statement"]["Not covered"].count("ChaCha20") == 1
    # Without `--sampling`, the plan assumes a minimum separation of participations,
    # which the caller must enforce.
    kept = json_of("plan", *BUDGET, *RATES, "--mechanism", "bsr:4")
    assert kept["participation"]["kind"] == "min_sep" and kept["num_steps"] == 60


def test_a_part_is_reserved(json_of, run):
    kept = ["--counts", "0.02", "--metrics", "0.1", "--evaluations", "4"]
    actual = json_of(*PLAN, "--mechanism", "bisr:4", *kept)
    assert actual["measurements"]["evaluations"] == 4 and actual["epsilon"] == 4.0
    assert "evaluations" in run(
        *PLAN, "--mechanism", "bisr:4", "--metrics", "0.1", code=2
    )


def test_a_plan_is_saved_and_shown(run, json_of, tmp_path):
    path, card = str(tmp_path / "plan.json"), tmp_path / "card.md"
    out = run(*PLAN, "--mechanism", "auto", "--out", path)
    plan = tf_bandmf.Plan.load(path)
    assert str(plan.statement()) in out and plan.choice.reason in out
    assert str(plan.statement()) in run("show", path)
    assert "delta 1e-05: epsilon 4.0000" in run("show", path)
    assert json_of("show", path)["fingerprint"] == plan.fingerprint
    words = ["--card", str(card), "--model-name", "churn", "--unit", "one user"]
    run("show", path, *words)
    assert card.read_text("utf-8").startswith('---\nlibrary_name: "keras"')
    assert "one user" in card.read_text("utf-8")
    assert "must end in .md" in run("show", path, "--card", "card.pdf", code=2)


def test_a_plan_is_shown_with_numbers_that_are_rounded_up(run, tmp_path):
    path = str(tmp_path / "plan.json")
    small_plan("identity", 2000, 100, 4, delta=1.4e-5).save(path)
    shown = run("show", path)
    assert "delta 1.4e-05: epsilon 4.0000" in shown
    smaller = tf_bandmf.Plan.load(path).guarantee_at(1e-5).epsilon
    stated = float(re.search("delta 1e-05: epsilon (.*)", shown)[1])
    assert smaller <= stated < smaller + 1e-4


def test_a_comparison_is_that_of_python(run, json_of):
    rows = json_of("compare", *RATES, "--mechanisms", "identity, bsr:4,dense")
    assert [row["mechanism"] for row in rows] == ["identity", "bsr:4", "dense"]
    # Independent noise on prefix sums has the mean squared error mean(1, ..., 60) * k,
    # where k is the number of participations.
    np.testing.assert_allclose(rows[0]["rmse"], np.sqrt(30.5 * 5))
    assert rows[0]["noise_multiplier"] == 1.0
    (limited,) = json_of(
        "compare", *RATES, "--max-participations", "2", "--mechanisms", "identity"
    )
    np.testing.assert_allclose(limited["sensitivity"], np.sqrt(2.0))
    table = run("compare", *RATES, "--mechanisms", "identity,bsr:4")
    assert "RMSE" in table and "\nbsr:4 " in table
    # The table has a row for each pair of a sampling and a mechanism.
    use = ["compare", *BUDGET, *DATA, "--sampling", "cyclic-poisson,fixed-order"]
    several = json_of(*use, "--mechanisms", "bsr:4,bsr:2")
    assert [r["mechanism"] for r in several] == ["bsr:4", "bsr:2"] * 2
    assert several[0]["is_rough"]
    assert [r["sampling"] for r in several[1:3]] == ["cyclic-poisson", "fixed-order"]


def test_advice_is_that_of_python(run, json_of):
    advice = tf_bandmf.advise(
        num_examples=1000,
        num_parameters=400,
        epsilon=4.0,
        delta=1e-5,
        epochs=4,
        sampling="fixed-order",
        mechanism="bisr:16",
    )
    assert str(advice) in run(*ADVISE)
    assert json_of(*ADVISE)["batch_size"] == advice.batch_size


def test_without_arguments_it_shows_its_commands(run):
    lines = run(code=2).splitlines()
    assert any(line.split()[:1] == ["compare"] for line in lines)
