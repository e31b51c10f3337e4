"""The report says what plan and measurement say, and nothing else."""

import dataclasses
import re

import pytest

import tf_bandmf
from tf_bandmf_federated import (
    MeasuredParticipation,
    OperatorStatements,
    measured_guarantee,
    write_report,
)

N = 12
AS_PLANNED = MeasuredParticipation(N, 30, 4, 3, 60)
BELOW = MeasuredParticipation(N, 30, 2, 3, 60)
# arXiv:2306.08153, App. K.1, and two of our own.
TITLES = [
    "DP setting",
    "Data accesses covered",
    "Mechanism output",
    "Unit of privacy",
    "Adjacency",
    "Type of accounting",
    "Accounting assumptions",
    "Formal DP statement",
    "Transparency and verifiability",
    "Mechanism",
    "Not covered",
]


def make_plan(**options):
    return tf_bandmf.plan(
        "banded:4",
        noise_multiplier=1.3,
        delta=1e-6,
        num_steps=N,
        sampling=tf_bandmf.MinSep(4, 3),
        l2_norm_clip=0.5,
        **options,
    )


PLAN = make_plan()


@pytest.fixture
def report(tmp_path):
    def text_of(*arguments, **options):
        write_report(tmp_path / "report.md", *arguments, **options)
        return (tmp_path / "report.md").read_text("utf-8")

    return text_of


def points(text):
    actual = re.findall(r"^(\d+)\. \*\*(.+?)\.\*\* (.+)$", text, re.MULTILINE)
    assert [int(number) for number, _, _ in actual] == list(range(1, len(actual) + 1))
    return {title: content for _, title, content in actual}


def table(text):
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    return {name: (planned, actual) for name, planned, actual in rows}


def numbers(text):
    """(rho, epsilon, delta) of each statement."""
    pattern = r"([\d.e-]+)-zCDP and \(epsilon = ([\d.e-]+), delta = ([\d.e-]+)\)-DP"
    return [tuple(map(float, actual)) for actual in re.findall(pattern, text)]


def test_has_the_eleven_points_in_order(report):
    assert list(points(report(PLAN, AS_PLANNED))) == TITLES


def test_numbers_are_those_of_the_accounting_and_never_less(report):
    text = report(PLAN, MeasuredParticipation(N, 30, 5, 2, 40))
    guarantee = measured_guarantee(PLAN, MeasuredParticipation(N, 30, 5, 2, 40))
    stated = numbers(points(text)["Formal DP statement"])
    expected = (guarantee.guarantee, guarantee.planned)
    for (rho, epsilon, delta), known in zip(stated, expected, strict=True):
        assert known.epsilon <= epsilon <= known.epsilon * (1 + 1e-5)
        assert known.zcdp_rho <= rho <= known.zcdp_rho * (1 + 1e-5)
        assert delta == 1e-6
    rows = table(text)
    assert rows["rounds"] == ("12", "12")
    assert rows["smallest separation of one device"] == ("4", "5")
    assert rows["most participations of one device"] == ("3", "2")
    epsilons = tuple(map(float, rows["epsilon at delta = 1e-06"]))
    assert epsilons == (stated[1][1], stated[0][1])
    rhos = tuple(map(float, rows["rho of zCDP"]))
    assert rhos == (stated[1][0], stated[0][0])


def test_mechanism_is_that_of_the_plan(report):
    actual = points(report(PLAN, AS_PLANNED))
    assert "banded:4 (bands=4" in actual["Mechanism"]
    assert "l2 norm 0.5" in actual["Mechanism"]
    assert f"deviation {PLAN.noise_stddev:.6g}" in actual["Mechanism"]
    assert PLAN.fingerprint in actual["Transparency and verifiability"]
    assert "30 devices took part" in actual["Data accesses covered"]
    assert "4 bands of the strategy" in actual["Mechanism"]
    inverse = tf_bandmf.plan(
        "lambda_cgd",
        noise_multiplier=1.0,
        delta=1e-6,
        num_steps=N,
        sampling=tf_bandmf.MinSep(4, 3),
    )
    assert "2 bands of its inverse" in report(inverse, AS_PLANNED)


def test_run_below_the_planned_separation_has_no_planned_guarantee(report):
    text = report(PLAN, BELOW)
    assert "does not keep the plan's participation" in text
    statement = points(text)["Formal DP statement"]
    assert len(numbers(statement)) == 1
    assert "The plan's guarantee does not hold" in statement
    assert "does not" not in points(report(PLAN, AS_PLANNED))["Formal DP statement"]


def test_exact_values_and_bounds_are_told_apart(report):
    def accounting(measured):
        return points(report(PLAN, measured))["Type of accounting"]

    assert "are exact for the worst record" in accounting(AS_PLANNED)
    assert "are exact for the worst record" in accounting(BELOW)
    every_round = MeasuredParticipation(N, 30, 1, N, 60)
    assert "proven upper bounds" in accounting(every_round)
    stopped = dataclasses.replace(AS_PLANNED, num_rounds=10)
    assert "not all rounds were run" in accounting(stopped)
    assert "10 of 12 planned rounds" in report(PLAN, stopped)


@pytest.mark.invariant(15)
def test_says_what_is_outside_the_guarantee(report):
    actual = points(report(PLAN, AS_PLANNED))
    outside = actual["Not covered"]
    for what in (
        "measured separation",
        "metrics",
        "hyper-parameters",
        "Floating-point",
    ):
        assert what in outside
    assumptions = actual["Accounting assumptions"]
    assert "at least 4 rounds apart" in assumptions and "more than 3" in assumptions
    assert "measured in the run" in assumptions
    once = MeasuredParticipation(N, 30, None, 1, 30)
    text = points(report(PLAN, once))["Accounting assumptions"]
    assert "No device took part twice" in text


def test_test_seed_is_no_privacy(report):
    text = report(dataclasses.replace(make_plan(), test_seed=1), AS_PLANNED)
    assert text.splitlines()[2].startswith("**NO PRIVACY.**")
    assert "NO PRIVACY" not in report(PLAN, AS_PLANNED)


def test_what_only_the_operator_knows_is_marked(report):
    silent = report(PLAN, AS_PLANNED)
    assert silent.count("not stated by the operator") == 5
    operator = OperatorStatements(
        released="The final model alone.",
        public_data="C4.",
        devices="One device per user.",
        enforcement="A timer on the device.",
        verifiability="At example.org.",
    )
    actual = points(report(PLAN, AS_PLANNED, operator=operator))
    said = {
        "Mechanism output": "Released, as the operator states: The final model alone.",
        "Data accesses covered": "Public data, as the operator states: C4.",
        "Unit of privacy": "as the operator states: One device per user.",
        "Accounting assumptions": "as the operator states: A timer on the device.",
        "Transparency and verifiability": "as the operator states: At example.org.",
    }
    for title, text in said.items():
        assert actual[title].endswith(text)


def test_writes_the_report(tmp_path):
    path = tmp_path / "report.md"
    actual = write_report(path, PLAN, BELOW, delta=1e-8)
    assert actual.guarantee == measured_guarantee(PLAN, BELOW, 1e-8).guarantee
    assert "delta = 1e-08" in path.read_text("utf-8")
    with pytest.raises(ValueError, match="no participation"):
        write_report(
            tmp_path / "none.md", PLAN, MeasuredParticipation(N, 0, None, 0, 0)
        )
    assert not (tmp_path / "none.md").exists()


def test_skipped_rounds_are_reported_and_counted(report):
    covered = "Data accesses covered"
    assert "skipped" not in points(report(PLAN, AS_PLANNED))[covered]
    skipped = dataclasses.replace(AS_PLANNED, skipped_rounds=(2, 7))
    text = report(PLAN, skipped)
    assert "2 of these rounds (counted from 0: 2, 7) were skipped" in text
    assert "no result of theirs was released" in points(text)[covered]
    assert table(text)["rounds without a result"] == ("0", "2")
    with pytest.raises(ValueError, match=r"skipped_rounds must be in \[0, 12\)"):
        dataclasses.replace(AS_PLANNED, skipped_rounds=(N,))
