"""The report states only what follows from the plan and the measurement."""

import dataclasses
import re

import pytest
from plans import min_sep_plan

from tf_bandmf_federated import (
    MeasuredParticipation,
    measured_guarantee,
    write_report,
)

N = 12
AS_PLANNED = MeasuredParticipation(N, 30, 4, 3, 60)
BELOW = MeasuredParticipation(N, 30, 2, 3, 60)
# A report has these items. The last two are not required by arXiv:2306.08153, App. K.1.
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


PLAN = min_sep_plan(
    "banded:4", N, 4, 3, noise_multiplier=1.3, delta=1e-6, l2_norm_clip=0.5
)


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
    """Returns the (rho, epsilon, delta) of each DP statement in a text."""
    pattern = r"([\d.e-]+)-zCDP and \(epsilon = ([\d.e-]+), delta = ([\d.e-]+)\)-DP"
    return [tuple(map(float, actual)) for actual in re.findall(pattern, text)]


def test_numbers_are_those_of_the_accounting_and_never_less(report):
    measured = MeasuredParticipation(N, 30, 5, 2, 40)
    text, guarantee = report(PLAN, measured), measured_guarantee(PLAN, measured)
    assert list(points(text)) == TITLES
    stated = numbers(points(text)["Formal DP statement"])
    expected = (guarantee.guarantee, guarantee.planned)
    for (rho, epsilon, delta), exact in zip(stated, expected, strict=True):
        assert exact.epsilon <= epsilon <= exact.epsilon * (1 + 1e-5)
        assert exact.zcdp_rho <= rho <= exact.zcdp_rho * (1 + 1e-5)
        assert delta == 1e-6
    rows = table(text)
    assert rows["rounds"] == ("12", "12")
    assert rows["smallest separation of one device"] == ("4", "5")
    assert rows["most participations of one device"] == ("3", "2")
    for name, place in (("epsilon at delta = 1e-06", 1), ("rho of zCDP", 0)):
        actual = tuple(map(float, rows[name]))
        assert actual == (stated[1][place], stated[0][place])
    mechanism = points(text)["Mechanism"]
    assert "banded:4 (bands=4" in mechanism and "l2 norm 0.5" in mechanism
    assert f"deviation {PLAN.noise_stddev:.6g}" in mechanism
    assert PLAN.fingerprint in points(text)["Transparency and verifiability"]
    assert "30 devices took part" in points(text)["Data accesses covered"]


def test_run_below_the_planned_separation_has_no_planned_guarantee(report):
    text = report(PLAN, BELOW)
    assert "violates the plan's participation" in text
    statement = points(text)["Formal DP statement"]
    assert len(numbers(statement)) == 1
    assert "The plan's guarantee does not hold" in statement
    assert "does not" not in points(report(PLAN, AS_PLANNED))["Formal DP statement"]


EVERY_ROUND = MeasuredParticipation(N, 30, 1, N, 60)
STOPPED = dataclasses.replace(AS_PLANNED, num_rounds=10)


@pytest.mark.parametrize(
    "measured, said",
    [
        (AS_PLANNED, "are exact for the worst record"),
        (BELOW, "are exact for the worst record"),
        (EVERY_ROUND, "proven upper bounds"),
        (STOPPED, "not all rounds were run"),
    ],
)
def test_exact_values_and_bounds_are_told_apart(measured, said, report):
    assert said in points(report(PLAN, measured))["Type of accounting"]
    is_exact = measured_guarantee(PLAN, measured).guarantee.kind == "exact"
    assert is_exact == ("exact" in said)


@pytest.mark.invariant(15)
def test_says_what_is_assumed_and_what_is_outside_the_guarantee(report):
    actual = points(report(PLAN, AS_PLANNED))
    for what in ("separation", "metrics", "hyper-parameters", "Floating-point"):
        assert what in actual["Not covered"]
    assumptions = actual["Accounting assumptions"]
    assert "at least 4 rounds apart" in assumptions and "more than 3" in assumptions
    once = points(report(PLAN, MeasuredParticipation(N, 30, None, 1, 30)))
    assert "No device took part twice" in once["Accounting assumptions"]


def test_test_seed_is_no_privacy(report):
    text = report(dataclasses.replace(PLAN, test_seed=1), AS_PLANNED)
    assert text.splitlines()[2].startswith("**NO PRIVACY.**")
    assert "NO PRIVACY" not in report(PLAN, AS_PLANNED)


def test_nothing_is_written_of_a_run_in_which_nobody_took_part(tmp_path):
    with pytest.raises(ValueError, match="has no participations"):
        write_report(tmp_path / "a.md", PLAN, MeasuredParticipation(N, 0, None, 0, 0))
    assert not (tmp_path / "a.md").exists()


def test_skipped_rounds_are_reported_and_counted(report):
    assert "skipped" not in points(report(PLAN, AS_PLANNED))["Data accesses covered"]
    text = report(PLAN, dataclasses.replace(AS_PLANNED, skipped_rounds=(2, 7)))
    assert "2 of these rounds (counted from 0: 2, 7) were skipped" in text
    assert table(text)["rounds without a result"] == ("0", "2")
    with pytest.raises(ValueError, match=r"skipped_rounds must be rounds in \[0, 12\)"):
        dataclasses.replace(AS_PLANNED, skipped_rounds=(N,))
