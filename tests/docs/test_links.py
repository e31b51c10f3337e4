"""Links between files of the repository have existing targets."""

import re

import pytest
from modules import ROOT

LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.M)
FOLDERS = (".", "docs", "docs/api", "docs/notebooks", "federated", "benchmarks")
FOLDERS += ("benchmarks/utility", "benchmarks/accelerators")
FILES = [path for folder in FOLDERS for path in (ROOT / folder).glob("*.md")]
PAGES = sorted(str(path.relative_to(ROOT)) for path in FILES)


def anchors(text):
    """Returns the anchors that GitHub and MyST generate from headings."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
        for heading in HEADING.findall(text)
    }


def test_pages_are_few_and_short():
    assert {"README.md", "docs/index.md", "federated/README.md"} <= set(PAGES)
    lengths = [
        len(x.read_text("utf-8").split("\n")) for x in (ROOT / "docs").glob("*.md")
    ]
    assert 20 < len(lengths) <= 26 and max(lengths) <= 301


@pytest.mark.parametrize("page", PAGES)
def test_links_within_the_repository(page):
    path = ROOT / page
    for link in LINK.findall(path.read_text("utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (path.parent / name).resolve() if name else path
        assert target.exists(), f"{page} links to {link}"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target.read_text("utf-8")), f"{page}: {link}"
