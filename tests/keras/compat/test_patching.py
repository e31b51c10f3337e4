"""Replaced functions: counted, in one thread only, and set back whoever is last."""

import threading
import types

import keras
import numpy as np
import pytest

from tf_bandmf.keras.compat import fixed_draws
from tf_bandmf.keras.compat.patching import patched


def double(original, x):
    return 2 * original(x)


class Owner:
    def value(self, x):
        return x + 1


def owners():
    module = types.ModuleType("module")
    module.value = lambda x: x + 1
    subclass = type("Subclass", (Owner,), {})
    return {
        "module": (module, lambda: module.value(1)),
        "dictionary": (
            (table := {"value": lambda x: x + 1}),
            lambda: table["value"](1),
        ),
        "object": ((thing := Owner()), lambda: thing.value(1)),
        "class": (subclass, lambda: subclass().value(1)),
    }


def double_method(original, self, x):
    return 2 * original(self, x)


@pytest.mark.parametrize("kind", owners())
def test_a_function_is_replaced_and_set_back(kind):
    owner, call = owners()[kind]
    before = dict(owner if kind == "dictionary" else vars(owner))
    replacement = double_method if kind == "class" else double
    with patched(owner, "value", replacement):
        assert call() == 4
        with patched(owner, "value", lambda original, *args: 0):
            assert call() == 0
        with patched(owner, "value", replacement, on_top=True):
            assert call() == 8
        assert call() == 4
    assert call() == 2
    after = dict(owner if kind == "dictionary" else vars(owner))
    after.pop("value", None) if kind == "class" else None
    before.pop("value", None) if kind == "class" else None
    assert after == before


def test_an_error_sets_it_back():
    owner = Owner()
    with pytest.raises(KeyError), patched(owner, "value", double):
        raise KeyError
    assert owner.value(1) == 2 and not vars(owner)


def in_turn(first, second):
    """Enters two contexts in two threads, and leaves them in the order of entering.

    Returns what each thread saw: within its own context, and after it.
    """
    seen, turns = {}, [threading.Event() for _ in range(3)]

    def one(make, look):
        with make():
            turns[0].set()
            assert turns[1].wait(300)
            seen["first within"] = look()
        seen["first after"] = look()
        turns[2].set()

    def other(make, look):
        assert turns[0].wait(300)
        with make():
            turns[1].set()
            assert turns[2].wait(300)
            seen["second within"] = look()
        seen["second after"] = look()

    threads = [
        threading.Thread(target=one, args=first),
        threading.Thread(target=other, args=second),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    return seen


def test_two_threads_have_each_its_own():
    owner = Owner()
    seen = in_turn(
        (lambda: patched(owner, "value", double), lambda: owner.value(1)),
        (
            lambda: patched(owner, "value", lambda original, x: 0),
            lambda: owner.value(1),
        ),
    )
    assert seen == {
        "first within": 4,
        "first after": 2,
        "second within": 0,
        "second after": 2,
    }
    assert not vars(owner)


def test_two_self_checks_at_once_leave_keras_random_as_it_was():
    make = fixed_draws.without_randomness
    generator = keras.random.SeedGenerator(0)

    def drawn():
        draws = [keras.random.normal([3], seed=generator).numpy() for _ in range(2)]
        return bool(np.any(draws[0] != draws[1]))

    seen = in_turn((make, drawn), (make, drawn))
    assert seen == {
        "first within": False,
        "first after": True,
        "second within": False,
        "second after": True,
    }
    assert drawn()
