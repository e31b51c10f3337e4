"""Replaces functions of other packages temporarily, and only for the calling thread.

A function is replaced once, by a dispatcher that calls the replacement of the current
thread; threads without a replacement get the original. The original is restored when
the last user is done, in whichever order the users leave.

Tests that fail if it breaks: `tests/keras/compat/test_patching.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

_LOCK = threading.Lock()
_ABSENT = object()


@dataclasses.dataclass
class _Installed:
    """A replaced function.

    Attributes:
      owner: the object with the function; kept alive, so that its id stays unique.
      before: the owner's own attribute of this name; `_ABSENT` if it was inherited.
      original: the original function.
      users: number of contexts, in all threads, in which the function is replaced.
    """

    owner: Any
    before: Any
    original: Callable[..., Any]
    users: int = 0


_INSTALLED: dict[tuple[int, str], _Installed] = {}


class _Replacements(threading.local):
    """The replacements of the current thread, by function; the innermost is last."""

    def __init__(self) -> None:
        self.stacks: dict[tuple[int, str], list[Callable[..., Any]]] = {}


_HERE = _Replacements()


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
    key = (id(owner), name)
    with _LOCK:
        installed = _INSTALLED.get(key)
        if installed is None:
            installed = _install(owner, name, key)
        installed.users += 1
    stack = _HERE.stacks.setdefault(key, [])
    on_top = functools.partial(replacement, stack[-1] if stack else installed.original)
    stack.append(functools.update_wrapper(on_top, installed.original))
    try:
        yield
    finally:
        stack.pop()
        if not stack:
            del _HERE.stacks[key]
        with _LOCK:
            installed.users -= 1
            if not installed.users:
                del _INSTALLED[key]
                _set(owner, name, installed.before)


def _install(owner: Any, name: str, key: tuple[int, str]) -> _Installed:
    if isinstance(owner, dict):
        before = original = owner[name]
    else:
        before, original = vars(owner).get(name, _ABSENT), getattr(owner, name)
        if before is _ABSENT and isinstance(owner, (types.ModuleType, type)):
            before = original

    @functools.wraps(original)
    def dispatch(*args: Any, **kwargs: Any) -> Any:
        stack = _HERE.stacks.get(key)
        if stack:
            return stack[-1](*args, **kwargs)
        return original(*args, **kwargs)

    _set(owner, name, dispatch)
    installed = _INSTALLED[key] = _Installed(owner, before, original)
    return installed


def _set(owner: Any, name: str, value: Any) -> None:
    if isinstance(owner, dict):
        owner[name] = value
    elif isinstance(owner, (types.ModuleType, type)):
        setattr(owner, name, value)
    elif value is _ABSENT:
        del vars(owner)[name]
    else:
        # `setattr` is not used, because Keras tracks the attributes of a layer.
        vars(owner)[name] = value
