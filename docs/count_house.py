"""Counts code lines per folder, and the imports between the folders of `tf_bandmf.keras`.

    python docs/count_house.py            # prints what it counts
    python docs/count_house.py --write    # also writes the counts into docs/inside.md
    python docs/count_house.py --check    # fails if a folder is above its ceiling
    python docs/count_house.py --lower    # lowers the ceilings to the current counts
    python docs/count_house.py --trace    # prints the files and functions of one step

A room is a folder without subfolders, or a file next to folders. An arrow leads from a
room to a room that it imports. The floor of a room is the length of the longest path of
arrows that starts in the room.
"""

from __future__ import annotations

import argparse
import ast
import io
import pathlib
import re
import sys
import threading
import tokenize
import types

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "tf_bandmf"
PAGE = ROOT / "docs" / "inside.md"
BEGIN, END = "<!-- lines -->", "<!-- end of lines -->"
# The purpose of each folder, for the table in docs/inside.md, in the order of the map
# on that page.
FOLDERS = {
    "files": "configurations with arrays, and files that contain secrets",
    "matrices": "lower-triangular matrices that are banded or have a banded inverse",
    "analysis": "sensitivity and error, exact or as upper bounds",
    "accounting": "(ε, δ) of every sampler: simulations, proven bounds, calibration",
    "participation": "which examples take part in which steps",
    "optimize": "numerical optimization, with certificates",
    "strategies": "the families of mechanisms, and their registry",
    "noise": "keys, generators, noise vectors",
    "sampling": "batches as the accountant assumes them, from arrays or files on disk",
    "planning": "plans, statements, choice of mechanisms, advice, composition",
    "ledger": "privacy budgets of data sets, shared by many processes",
    "plots": "pictures",
    "audit": "lower bounds on ε",
    "cli": "the command line",
    "keras/compat": "access to the private parts of Keras and TensorFlow",
    "keras/clipping/independence": "follows the batch axis through Keras' operations",
    "keras/clipping/rules": "norms of gradients, one file per type of layer",
    "keras/clipping/factors": "gradients as products, norms with bounds on rounding errors",
    "keras/clipping/forward": "the recorded forward pass, which does not mix examples",
    "keras/clipping/tensors": "batches, variables, errors",
    "keras/clipping/losses": "each example's loss",
    "keras/clipping/sums": "the sum of clipped gradients, and the self-check",
    "keras/clipping": "all of `keras/clipping`",
    "keras/metrics": "private counts, metrics and evaluations",
    "keras/run": "one private run: key, programs, seal of the weights, second runs",
    "keras/optimizer": "the private optimizer",
    "keras/tables": "tables whose noise is drawn when their rows are read",
    "keras/resume": "private files",
    "keras/audit": "audits of runs",
    "keras/model": "`make_private`, the private step, the arguments of `fit`",
    "keras": "all of `keras`",
}

# For each folder: its ceiling, which is the maximum number of code lines, and the
# target. A ceiling only goes down: after a change that removes lines, run `--lower`. If
# a change needs more lines in one folder, lower another folder's ceiling by as many.
# "other" covers all files that are not in one of these folders.
CEILINGS = {
    "keras": (7_635, 7_000),
    "accounting": (2_038, 2_150),
    "planning": (2_171, 1_900),
    "strategies": (1_331, 1_600),
    "sampling": (1_413, 1_300),
    "noise": (1_045, 1_050),
    "optimize": (916, 1_000),
    "ledger": (640, 650),
    "matrices": (799, 850),
    "analysis": (542, 700),
    "cli": (346, 350),
    "participation": (521, 600),
    "audit": (466, 480),
    "plots": (190, 190),
    "files": (185, 190),
    "other": (218, 290),
    "federated": (2_988, 3_200),
    "tests": (21_991, 22_000),
    "benchmarks": (1_995, 2_000),
}
ELSEWHERE = {
    "other": ["tf_bandmf/*.py"],
    "federated": ["federated/tf_bandmf_federated/**/*.py"],
    "tests": ["tests/**/*.py", "federated/tests/**/*.py"],
    "benchmarks": ["benchmarks/**/*.py"],
}
LAYOUT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE),
    *(tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER),
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_lines(text: str) -> int:
    """Returns the code lines of a module, without blank lines, comments and docstrings."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            docstrings.update(range(docstring.lineno, docstring.end_lineno + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            code.update(range(token.start[0], token.end[0] + 1))
    return len(code - docstrings)


def lines_of(folder: pathlib.Path) -> tuple[int, int]:
    """Returns the number of lines in a folder, and the number of its code lines."""
    texts = [path.read_text(encoding="utf-8") for path in folder.rglob("*.py")]
    return sum(len(text.splitlines()) for text in texts), sum(map(code_lines, texts))


def counts_of(root: pathlib.Path) -> dict[str, int]:
    """Returns the number of code lines in each folder that `CEILINGS` limits."""
    counts = {}
    for name in CEILINGS:
        patterns = ELSEWHERE.get(name, [f"tf_bandmf/{name}/**/*.py"])
        files = {path for pattern in patterns for path in root.glob(pattern)}
        counts[name] = sum(code_lines(path.read_text("utf-8")) for path in files)
    return counts


def above_ceilings(counts: dict[str, int]) -> list[str]:
    """Returns a message for each folder with more code lines than its ceiling."""
    return [
        f"{name}: {count:,} code lines, {count - CEILINGS[name][0]:,} above the ceiling "
        f"of {CEILINGS[name][0]:,}."
        for name, count in counts.items()
        if count > CEILINGS[name][0]
    ]


def lowered(text: str, counts: dict[str, int]) -> str:
    """Returns the source of this file, with ceilings lowered to the current counts."""
    for name, (today, to_reach) in CEILINGS.items():
        row = rf'"{name}": \([\d_]+, [\d_]+\)'
        ceiling = f'"{name}": ({min(today, counts[name]):_}, {to_reach:_})'
        text, rows = re.subn(row, ceiling, text)
        assert rows == 1, name
    return text


def table() -> str:
    """Returns the rows of the table of folders in docs/inside.md."""
    rows = ["| folder | lines | code | for |", "|---|---|---|---|"]
    for name, purpose in FOLDERS.items():
        lines, code = lines_of(PACKAGE / name)
        rows.append(f"| `{name}` | {lines:,} | {code:,} | {purpose} |")
    lines, code = lines_of(PACKAGE)
    rows.append(f"| `tf_bandmf` | {lines:,} | {code:,} | |")
    return "\n".join(rows)


def room_of(path: pathlib.Path) -> str:
    """Returns a file's room: its folder or, if that has subfolders, the file itself."""
    folder = path.parent
    inner = [f for f in folder.iterdir() if f.is_dir() and f.name != "__pycache__"]
    place = path.with_suffix("") if inner else folder
    return place.relative_to(PACKAGE).as_posix()


def arrows_of(folder: pathlib.Path) -> dict[str, set[str]]:
    """Maps each room to the rooms that it imports at run time.

    A room is a folder without subfolders, or a file next to folders.
    """
    files = sorted(folder.rglob("*.py"))
    arrows: dict[str, set[str]] = {room_of(path): set() for path in files}
    for path in files:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in _run_time(tree):
            for name in _imported(node):
                target = _file_of(name)
                if target is not None and folder in target.parents:
                    arrows[room_of(path)].add(room_of(target))
    return {room: targets - {room} for room, targets in arrows.items()}


def _run_time(tree: ast.AST) -> list[ast.AST]:
    """Returns the import statements of a module, except those for type checking."""
    nodes: list[ast.AST] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            nodes.append(node)
        nodes += _run_time(node)
    return nodes


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    assert isinstance(node, ast.ImportFrom)
    return [f"{node.module}.{alias.name}" for alias in node.names]


def _file_of(name: str) -> pathlib.Path | None:
    """Returns the file of a module, or of the module that contains a name."""
    parts = name.split(".")
    for end in (len(parts), len(parts) - 1):
        place = ROOT.joinpath(*parts[:end])
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            if path.exists():
                return path
    return None


def floors_of(arrows: dict[str, set[str]]) -> dict[str, int]:
    """Maps each room to its floor, the number of rooms in its longest chain of imports.

    The chain starts with the room itself, so a room without imports is on floor 1.

    Raises:
      ValueError: if rooms have cyclic imports.
    """
    floors: dict[str, int] = {}

    def floor(room: str, way: tuple[str, ...] = ()) -> int:
        if room in way:
            raise ValueError(f"Imports are cyclic: {' -> '.join((*way, room))}.")
        if room not in floors:
            below = [floor(other, (*way, room)) for other in arrows[room]]
            floors[room] = 1 + max(below, default=0)
        return floors[room]

    for room in arrows:
        floor(room)
    return floors


def traced() -> str:
    """Lists the files and functions that `fit`, its preparation and two steps call."""
    # These imports are local because only this function needs Keras and the package.
    import keras
    import numpy as np

    import tf_bandmf
    import tf_bandmf.keras

    rng = np.random.default_rng(0)
    x, y = rng.random((480, 64), np.float32), rng.integers(0, 10, 480)
    sizes = {"num_examples": 480, "batch_size": 48, "epochs": 2}
    plan = tf_bandmf.plan("lambda_cgd:0.9", epsilon=8, delta=1e-4, **sizes)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(32, "relu"),
            keras.layers.Dense(10),
        ]
    )
    tf_bandmf.keras.make_private(model)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    inner = keras.optimizers.SGD(0.5)
    model.compile(tf_bandmf.keras.PrivateOptimizer(inner, plan), loss)
    fit: set[tuple[str, int]] = set()
    steps: list[set[tuple[str, int]]] = []
    running: list[types.FrameType] = []

    def profile(frame: types.FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(str(PACKAGE)):
            return
        if event == "call":
            fit.add((code.co_filename, code.co_firstlineno))
            if code.co_qualname in ("Programs.prepare", "Programs.step"):
                running.append(frame)
                steps.append(set())
            if running:
                steps[-1].add((code.co_filename, code.co_firstlineno))
        elif event == "return" and frame in running:
            running.remove(frame)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        model.fit(plan.batches(x, y), epochs=1, verbose=0)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return "\n".join(
        f"{name}: {len({path for path, _ in calls})} files, {len(calls)} functions"
        for name, calls in {
            "fit": fit,
            "the checks and traces before the first step": steps[0],
            "the first step": steps[1],
            "each further step": steps[2],
        }.items()
    )


def main() -> None:
    """Prints the counts, and with `--write` stores the line counts in docs/inside.md."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--lower", action="store_true")
    parser.add_argument("--trace", action="store_true")
    arguments = parser.parse_args()
    if arguments.check:
        above = above_ceilings(counts_of(ROOT))
        advice = [
            "Ceilings only go down. Remove this many code lines (docs/count_house.py)."
        ]
        sys.exit("\n".join(above + advice) if above else 0)
    if arguments.trace:
        print(traced())
        return
    if arguments.lower:
        source = pathlib.Path(__file__)
        text = lowered(source.read_text("utf-8"), counts_of(ROOT))
        source.write_text(text, encoding="utf-8")
        return
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
