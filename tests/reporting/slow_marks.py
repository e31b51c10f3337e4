"""The marker `slow_cases`: marks slow cases of a parametrized test by their ids.

@pytest.mark.slow_cases("adam", "bsr-*")
@pytest.mark.slow_cases(but=["sgd", "bsr-2"])
@pytest.mark.parametrize("name", ["sgd", "adam", "bsr-2", "bsr-4"])
def test_it(name): ...
"""

import fnmatch

import pytest


def _is_slow(case, *names, but=()):
    if but:
        return not any(fnmatch.fnmatch(case, name) for name in but)
    return any(fnmatch.fnmatch(case, name) for name in names)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    for item in items:
        for marker in item.iter_markers("slow_cases"):
            if _is_slow(item.callspec.id, *marker.args, **marker.kwargs):
                item.add_marker(pytest.mark.slow)
