"""The marker `invariant`, and the option `--invariant` that selects by it.

    @pytest.mark.invariant(5)
    def test_an_empty_batch_takes_a_noisy_step(): ...

A test whose name begins with `test_invariant_5_` has the marker, too.
`pytest --invariant 5` runs those of invariant 5, and none of 15 or 50; it can be given
more than once.
"""

import re

import pytest

_NAME = re.compile(r"test_invariant_0*(\d+)_")


def pytest_addoption(parser):
    parser.addoption(
        "--invariant",
        type=int,
        action="append",
        default=[],
        metavar="NUMBER",
        help="run the tests of this invariant of docs/guarantee.md alone",
    )


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "invariant(*numbers): holds these invariants of docs/guarantee.md"
    )


def numbers_of(item):
    """The invariants that a collected test holds."""
    numbers = {n for marker in item.iter_markers("invariant") for n in marker.args}
    named = _NAME.match(item.name)
    return numbers | ({int(named[1])} if named else set())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    wanted = set(config.getoption("--invariant"))
    others = []
    for item in list(items):
        numbers = numbers_of(item)
        if numbers and item.get_closest_marker("invariant") is None:
            item.add_marker(pytest.mark.invariant(*sorted(numbers)))
        if wanted and not numbers & wanted:
            items.remove(item)
            others.append(item)
    if others:
        config.hook.pytest_deselected(items=others)
