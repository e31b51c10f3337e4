"""Whether a package defines a class or a function, by what it is and not what it says.

`__module__`, `__qualname__` and the file of a code object are what their author wrote
there. So a class or function is looked up where it says that it is, and code is compared
with the code of the module.

What tells that it broke: `tests/graphs/test_definitions.py`.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Collection, Iterator
from typing import Any

_CONTAINERS = (dict, list, tuple, set, frozenset)


def is_defined_by(part: Any, packages: Collection[str]) -> bool:
    """Whether a class, or a function, stands in a package under its own name.

    Args:
      part: of other objects, their class is asked about.
      packages: names of packages.
    """
    if not isinstance(part, (type, types.FunctionType)):
        part = type(part)
    name = part.__module__
    if not isinstance(name, str) or name.partition(".")[0] not in packages:
        return False
    found: Any = sys.modules.get(name)
    for step in part.__qualname__.split("."):
        owned = vars(found) if hasattr(found, "__dict__") else {}
        found = owned.get(step)
        found = getattr(found, "__func__", found)
    return found is part


def replaced_methods(instance: Any, packages: Collection[str]) -> list[str]:
    """Names of methods of its class that an object has others of, not by a package.

    Args:
      instance: the object.
      packages: names of packages, which may do so: Keras wraps `build`.
    """
    return sorted(
        name
        for name, own in getattr(instance, "__dict__", {}).items()
        if isinstance(getattr(type(instance), name, None), types.FunctionType)
        and not is_written_by(own, packages)
    )


def foreign_attributes(instance: Any, packages: Collection[str]) -> list[str]:
    """Names of attributes that hold what no package defines, within containers, too.

    Args:
      instance: the object; what its parts hold in turn is not looked at.
      packages: names of packages.
    """
    return sorted(
        name
        for name, value in getattr(instance, "__dict__", {}).items()
        if any(not _is_of(leaf, packages) for leaf in _leaves(value, set()))
    )


def _is_of(leaf: Any, packages: Collection[str]) -> bool:
    if isinstance(leaf, types.MethodType):
        leaf = leaf.__func__
    if isinstance(leaf, types.FunctionType):
        return is_written_by(leaf, packages)
    plain = leaf is None or isinstance(leaf, (types.BuiltinFunctionType, type(...)))
    return plain or is_defined_by(type(leaf), packages)


def _leaves(value: Any, seen: set[int]) -> Iterator[Any]:
    """A value; of a container also what is in it, and itself if it is no plain one."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, dict):
        for pair in value.items():
            yield from _leaves(pair[0], seen)
            yield from _leaves(pair[1], seen)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for part in value:
            yield from _leaves(part, seen)
    if type(value) not in _CONTAINERS:
        yield value


def is_written_by(function: Any, packages: Collection[str]) -> bool:
    """Whether a package has the code of a function, at any depth."""
    if not isinstance(function, types.FunctionType):
        return False
    name = function.__globals__.get("__name__")
    if not isinstance(name, str) or name.partition(".")[0] not in packages:
        return False
    module = sys.modules.get(name)
    return module is not None and is_code_of(function, module)


def is_code_of(function: Any, module: types.ModuleType) -> bool:
    """Whether a module has the code of a function, at any depth, with its own globals."""
    return (
        isinstance(function, types.FunctionType)
        and function.__globals__ is vars(module)
        and any(function.__code__ is code for code in _codes_of(module))
    )


@functools.cache
def _codes_of(module: types.ModuleType) -> tuple[types.CodeType, ...]:
    parts = list(vars(module).values())
    for kind in [part for part in parts if isinstance(part, type)]:
        if kind.__module__ == module.__name__:
            parts += vars(kind).values()
    pending = [function.__code__ for part in parts for function in _layers(part)]
    found: dict[int, types.CodeType] = {}
    while pending:
        code = pending.pop()
        if id(code) not in found:
            found[id(code)] = code
            pending += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    return tuple(found.values())


def _layers(part: Any) -> Iterator[types.FunctionType]:
    """A function, and those that its decorators have wrapped."""
    part = getattr(part, "__func__", getattr(part, "fget", part))
    while isinstance(part, types.FunctionType):
        yield part
        part = getattr(part, "__wrapped__", None)
