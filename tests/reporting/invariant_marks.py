"""The marker `invariant`, and the option `--invariant`, which selects tests by it.

    @pytest.mark.invariant(5)
    def test_an_empty_batch_takes_a_noisy_step(): ...

`pytest --invariant 5` runs the tests of invariant 5, not those of 15 or 50. The option
can be given more than once.
"""

import pytest


def pytest_addoption(parser):
    parser.addoption(
        "--invariant",
        type=int,
        action="append",
        default=[],
        metavar="NUMBER",
        help="run only the tests of this invariant of docs/guarantee.md",
    )


def pytest_configure(config):
    config.addinivalue_line(
        "markers", "invariant(*numbers): holds these invariants of docs/guarantee.md"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    wanted = set(config.getoption("--invariant"))
    if not wanted:
        return
    held = [
        {number for marker in item.iter_markers("invariant") for number in marker.args}
        for item in items
    ]
    others = [item for item, numbers in zip(items, held) if not numbers & wanted]
    items[:] = [item for item, numbers in zip(items, held) if numbers & wanted]
    config.hook.pytest_deselected(items=others)
