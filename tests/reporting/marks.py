"""Implements the pytest markers `attack`, `invariant` and `slow_cases`.

    @pytest.mark.attack(
        "Secrets by value in a shared checkpoint",
        tried="Searches every file for key, buffer and seeds by value.",
        area="secrets",
    )
    @pytest.mark.invariant(10)
    def test_no_secret_is_shared(figure):
        ...
        figure("0 of 14 files")

Each test marked `attack` is a row of docs/what-was-attacked.md. The cases of a
parametrized test, and tests with the same title, share one row. The optional fixture
`figure` records a short text about the result. The text must not contain numbers that
change from run to run, such as times. The script `page.py` makes the page from files
that `pytest --junitxml` writes.

The marker `invariant` names the invariants of docs/guarantee.md that a test checks:
`pytest -m invariant_5` runs the tests of invariant 5.

The marker `slow_cases` marks cases of a parametrized test as slow, by their ids. With
`but`, it marks all other cases:

    @pytest.mark.slow_cases("adam", "bsr-*")
    @pytest.mark.slow_cases(but=["sgd", "bsr-2"])
    @pytest.mark.parametrize("name", ["sgd", "adam", "bsr-2", "bsr-4"])
    def test_it(name): ...
"""

import fnmatch
import json

import pytest

INVARIANTS = range(1, 21)
# The areas of attacks and their headings, in the order of docs/what-was-attacked.md.
AREAS = {
    "audit": "Audits: a lower bound on epsilon",
    "mutations": "Mechanisms that were broken on purpose",
    "noise": "Statistics of the noise",
    "inputs": "Records made to break clipping",
    "faults": "Faults: killed, full, damaged",
    "secrets": "Secrets in what is shared",
    "fuzz": "Hostile arguments and files",
    "load": "Load: steps, sizes, memory",
}


def row_of(title, *, tried, area):
    """Checks the arguments of the marker `attack`; returns them as a dictionary."""
    if area not in AREAS:
        raise ValueError(f"area must be one of {', '.join(AREAS)}, found {area!r}.")
    for text in (title, tried):
        if not text or "\n" in text or "|" in text:
            raise ValueError(f"A cell of a table must be one line, found {text!r}.")
    return {"title": title, "tried": tried, "area": area}


def is_slow(case, *names, but=()):
    """Returns whether `slow_cases` with these arguments marks the case as slow."""
    return any(fnmatch.fnmatch(case, name) for name in but or names) != bool(but)


def pytest_configure(config):
    for number in INVARIANTS:
        config.addinivalue_line("markers", f"invariant_{number}: from `invariant`")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        numbers = {n for mark in item.iter_markers("invariant") for n in mark.args}
        for number in numbers:
            item.add_marker(f"invariant_{number}")
        for mark in item.iter_markers("slow_cases"):
            if is_slow(item.callspec.id, *mark.args, **mark.kwargs):
                item.add_marker(pytest.mark.slow)
        mark = item.get_closest_marker("attack")
        if mark is not None:
            try:
                row = row_of(*mark.args, **mark.kwargs)
            except (TypeError, ValueError) as error:
                raise pytest.UsageError(f"{item.nodeid}: {error}") from None
            row |= {"test": item.nodeid.split("[")[0], "invariants": sorted(numbers)}
            item.user_properties.append(("attack", json.dumps(row)))


@pytest.fixture
def figure(request):
    """Returns a function that records a short text about the result of an attack."""

    def say(text):
        request.node.user_properties.append(("figure", str(text)))

    return say
