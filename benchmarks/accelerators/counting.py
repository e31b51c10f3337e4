"""What a compiled program does with memory, counted from its text: kernels and bytes.

A kernel is what the entry computation, or the body of one of its loops, calls: fusions,
products, convolutions, copies, calls of libraries. Its bytes are those of its operands and
results in main memory. A slice that a kernel reads of an operand, or writes into it in
place, counts as the slice; what stays in a TPU's vector memory (`S(1)`) does not count.
Loops count as often as they run, if their condition says so.
"""

from __future__ import annotations

import dataclasses
import math
import re

_SIZES = {
    "pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2,
    "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8, "c64": 8, "c128": 16,
}  # fmt: skip
_ARRAY = re.compile(r"\b([a-z]+\d*)\[([\d,]*)\](\{[^}]*\})?")
_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_LINE = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*)$")
_OPERATION = re.compile(r"^(\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_SLICES = ("slice", "dynamic-slice")
_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "call",
    "after-all", "partition-id", "replica-id", "iota", "copy-done", "slice-done",
    "async-done", "opt-barrier", "conditional",
}  # fmt: skip


@dataclasses.dataclass
class _Operation:
    name: str
    shape: str
    kind: str
    operands: list[str]
    inside: str
    rest: str
    is_root: bool


@dataclasses.dataclass(frozen=True)
class Count:
    """Of one program.

    Attributes:
      kernels: each as often as it stands in the text, not as often as it runs.
      bytes: accessed in main memory, all kernels together.
      is_complete: False if a loop does not say how often it runs: then `bytes` counts it
        once.
    """

    kernels: int
    bytes: int
    is_complete: bool


def count(text: str) -> Count:
    """Of the optimized HLO of one module."""
    computations, entry = _parsed(text)

    def of(name: str) -> Count:
        kernels, total, complete = 0, 0, True
        operations = {operation.name: operation for operation in computations[name]}
        for operation in operations.values():
            for inner, times in _called(operation, computations):
                found = of(inner)
                kernels += found.kernels
                total += found.bytes * (times or 1)
                complete &= found.is_complete and times is not None
            if operation.kind in _FREE:
                continue
            moved = _moved(operation, operations, computations)
            kernels += moved > 0 or operation.kind in ("fusion", "custom-call")
            total += moved
        return Count(kernels, total, complete)

    return of(entry)


def _parsed(text: str) -> tuple[dict[str, list[_Operation]], str]:
    computations: dict[str, list[_Operation]] = {}
    entry = name = ""
    for line in text.splitlines():
        head = _HEAD.match(line)
        if head:
            name = head[2]
            computations[name] = []
            entry = name if head[1] else entry
            continue
        found = _LINE.match(line)
        operation = _OPERATION.match(found[3]) if found and name else None
        if found is None or operation is None:
            continue
        inside, _, rest = operation[3].partition(")")
        operands = re.findall(r"%([\w.\-]+)", inside)
        computations[name].append(
            _Operation(
                found[2],
                operation[1],
                operation[2],
                operands,
                inside,
                rest,
                bool(found[1]),
            )
        )
    return computations, entry


def _called(
    operation: _Operation, computations: dict[str, list[_Operation]]
) -> list[tuple[str, int | None]]:
    """Computations whose operations are kernels of their own, and how often they run."""
    if operation.kind == "while":
        body = re.search(r"body=%?([\w.\-]+)", operation.rest)
        condition = re.search(r"condition=%?([\w.\-]+)", operation.rest)
        assert body is not None and condition is not None
        return [(body[1], _trips(operation, computations[condition[1]]))]
    if operation.kind in ("call", "conditional"):
        names = re.findall(r"(?:to_apply|_computation)=%?([\w.\-]+)", operation.rest)
        return [(name, 1) for name in names]
    return []


def _trips(loop: _Operation, condition: list[_Operation]) -> int | None:
    stated = re.search(r'known_trip_count":\{"n":"(\d+)"', loop.rest)
    if stated:
        return int(stated[1])
    for operation in condition:
        if operation.kind == "constant" and operation.shape.startswith("s32[]"):
            return int(operation.inside)
    return None


def _moved(
    operation: _Operation,
    operations: dict[str, _Operation],
    computations: dict[str, list[_Operation]],
) -> int:
    if operation.kind == "custom-call" and "AllocateBuffer" in operation.rest:
        return 0
    if operation.kind == "dynamic-update-slice":
        return 2 * _bytes(operations[operation.operands[1]].shape)
    fused = re.search(r"calls=%?([\w.\-]+)", operation.rest)
    inside = computations[fused[1]] if fused and operation.kind == "fusion" else []
    by_name = {inner.name: inner for inner in inside}
    parameters = {i.name: i for i in inside if i.kind == "parameter"}
    total, in_place = 0, set()
    for root in (inner for inner in inside if inner.kind == "dynamic-update-slice"):
        written = by_name[root.operands[1]].shape
        target = _source(root.operands[0], by_name)
        if target in parameters:
            in_place.add(target)
            if _bytes(parameters[target].shape):
                total += _size(written)
    if not in_place:
        total += _bytes(operation.shape)
    of_number = {int(p.inside): p.name for p in parameters.values()}
    for number, name in enumerate(operation.operands):
        if name not in operations:
            continue
        whole = _bytes(operations[name].shape)
        if operation.kind in _SLICES:
            whole = min(whole, _size(operation.shape))
        inner_name = of_number.get(number)
        if inner_name in in_place:
            continue
        uses = [i for i in inside if inner_name in i.operands]
        if uses and all(use.kind in _SLICES for use in uses):
            whole = min(whole, sum(_size(use.shape) for use in uses))
        total += whole
    return total


def _source(name: str, by_name: dict[str, _Operation]) -> str:
    while name in by_name and by_name[name].kind in ("bitcast", "copy"):
        name = by_name[name].operands[0]
    return name


def _bytes(shape: str) -> int:
    """In main memory: without what is laid out for vector memory."""
    return sum(
        _array_size(dtype, sizes)
        for dtype, sizes, layout in _ARRAY.findall(shape)
        if "S(" not in layout
    )


def _size(shape: str) -> int:
    return sum(_array_size(dtype, sizes) for dtype, sizes, _ in _ARRAY.findall(shape))


def _array_size(dtype: str, sizes: str) -> int:
    return _SIZES.get(dtype, 0) * math.prod(int(s) for s in sizes.split(",") if s)
