"""Counts the house: lines by folder; rooms, floors and arrows of `tf_bandmf.keras`.

    python docs/count_house.py            # prints what it counts
    python docs/count_house.py --write    # and writes the lines into docs/inside.md

A room is a folder without folders in it, or a file beside folders. An arrow leads from a
room to one that it imports. A room's floor is the length of the longest way down from it.
"""

from __future__ import annotations

import argparse
import ast
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "tf_bandmf"
PAGE = ROOT / "docs" / "inside.md"
BEGIN, END = "<!-- lines -->", "<!-- end of lines -->"
# What each folder is for: the table of docs/inside.md, in the order of the map there.
FOLDERS = {
    "files": "configurations with arrays, files that hold secrets",
    "graphs": "what a graph of ours may contain, and walks through it",
    "matrices": "lower-triangular matrices that are banded or have such an inverse",
    "analysis": "sensitivity and error, exact or typed as bounds",
    "accounting": "(ε, δ) of every sampler: simulations, certain bounds, calibration",
    "participation": "who takes part when",
    "optimize": "numerical optimization, with certificates",
    "strategies": "the families of mechanisms, and their registry",
    "noise": "keys, generators, rows of noise",
    "sampling": "batches as the accountant assumes them, from arrays or disk",
    "planning": "plans, statements, choice, advice, composition",
    "ledger": "budgets of data sets that outlive a process",
    "plots": "pictures",
    "audit": "lower bounds on ε; tests of noise",
    "cli": "the command line",
    "keras/compat": "the insides of Keras and TensorFlow",
    "keras/clipping/independence": "that examples do not meet in a traced graph",
    "keras/clipping/proof": "that each example's loss is its own",
    "keras/clipping/rules": "norms of gradients, one file per kind of layer",
    "keras/clipping/factors": "gradients as products, norms with bounds on rounding",
    "keras/clipping/forward": "the recorded pass",
    "keras/clipping/tensors": "batches, variables, errors",
    "keras/clipping/losses": "each example's loss",
    "keras/clipping/sums": "the sum of clipped gradients, and the self-check",
    "keras/clipping": "all of it",
    "keras/run": "one private run: key, clock, seal, second runs",
    "keras/optimizer": "the private optimizer",
    "keras/resume": "private files",
    "keras/audit": "measurements on models",
    "keras/model": "`make_private`, the step, what `fit` is given",
    "keras": "all of it",
}


def code_of(path: pathlib.Path) -> tuple[int, int]:
    """Lines of a file, and those that are neither blank, comment nor docstring."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    other = {i for i, line in enumerate(lines, 1) if line.strip()[:1] in ("", "#")}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            if ast.get_docstring(node, clean=False) is not None:
                text_node = node.body[0]
                other.update(range(text_node.lineno, text_node.end_lineno + 1))
    return len(lines), len(lines) - len(other)


def lines_of(folder: pathlib.Path) -> tuple[int, int]:
    """Lines of all files in a folder, and those of code."""
    counts = [code_of(path) for path in folder.rglob("*.py")]
    return sum(lines for lines, _ in counts), sum(code for _, code in counts)


def table() -> str:
    """The rows of the page."""
    rows = ["| folder | lines | code | for |", "|---|---|---|---|"]
    for name, purpose in FOLDERS.items():
        lines, code = lines_of(PACKAGE / name)
        rows.append(f"| `{name}` | {lines:,} | {code:,} | {purpose} |")
    lines, code = lines_of(PACKAGE)
    rows.append(f"| `tf_bandmf` | {lines:,} | {code:,} | |")
    return "\n".join(rows)


def room_of(path: pathlib.Path) -> str:
    """The room of a file."""
    folder = path.parent
    inner = [f for f in folder.iterdir() if f.is_dir() and f.name != "__pycache__"]
    place = path.with_suffix("") if inner else folder
    return place.relative_to(PACKAGE).as_posix()


def arrows_of(folder: pathlib.Path) -> dict[str, set[str]]:
    """The rooms of a folder, and which of them each imports when it is run."""
    files = sorted(folder.rglob("*.py"))
    arrows: dict[str, set[str]] = {room_of(path): set() for path in files}
    for path in files:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in _run_time(tree):
            for name in _imported(node):
                target = _file_of(name)
                if target is not None and folder in target.parents:
                    arrows[room_of(path)].add(room_of(target))
    return {room: found - {room} for room, found in arrows.items()}


def _run_time(tree: ast.AST) -> list[ast.AST]:
    """Import statements, but for those of types."""
    found: list[ast.AST] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            found.append(node)
        found += _run_time(node)
    return found


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    assert isinstance(node, ast.ImportFrom)
    return [f"{node.module}.{alias.name}" for alias in node.names]


def _file_of(name: str) -> pathlib.Path | None:
    """The file of a module, or of the module of a name."""
    parts = name.split(".")
    for end in (len(parts), len(parts) - 1):
        place = ROOT.joinpath(*parts[:end])
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            if path.exists():
                return path
    return None


def floors_of(arrows: dict[str, set[str]]) -> dict[str, int]:
    """The floor of each room; the lowest is 1.

    Raises:
      ValueError: if rooms import one another in a circle.
    """
    floors: dict[str, int] = {}

    def floor(room: str, way: tuple[str, ...] = ()) -> int:
        if room in way:
            raise ValueError(f"A circle: {' -> '.join((*way, room))}.")
        if room not in floors:
            below = [floor(other, (*way, room)) for other in arrows[room]]
            floors[room] = 1 + max(below, default=0)
        return floors[room]

    for room in arrows:
        floor(room)
    return floors


def main() -> None:
    """Prints the counts, and writes those of lines."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    arrows = arrows_of(PACKAGE / "keras")
    floors = floors_of(arrows)
    print(table())
    for room in sorted(arrows, key=lambda room: (-floors[room], room)):
        print(f"{floors[room]:3} {room}: {', '.join(sorted(arrows[room]))}")
    number = sum(map(len, arrows.values()))
    print(f"{len(arrows)} rooms, {max(floors.values())} floors, {number} arrows")
    if arguments.write:
        text = PAGE.read_text(encoding="utf-8")
        before, rest = text.split(BEGIN)
        after = rest.split(END)[1]
        page = f"{before}{BEGIN}\n{table()}\n{END}{after}"
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
