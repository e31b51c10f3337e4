"""Tests that patches affect only their own thread, and are removed after errors."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from tf_bandmf.keras.compat.patching import patched


def double(original, x):
    return 2 * original(x)


class Owner:
    def value(self, x):
        return x + 1


def test_an_error_sets_it_back():
    owner = Owner()
    with pytest.raises(KeyError), patched(owner, "value", double):
        raise KeyError
    assert owner.value(1) == 2 and not vars(owner)


def test_two_threads_have_each_its_own():
    """Asserts that each thread sees only its own patch, even after another one ends."""
    owner = Owner()
    first = patched(owner, "value", double)
    second = patched(owner, "value", lambda original, x: 0)
    pools = [ThreadPoolExecutor(1) for _ in range(2)]

    def seen():
        actual = [pool.submit(owner.value, 1).result() for pool in pools]
        return [*actual, owner.value(1)]

    pools[0].submit(first.__enter__).result()
    pools[1].submit(second.__enter__).result()
    assert seen() == [4, 0, 2]
    pools[0].submit(first.__exit__, None, None, None).result()
    assert seen() == [2, 0, 2]
    pools[1].submit(second.__exit__, None, None, None).result()
    assert seen() == [2, 2, 2] and not vars(owner)
