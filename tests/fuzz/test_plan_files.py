"""A plan file is refused if anything in it was changed."""

import copy
import json

import numpy as np
import pytest
from hostile import limited
from small_plans import small_plan

import tf_bandmf

JUNK = [None, True, 0, -1, 0.5, 1e308, float("nan"), 10**30, "", "x", [], [1.0], {}]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Saves a plan that has arrays and a reserved part of its budget."""
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    plan = small_plan(
        "bsr:2",
        40,
        10,
        2,
        epsilon=2.0,
        workload=tf_bandmf.workloads.prefix_sum(8, np.linspace(1.0, 0.3, 8)),
    )
    plan.reserve(counts=0.02, metrics=0.1, evaluations=8).save(path)
    return path


def places(value, path=()):
    """Yields each value's path in a JSON document, as a tuple of keys and indices."""
    if path:
        yield path
    items = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, item in items:
        yield from places(item, (*path, key))


def changed(content, path, change):
    content = copy.deepcopy(content)
    parent = content
    for key in path[:-1]:
        parent = parent[key]
    change(parent, path[-1])
    return content


def mutations(content):
    for path in places(content):
        for junk in JUNK:
            yield changed(content, path, lambda p, k, junk=junk: p.__setitem__(k, junk))
        yield changed(content, path, lambda p, k: p.pop(k))
        if isinstance(path[-1], str):
            yield changed(content, path, lambda p, k: p.__setitem__(k + "_", p.pop(k)))


@pytest.mark.attack(
    "Changed plan files",
    tried="Each value of a plan file is replaced by each of 13 others, or is removed, "
    "or its key is renamed.",
    area="fuzz",
)
@pytest.mark.invariant(11)
def test_a_changed_plan_is_refused(saved, tmp_path, figure):
    path, content = tmp_path / "plan.json", json.loads(saved.read_text())
    fingerprint, tried = tf_bandmf.Plan.load(saved).fingerprint, 0
    for mutation in mutations(content):
        path.write_text(json.dumps(mutation))
        tried += 1
        try:
            with limited():
                plan = tf_bandmf.Plan.load(path)
        except (ValueError, FileNotFoundError) as error:
            assert str(path.with_suffix("")) in str(error), error
        else:
            # Some changes do not affect the plan, such as 1 instead of 1.0 or a renamed
            # key of the diagnostics.
            assert plan.fingerprint == fingerprint
    figure(f"{tried} changes")
    assert tried > 500
