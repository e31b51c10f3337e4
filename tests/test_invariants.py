"""The invariants in docs/guarantee.md agree with the tests that check them."""

import re

import marks
from modules import ROOT

MARKER = re.compile(
    r"^(?:@|pytestmark = )pytest\.mark\.invariant\(([\d, ]+)\)", re.MULTILINE
)


def listed_numbers():
    text = (ROOT / "docs" / "guarantee.md").read_text(encoding="utf-8")
    return [int(number) for number in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)]


def numbers_in_tests():
    folders = [ROOT / "tests", ROOT / "federated" / "tests"]
    actual = set()
    for path in (path for folder in folders for path in folder.rglob("test_*.py")):
        for numbers in MARKER.findall(path.read_text(encoding="utf-8")):
            actual.update(map(int, numbers.split(",")))
    return actual


def test_numbers_are_consecutive():
    assert listed_numbers() == list(marks.INVARIANTS)


def test_every_invariant_has_a_test_and_every_number_is_an_invariant():
    assert numbers_in_tests() == set(listed_numbers())
