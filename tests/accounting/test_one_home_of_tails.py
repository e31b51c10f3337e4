"""Accountants take probabilities of tails and intervals from `accounting/tails.py`."""

import ast
import pathlib

import tf_bandmf

PACKAGE = pathlib.Path(tf_bandmf.__file__).parent
DISTRIBUTIONS = {"ndtr", "ndtri", "erf", "erfc", "cdf", "sf"}


def calls(node):
    """Names of distribution functions that an expression calls."""
    return {
        name
        for call in ast.walk(node)
        if isinstance(call, ast.Call)
        for name in [getattr(call.func, "attr", getattr(call.func, "id", ""))]
        if name in DISTRIBUTIONS
    }


def forbidden(tree):
    actual = []
    for node in ast.walk(tree):
        name = ""
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in {"ndtr", "erf", "erfc"}:
            actual.append((node.lineno, name))
        if name == "diff" and any(calls(argument) for argument in node.args):
            actual.append((node.lineno, "diff of a distribution function"))
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):
            if calls(node.right):
                actual.append((node.lineno, "difference of a distribution function"))
    return actual


def test_no_home_in_the_rest_of_the_package():
    """Beside audits, whose numbers are lower bounds and p-values."""
    others = [path for path in PACKAGE.rglob("*.py") if "audit" not in path.parts]
    others += (PACKAGE.parent / "federated" / "tf_bandmf_federated").rglob("*.py")
    texts = {path: path.read_text() for path in others if path.name != "tails.py"}
    assert len(texts) > 200
    suspect = [p for p, text in texts.items() if any(d in text for d in DISTRIBUTIONS)]
    for path in suspect:
        assert forbidden(ast.parse(texts[path])) == [], path


def test_what_is_forbidden_is_found():
    code = "np.diff(ndtr(z))\n1 - stats.norm.cdf(z)\nspecial.ndtr(z)\na = b - c"
    lines = {line for line, _ in forbidden(ast.parse(code))}
    assert lines == {1, 2, 3}
