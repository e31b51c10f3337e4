"""The cache of optimized strategies uses intact files, and ignores damaged ones."""

import numpy as np
import pytest

from tf_bandmf import workloads
from tf_bandmf.participation import MinSep
from tf_bandmf.strategies import cache, registry

WORKLOAD, PARTICIPATION = workloads.prefix_sum(24), MinSep(6, 4)


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "kept"))
    return tmp_path / "kept"


def build(bands=3, workload=WORKLOAD, name="toeplitz", **options):
    return registry.build_strategy(
        name, workload, PARTICIPATION, bands=bands, **options
    )


def built(monkeypatch):
    """Returns a list that grows by a key each time a strategy is stored."""
    calls, store = [], cache.store

    def counted(key, strategy):
        calls.append(key)
        store(key, strategy)

    monkeypatch.setattr(cache, "store", counted)
    return calls


def test_the_second_time_nothing_is_optimized(place, monkeypatch):
    calls = built(monkeypatch)
    first, second = build(), build()
    assert len(calls) == 1 and len(list(place.iterdir())) == 1
    np.testing.assert_array_equal(first.matrix.to_dense(), second.matrix.to_dense())
    assert first.diagnostics == second.diagnostics
    # For other arguments or another package version, the strategy is optimized again.
    build(bands=4)
    build(objective="max")
    build(workload=workloads.momentum_sgd(24, 0.5))
    monkeypatch.setattr(cache, "__version__", "another")
    build()
    assert len(calls) == 5


@pytest.mark.parametrize("damage", ["", "{}", "x" * 300])
def test_a_damaged_entry_is_ignored_and_replaced(place, damage):
    first = build()
    (entry,) = place.iterdir()
    whole = entry.read_text()
    entry.write_text(damage or whole.replace("1", "2", 1))
    again = build()
    np.testing.assert_array_equal(first.matrix.to_dense(), again.matrix.to_dense())
    assert cache.load(entry.name, WORKLOAD) is not None


def test_an_entry_under_another_name_is_ignored(place):
    build()
    (entry,) = place.iterdir()
    other = "0" * 64
    entry.rename(place / other)
    assert cache.load(other, WORKLOAD) is None
    assert cache.load("1" * 64, WORKLOAD) is None


def test_a_place_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("")
    monkeypatch.setenv(cache.VARIABLE, str(file))
    assert build().num_steps == 24


def test_closed_forms_are_not_kept(place):
    build(name="bisr")
    assert not place.exists()
    for off in ("off", "0", ""):
        assert _directory_with(off) is None


def _directory_with(value):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(cache.VARIABLE, value)
        return cache.directory()
