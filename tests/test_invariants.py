"""The list of invariants agrees with the tests that check them."""

import ast
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[1]


def listed_numbers():
    text = (ROOT / "docs" / "guarantee.md").read_text(encoding="utf-8")
    return [int(number) for number in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)]


def numbers_of(function):
    """Returns the invariants that a test's markers `invariant` and `attack` name."""
    for marker in function.decorator_list:
        if not isinstance(marker, ast.Call):
            continue
        name = ast.unparse(marker.func)
        if name == "pytest.mark.invariant":
            yield from (ast.literal_eval(argument) for argument in marker.args)
        elif name == "pytest.mark.attack":
            for keyword in marker.keywords:
                if keyword.arg == "invariants":
                    yield from ast.literal_eval(keyword.value)


def numbers_in_tests():
    folders = [ROOT / "tests", ROOT / "federated" / "tests"]
    actual = set()
    for path in (path for folder in folders for path in folder.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                actual.update(numbers_of(node))
    return actual


def test_numbers_are_consecutive():
    assert listed_numbers() == list(range(1, len(listed_numbers()) + 1))


def test_every_invariant_has_a_test_and_every_number_is_an_invariant():
    assert numbers_in_tests() == set(listed_numbers())
