"""The marker `slow_cases`: cases of a parametrized test that are slow, by their ids.

@pytest.mark.slow_cases("adam", "bsr-*")
@pytest.mark.parametrize("name", ["sgd", "adam", "bsr-2", "bsr-4"])
def test_it(name): ...
"""

import fnmatch

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        for marker in item.iter_markers("slow_cases"):
            if any(fnmatch.fnmatch(item.callspec.id, name) for name in marker.args):
                item.add_marker(pytest.mark.slow)
