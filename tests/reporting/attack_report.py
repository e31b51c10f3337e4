"""Collects the results of tests marked `attack`, for docs/what-was-attacked.md.

    @pytest.mark.attack(
        "Secrets by value in a shared checkpoint",
        tried="Searches every file for key, buffer and seeds by value.",
        area="secrets",
        invariants=[10],
    )
    def test_no_secret_is_shared(figure):
        ...
        figure("0 of 14 files")

Each such test, in any folder, is a row of docs/what-was-attacked.md. The cases of a
parametrized test, and tests with the same title, share one row. The optional fixture
`figure` records a result in a few words, without numbers that differ from run to run,
such as a time. The row of a skipped test says why it did not run.

`pytest -m attack --attacks=FILE` writes the results to FILE, as JSON; `page.py` makes
the page from such files.
"""

import json
import pathlib

import pytest

# The areas, in the order of the page.
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


def attack(title, *, tried, area, invariants=()):
    """Checks the arguments of the marker `attack`, and returns them."""
    if area not in AREAS:
        raise ValueError(f"area must be one of {', '.join(AREAS)}, found {area!r}.")
    for text in (title, tried):
        if not text or "\n" in text or "|" in text:
            raise ValueError(f"A cell of a table must be one line, found {text!r}.")
    return {
        "title": title,
        "tried": tried,
        "area": area,
        "invariants": sorted(invariants),
    }


def pytest_addoption(parser):
    parser.addoption("--attacks", help="write the results of the attacks to this file")


def pytest_configure(config):
    config.addinivalue_line(
        "markers",
        "attack(title, tried, area, invariants=()): a row of docs/what-was-attacked.md",
    )
    if config.getoption("--attacks") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Collector(config.getoption("--attacks")))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        marker = item.get_closest_marker("attack")
        if marker is not None:
            try:
                row = attack(*marker.args, **marker.kwargs)
            except (TypeError, ValueError) as error:
                raise pytest.UsageError(f"{item.nodeid}: {error}") from None
            test = item.nodeid.split("[")[0]
            item.user_properties.append(("attack", {**row, "test": test}))


@pytest.fixture
def figure(request):
    """Returns a function that records an attack's result, the same in every run."""

    def say(text):
        request.node.user_properties.append(("figure", str(text)))

    return say


class _Collector:
    """Writes the results to a file; under pytest-xdist, only in the main process."""

    def __init__(self, path):
        self._path = pathlib.Path(path)
        self._cases = {}

    def pytest_runtest_logreport(self, report):
        properties = dict(report.user_properties)
        if "attack" not in properties:
            return
        case = self._cases.setdefault(
            report.nodeid, {**properties["attack"], "figure": "", "outcome": "held"}
        )
        case["figure"] = properties.get("figure", case["figure"])
        if report.skipped:
            said = report.longrepr
            said = said[2] if isinstance(said, tuple) else str(said)
            case["outcome"] = f"not run: {said.removeprefix('Skipped: ')}"
        elif report.failed:
            case["outcome"] = "BROKEN"

    def pytest_sessionfinish(self):
        self._path.parent.mkdir(parents=True, exist_ok=True)
        cases = [self._cases[key] for key in sorted(self._cases)]
        text = json.dumps(cases, indent=1, ensure_ascii=False)
        self._path.write_text(text + "\n", encoding="utf-8")
