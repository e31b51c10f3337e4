"""Tests that only `keras/compat/` uses private names of Keras and TensorFlow."""

import ast
import pathlib

from modules import ROOT

import tf_bandmf

PACKAGE = pathlib.Path(tf_bandmf.__file__).parent
DOOR = PACKAGE / "keras" / "compat"
MODULES = ("keras.src", "tensorflow.python", "tensorflow.core", "tensorflow.compiler")
# Files that must not import Keras, and therefore cannot use `keras/compat/`. The values
# say what each file looks up in private modules.
CORE = {
    "sampling/mapped.py": "which operations have state",
    "noise/devices.py": "whether noise is traced for XLA",
    "optimize/lbfgs.py": "the session settings for a compiled search",
}
NAMES = frozenset(
    """
    __internal__ _all_reduce_sum_gradients _call_has_training_arg
    _compile_loss _compile_metrics _distribute_strategy _distribution_strategy _embeddings
    _finalize_ema_values _flat_losses _flatten_layers _fn_kwargs _is_default _kernel
    _keras_history
    _keras_logits _keras_mask _learning_rate _loss_tracker _losses _maybe_symbolic_build
    _remat_mode _reshape_into_groups _swap_variables _symbolic_build _trainable_variables
    _user_loss _user_loss_weights _user_metrics _user_weighted_metrics _velocities
    _y_pred_build_structure _y_true_build_structure GLOBAL_CUSTOM_NAMES
    """.split()
)
# Names of objects whose attributes only `compat.patching` may replace.
PATCHED_OWNERS = ("tf", "keras", "backend", "layer", "callback")


def imported(path):
    """Yields the private modules that a file imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith(MODULES))
        elif isinstance(node, ast.ImportFrom):
            if (node.module or "").startswith(MODULES):
                yield node.module


def used(path):
    """Yields private names that a file uses, and attributes that it replaces."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            if node.attr in NAMES:
                yield node.attr
            if ast.unparse(node).startswith(MODULES):
                yield ast.unparse(node)
            if isinstance(node.ctx, ast.Store):
                owner = ast.unparse(node.value)
                if owner.split(".")[0] in PATCHED_OWNERS:
                    yield f"{owner}.{node.attr} ="
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value in NAMES:
                yield node.value
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if node.name in NAMES:
                yield node.name


def others(folder):
    """Maps relative paths to the files of a folder, except those of `keras/compat/`."""
    actual = [path for path in folder.rglob("*.py") if DOOR not in path.parents]
    return {path.relative_to(PACKAGE).as_posix(): path for path in actual}


def test_no_other_file_imports_private_modules():
    files = others(PACKAGE)
    assert len(files) > 200
    names = {name: sorted(imported(path)) for name, path in files.items()}
    assert {name for name, actual in names.items() if actual} == set(CORE)


def test_no_other_file_of_keras_uses_private_names():
    files = others(PACKAGE / "keras")
    assert len(files) > 80
    names = {name: sorted(set(used(path))) for name, path in files.items()}
    assert {k: v for k, v in names.items() if v} == {}


def test_each_file_of_the_door_says_what_tells_that_it_broke():
    for path in DOOR.glob("[!_]*.py"):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        assert "Tests that fail if this breaks:" in text, path.name
        named = [word.strip("`.,") for word in text.split() if "tests/" in word]
        assert all((ROOT / name).exists() for name in named), path.name
