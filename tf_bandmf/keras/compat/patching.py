"""Replaces functions of other packages temporarily, and only for the calling thread.

A dispatcher takes the place of the function. In the thread that installed it, the
dispatcher calls the replacement. In all other threads, it calls what was in its place
before: the original function or an earlier dispatcher. If a dispatcher's context ends
while a later dispatcher is installed, the earlier one passes all calls on until the
later one is removed. So threads may leave their contexts in any order, and the original
function is restored at the end.

Tests that fail if this breaks: `tests/keras/compat/test_patching.py`.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_LOCK = threading.Lock()
_ABSENT = object()
# The dispatchers whose contexts ended while a later dispatcher was installed. Each maps
# to the function that it had replaced.
_DONE: dict[Any, Any] = {}


@contextlib.contextmanager
def patched(owner: Any, name: str, replacement: Callable[..., Any]) -> Iterator[None]:
    """Replaces a function, in this thread, until the context is left.

    Contexts may be nested: the innermost replacement is called, and gets the next outer
    replacement as its original function.

    Args:
      owner: a module, a class, an object, or a dictionary of functions.
      name: name of the attribute, or the key.
      replacement: called with the original function and then the call's arguments.
    """
    thread = threading.get_ident()
    with _LOCK:
        # If the owner inherits the function from its class, `before` is `_ABSENT`.
        before = _place(owner).get(name, _ABSENT)
        original = getattr(owner, name) if before is _ABSENT else before

        @functools.wraps(original)
        def dispatch(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == thread and dispatch not in _DONE:
                return replacement(original, *args, **kwargs)
            return original(*args, **kwargs)

        _put(owner, name, dispatch)
    try:
        yield
    finally:
        with _LOCK:
            if _place(owner)[name] is dispatch:
                while before in _DONE:
                    before = _DONE.pop(before)
                _put(owner, name, before)
            else:
                _DONE[dispatch] = before


@contextlib.contextmanager
def all_patched(
    replacements: Iterable[tuple[Any, str, Callable[..., Any]]],
) -> Iterator[None]:
    """Replaces several functions; each tuple has the arguments of `patched`."""
    with contextlib.ExitStack() as stack:
        for each in replacements:
            stack.enter_context(patched(*each))
        yield


def _place(owner: Any) -> Any:
    # `setattr` is not used for objects, because Keras tracks the attributes of a layer.
    return owner if isinstance(owner, dict) else vars(owner)


def _put(owner: Any, name: str, value: Any) -> None:
    if value is _ABSENT:
        delattr(owner, name)
    elif isinstance(owner, type):
        setattr(owner, name, value)
    else:
        _place(owner)[name] = value
