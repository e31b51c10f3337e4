"""Configuration of the documentation site: `make docs` builds it.

Docstrings are written for readers of the source code: names in single backticks, code
as indented blocks, tables in Markdown. `to_rst` converts docstrings to the
reStructuredText that Sphinx reads.
"""

import os
import pathlib
import re
import sys

from docutils import nodes
from sphinx.transforms import SphinxTransform

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "federated")]
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

from tf_bandmf._version import __version__  # noqa: E402

project = "tf-bandmf"
author = "The tf-bandmf authors"
copyright = author
release = version = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx_copybutton",
]
exclude_patterns = ["_build"]
# Notebooks are stored with their outputs by `make notebooks`, so Sphinx does not run
# them.
nb_execution_mode = "off"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
# In docstrings, single backticks mark names in code.
default_role = "code"

# The federated package needs a separate environment; see federated/README.md.
autodoc_mock_imports = ["tensorflow_federated", "tensorflow_privacy"]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_default_options = {"members": True}
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"
python_maximum_signature_line_length = 80
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

html_theme = "pydata_sphinx_theme"
html_title = "tf-bandmf"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_search_scorer = str(ROOT / "docs" / "_static" / "scorer.js")
html_show_sourcelink = False
# These pages have no sibling pages, so they need no navigation sidebar.
html_sidebars = {name: [] for name in ("index", "keras", "recipes", "pitfalls")}
html_theme_options = {
    "navigation_depth": 2,
    "show_toc_level": 2,
    "header_links_before_dropdown": 7,
    "navbar_persistent": ["search-button"],
    "footer_start": ["copyright"],
    "footer_end": [],
}

_INDENTED = re.compile(r" {4,}\S")
# |g| is a norm here, not a reStructuredText substitution.
_NORM = re.compile(r"(?<![`\w])\|(\w+)\|")
_SECTION = re.compile(
    r"(Args|Attributes|Returns|Raises|Yields|Note|Notes|Example|Examples):$"
)


def to_rst(lines):
    """Converts Markdown's indented code and tables to reStructuredText's literal blocks."""
    result = []
    in_block, in_section = False, False
    for i, line in enumerate(lines):
        before = lines[i - 1] if i else ""
        if _SECTION.match(line):
            in_section = True
        starts_code = _INDENTED.match(line) and not before.strip() and not in_section
        starts_table = line.startswith("|") and not before.startswith("|")
        if not in_block and (starts_code or starts_table):
            result += ["", "::", ""]
            in_block = True
        elif in_block and line.strip() and not line.startswith((" ", "|")):
            result.append("")
            in_block = False
        if in_block and line.startswith("|"):
            line = f"    {line}"
        elif not in_block:
            line = _NORM.sub(r"\\|\1\\|", line)
        result.append(line)
    return result


class ArxivLinks(SphinxTransform):
    """Turns text like `arXiv:2405.13763` into links."""

    default_priority = 800
    identifier = re.compile(r"arXiv:(\d{4}\.\d{5})")

    def apply(self):
        for text in list(self.document.findall(nodes.Text)):
            inside = (nodes.literal, nodes.literal_block, nodes.reference)
            if isinstance(text.parent, inside) or not self.identifier.search(text):
                continue
            # The result of `split` alternates between other text and arXiv identifiers.
            parts = self.identifier.split(text)
            made = []
            for words, number in zip(parts[::2], [*parts[1::2], None]):
                made.append(nodes.Text(words))
                if number is not None:
                    address = f"https://arxiv.org/abs/{number}"
                    made.append(nodes.reference("", f"arXiv:{number}", refuri=address))
            text.parent.replace(text, [node for node in made if node.astext()])


def setup(app):
    app.add_transform(ArxivLinks)

    def convert(app, what, name, obj, options, lines):
        lines[:] = to_rst(lines)

    # The priority makes `convert` run before the napoleon extension.
    app.connect("autodoc-process-docstring", convert, priority=400)
    return {"parallel_read_safe": True}


# Settings of `make linkcheck`, which checks external links of pages and docstrings.
linkcheck_timeout = 20
linkcheck_retries = 2
linkcheck_anchors = False
