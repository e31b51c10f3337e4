"""Every paper that is cited by its arXiv id is listed in docs/references.md."""

import re

from modules import ROOT

ARXIV_ID = re.compile(r"arXiv:(\d{4}\.\d{4,5})")


def test_every_cited_arxiv_id_is_listed_once():
    page = (ROOT / "docs" / "references.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| arXiv:(\S+) \|", page, re.MULTILINE)
    assert len(rows) == len(set(rows)) > 10
    folders = ["tf_bandmf", "federated/tf_bandmf_federated", "benchmarks", "examples"]
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    cited = {
        (number, path.name)
        for path in files
        for number in ARXIV_ID.findall(path.read_text(encoding="utf-8"))
    }
    assert len(cited) > 40
    assert {(number, name) for number, name in cited if number not in rows} == set()
