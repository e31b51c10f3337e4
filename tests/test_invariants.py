"""The list of invariants and the tests that bear their numbers agree."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[1]


def listed_numbers():
    text = (ROOT / "docs" / "invariants.md").read_text(encoding="utf-8")
    return [int(number) for number in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)]


def numbers_in_tests():
    folders = [ROOT / "tests", ROOT / "federated" / "tests"]
    files = [path for folder in folders for path in folder.rglob("test_*.py")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in files)
    return {int(n) for n in re.findall(r"^def test_invariant_(\d+)_", text, re.M)}


def test_numbers_are_consecutive():
    assert listed_numbers() == list(range(1, len(listed_numbers()) + 1))


def test_every_invariant_has_a_test_and_every_number_is_an_invariant():
    assert numbers_in_tests() == set(listed_numbers())
