"""Mechanisms that are broken on purpose: each is caught by an audit or a named test.

A mutation changes one function of the package. The same check holds for the code as it
is, and fails with the mutation, with the message that is named: so the check can fail, and
does for the reason that it should.
"""

import contextlib
import pathlib
import sys

import numpy as np
import pytest
import tensorflow as tf

pytest.importorskip("keras", minversion="3.12")
sys.path.append(str(pathlib.Path(__file__).parent))

import mechanism_checks as checks
import mutations

# How broken code is caught: a check fails, or the library refuses to go on.
CAUGHT = (
    AssertionError,
    ValueError,
    tf.errors.InvalidArgumentError,
    pytest.fail.Exception,  # of a test that expects an error
)


@contextlib.contextmanager
def mutated(mutation):
    with pytest.MonkeyPatch.context() as patch:
        checks.forget()
        mutation.apply(patch)
        yield
    checks.forget()


def parameters():
    for mutation in mutations.ALL:
        attack = pytest.mark.attack(
            mutation.title,
            tried="Changes the code and runs the check that must notice.",
            area="mutations",
            invariants=mutation.invariants,
        )
        slow = [] if mutation.is_fast else [pytest.mark.slow]
        yield pytest.param(mutation, id=mutation.apply.__name__, marks=[attack, *slow])


@pytest.mark.slow_cases("shuffled_for_poisson")
@pytest.mark.parametrize("mutation", list(parameters()))
def test_it_is_caught(mutation, figure):
    with (
        mutated(mutation),
        pytest.raises(CAUGHT, match=mutation.message or None) as caught,
    ):
        mutation.check()
    del caught
    figure(f"caught by {mutation.by}")


def sound():
    """Each check once; those of fast mutations in the default suite."""
    fast = {m.check_name for m in mutations.ALL if m.is_fast}
    for name, check in {m.check_name: m.check for m in mutations.ALL}.items():
        slow = [] if name in fast else [pytest.mark.slow]
        yield pytest.param(check, id=name, marks=slow)


@pytest.mark.parametrize("check", list(sound()))
def test_the_code_as_it_is_passes_the_same_check(check):
    checks.forget()
    check()
    checks.forget()


def test_there_are_at_least_twenty():
    assert len(mutations.ALL) >= 20
    assert len({m.title for m in mutations.ALL}) == len(mutations.ALL)
    assert np.sum([m.is_fast for m in mutations.ALL]) >= 5
