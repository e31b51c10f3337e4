"""Runs the Python code blocks of the README and of the documentation pages.

The blocks of a page run in order, in one namespace. Each block counts as a new program,
so the library's record of earlier runs is cleared before each block. A block below the
line `<!-- excerpt -->` is not run, because it is a fragment or uses another library.
Sizes that are too large for a test are replaced by smaller ones.
"""

import re
import sys
import types

import pytest
from modules import ROOT

from tf_bandmf import participation
from tf_bandmf.strategies import registry

pytest.importorskip("keras", minversion="3.12")

import small_models

from tf_bandmf.keras.run import admission

BLOCK = re.compile(
    r"(?P<excerpt><!-- excerpt -->\n+)?^```python\n(?P<code>.*?)^```$", re.M | re.S
)
# For each page, text replacements that make its code faster. Each text to be replaced
# must occur on the page.
SMALLER = {
    "README.md": {"epochs=20": "epochs=1"},
    "docs/start.md": {"epochs=20": "epochs=1"},
    "docs/mechanisms.md": {
        "num_examples=60_000": "num_examples=600",
        "batch_size=512": "batch_size=60",
    },
}


def pages():
    files = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [
        str(path.relative_to(ROOT))
        for path in files
        if "_build" not in path.parts and "```python" in path.read_text("utf-8")
    ]


def blocks(page):
    text = (ROOT / page).read_text("utf-8")
    for match in BLOCK.finditer(text):
        if not match["excerpt"]:
            line = text[: match.start("code")].count("\n")
            yield line, match["code"]


def given():
    """Returns arrays and a model function that pages use without defining them."""
    x, y = small_models.examples(64)
    test = {"x_test": x[:20], "y_test": y[:20]}
    return {
        **{"x_train": x, "y_train": y, **test},
        "build_model": small_models.make_plain_model,
    }


def test_no_block_is_missed():
    for page in pages():
        text = (ROOT / page).read_text("utf-8")
        assert text.count("```python") == len(BLOCK.findall(text)), page
    assert len(pages()) > 5
    assert set(SMALLER) <= set(pages())


@pytest.fixture(autouse=True)
def same_registries():
    """Restores the registries after each test, because pages register new entries."""
    registries = (registry.FAMILIES, participation.PARTICIPATIONS, participation.NAMED)
    before = [dict(entries) for entries in registries]
    yield
    for entries, earlier in zip(registries, before):
        entries.clear()
        entries.update(earlier)


@pytest.mark.slow_cases(
    but=["docs/api/audit.md", "docs/guarantee.md", "docs/pitfalls.md"]
)
@pytest.mark.parametrize("page", [page for page in pages() if any(blocks(page))])
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch, capsys):
    if "sklearn" in (ROOT / page).read_text("utf-8"):
        pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("page_of_the_site")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    vars(module).update(given())
    smaller = dict(SMALLER.get(page, {}))
    replaced = set()
    for line, code in blocks(page):
        for old, new in smaller.items():
            replaced |= {old} if old in code else set()
            code = code.replace(old, new)
        admission.forget()
        # Empty lines before the code make tracebacks show the page's line numbers.
        exec(compile("\n" * line + code, page, "exec"), vars(module))
    admission.forget()
    assert replaced == set(smaller)
