"""Checks the links of the built site without a network; `make docs` runs it.

    python docs/check_site.py docs/_build/html

Links within the site must lead to a file and, if they name one, to an anchor there.
External links must be well-formed `https` URLs, and arXiv links must contain an
identifier. `make linkcheck`, which needs a network, checks that external links work.

The site search must find the right page for each entry of `SUBJECTS`.
"""

from __future__ import annotations

import argparse
import html.parser
import json
import pathlib
import re
import sys
import urllib.parse

_HOST = re.compile(r"([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)+[a-z]{2,}")
_ARXIV = re.compile(r"/(abs|pdf)/(\d{2}(0[1-9]|1[0-2])\.\d{4,5}(v\d+)?|[a-z-]+/\d{7})")
# For each subject, as word stems in the search index: the page that the search must
# find.
SUBJECTS = {
    "earli stop": "private-metrics",
    "batchnorm": "models",
    "lora": "models",
    "kerastun": "recipes",
    "onnx": "recipes",
    "tflite": "recipes",
    "raggedtensor": "recipes",
    "pack": "recipes",
    "calibr": "recipes",
    "unfreez": "recipes",
    "steps_per_execut": "keras",
    "multi task": "loss",
    "class weight": "loss",
    "miss valu": "recipes",
    "muon": "recipes",
    "checkpoint": "keras",
    "mix precis": "keras",
    "multi gpu": "keras",
    "learn rate schedul": "choosing-budget",
    "fit privat": "start",
    "quickstart": "start",
}
# The `rel` values of <link> elements that only browsers follow.
_WITHOUT_FILE = ("data", "javascript", "mailto")


class Page(html.parser.HTMLParser):
    """Parses a page, and collects its anchors and links.

    Attributes:
      anchors: every `id` and `name`.
      links: every `href` and `src`, in document order.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collects the anchors and links of a tag."""
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.anchors.add(value)
            elif name in ("href", "src") and value:
                self.links.append(value)


def wrong_links(site: pathlib.Path) -> list[str]:
    """Returns a message for each broken link, with the page that contains the link."""
    pages = {
        path.resolve(): Page(path.read_text("utf-8"))
        for path in site.rglob("*.html")
        # `_static` contains templates of the theme.
        if "_static" not in path.parts
    }
    problems = []
    for path, page in sorted(pages.items()):
        for link in dict.fromkeys(page.links):
            wrong = _what_is_wrong(link, path, pages)
            if wrong is not None:
                problems.append(f"{path.relative_to(site.resolve())}: {link}: {wrong}")
    return problems


def _what_is_wrong(
    link: str, path: pathlib.Path, pages: dict[pathlib.Path, Page]
) -> str | None:
    try:
        parts = urllib.parse.urlsplit(link)
        host = parts.hostname
    except ValueError as error:
        return str(error)
    if parts.scheme in _WITHOUT_FILE:
        return None
    if parts.scheme or parts.netloc:
        return _what_is_wrong_outside(parts, host)
    name, anchor = (
        urllib.parse.unquote(parts.path),
        urllib.parse.unquote(parts.fragment),
    )
    target = (path.parent / name).resolve() if name else path
    if not target.exists():
        return "there is no such file"
    if anchor and target in pages and anchor not in pages[target].anchors:
        return "there is no such anchor"
    return None


def _what_is_wrong_outside(
    parts: urllib.parse.SplitResult, host: str | None
) -> str | None:
    if parts.scheme != "https":
        return "the scheme is not https"
    if host is None or not _HOST.fullmatch(host):
        return "the host is no public name"
    if re.search(r"[\s<>\"{}|\\^`]", parts.geturl()):
        return "it has characters that a URL cannot have"
    if host == "arxiv.org" and not _ARXIV.fullmatch(parts.path):
        return "this is no arXiv identifier"
    return None


def lost_subjects(index: str) -> list[str]:
    """Returns a message for each page that the search does not find by its subject."""
    search = json.loads(index[index.index("(") + 1 : index.rindex(")")])
    lost = []
    for subject, page in SUBJECTS.items():
        for stem in subject.split():
            hits = [search[key].get(stem, []) for key in ("terms", "titleterms")]
            places = [
                p for hit in hits for p in (hit if isinstance(hit, list) else [hit])
            ]
            if page not in {search["docnames"][place] for place in places}:
                lost.append(f"{page}: the search does not find it by {stem!r}")
    return lost


def main() -> None:
    """Checks the site; exits with 1 if a link is broken or the search misses a page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("site", type=pathlib.Path, help="folder of the built site")
    site = parser.parse_args().site
    index = (site / "searchindex.js").read_text("utf-8")
    problems = wrong_links(site) + lost_subjects(index)
    for line in problems:
        print(line, file=sys.stderr)
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
