"""The check of the built site finds links and subjects that lead nowhere."""

import json

import pytest
from modules import module_at

check_site = module_at("docs/check_site.py")


@pytest.fixture
def wrong(tmp_path):
    (tmp_path / "api").mkdir()
    (tmp_path / "picture.png").write_bytes(b"")
    (tmp_path / "other.html").write_text('<h2 id="here">a</h2>', "utf-8")

    def check(link, tag='<a href="{}">b</a>'):
        page = '<p id="own">c</p>' + tag.format(link)
        (tmp_path / "api" / "page.html").write_text(page, "utf-8")
        return check_site.wrong_links(tmp_path)

    return check


@pytest.mark.parametrize(
    "link",
    [
        "../other.html",
        "../other.html#here",
        "#own",
        "",
        "../picture.png?v=1",
        "https://arxiv.org/abs/2405.13763",
        "https://example.org/a%20b#c",
        "mailto:someone@example.org",
    ],
)
def test_links_that_lead_somewhere(wrong, link):
    assert wrong(link) == []


@pytest.mark.parametrize(
    "link, message",
    [
        ("../missing.html", "no such file"),
        ("../other.html#there", "no such anchor"),
        ("#here", "no such anchor"),
        ("http://example.org", "not https"),
        ("https://localhost:8000/a", "no public name"),
        ("https://exa mple.org/", "no public name"),
        ("https://example.org/a b", "cannot have"),
        ("https://arxiv.org/abs/2413.13763", "no arXiv identifier"),
        ("https://[bad", "Invalid IPv6"),
    ],
)
def test_links_that_lead_nowhere(wrong, link, message):
    (line,) = wrong(link)
    assert line.startswith("api/page.html: ") and message in line


def test_pictures_are_links(wrong):
    assert wrong("../picture.png", '<img src="{}">') == []
    assert len(wrong("../none.png", '<img src="{}">')) == 1


def test_a_subject_that_the_search_does_not_find():
    pages = sorted(set(check_site.SUBJECTS.values()))
    stems = " ".join(check_site.SUBJECTS).split()
    everywhere = {stem: list(range(len(pages))) for stem in stems}
    index = {"docnames": pages, "terms": everywhere, "titleterms": {}}
    assert check_site.lost_subjects(f"Search.setIndex({json.dumps(index)})") == []
    index["terms"] = {**everywhere, "onnx": pages.index("models")}
    (line,) = check_site.lost_subjects(f"Search.setIndex({json.dumps(index)})")
    assert line == "recipes: the search does not find it by 'onnx'"
