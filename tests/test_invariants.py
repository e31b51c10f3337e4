"""The list of invariants and the tests that hold them agree."""

import ast
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
_NO_OTHERS = "PYTEST_DISABLE_PLUGIN_AUTOLOAD"
MARKS = ROOT / "tests" / "reporting"


def listed_numbers():
    text = (ROOT / "docs" / "guarantee.md").read_text(encoding="utf-8")
    return [int(number) for number in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)]


def numbers_of(function):
    """What a test's name and its markers say: invariant(...) and attack(invariants=...)."""
    named = re.match(r"test_invariant_(\d+)_", function.name)
    if named:
        yield int(named[1])
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


@pytest.mark.parametrize(
    ("number", "names"),
    [
        (1, ["test_invariant_01_old", "test_marked", "test_two[0]", "test_two[1]"]),
        (5, ["test_two[0]", "test_two[1]"]),
        (10, ["test_invariant_10_new"]),
        (2, []),
    ],
)
def test_a_number_selects_its_own_tests_and_no_others(number, names, tmp_path):
    (tmp_path / "test_some.py").write_text(
        "import pytest\n"
        "def test_invariant_01_old(): pass\n"
        "def test_invariant_10_new(): pass\n"
        "@pytest.mark.invariant(1)\n"
        "def test_marked(): pass\n"
        "@pytest.mark.invariant(1, 5)\n"
        "@pytest.mark.parametrize('x', [0, 1])\n"
        "def test_two(x): pass\n"
        "def test_plain(): pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p"]
    command += ["invariant_marks", "--strict-markers", f"--invariant={number}"]
    actual = subprocess.run(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(MARKS), _NO_OTHERS: "1"},
        capture_output=True,
        text=True,
    )
    lines = [line.partition("::")[2] for line in actual.stdout.splitlines()]
    assert sorted(filter(None, lines)) == sorted(names), actual.stdout + actual.stderr
