"""Tests that tf_bandmf/keras has few internal imports, and docs/inside.md is complete."""

import re

from modules import ROOT, module_at


def counter():
    return module_at("docs/count_house.py")


def test_keras_has_few_rooms_and_no_circle():
    count = counter()
    arrows = count.arrows_of(count.PACKAGE / "keras")
    assert len(arrows) <= 20
    # The floor of a module is the length of its longest chain of imports. The public
    # files `__init__.py` and `extending.py` add two floors.
    assert max(count.floors_of(arrows).values()) <= 14
    assert 40 < sum(map(len, arrows.values())) <= 74


def test_the_page_names_every_folder():
    count = counter()
    folders = {
        path.relative_to(count.PACKAGE).as_posix()
        for path in count.PACKAGE.rglob("*")
        if path.is_dir() and path.name != "__pycache__"
    }
    assert folders == set(count.FOLDERS)
    text = count.PAGE.read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in text for name in count.FOLDERS)


def test_the_walk_through_a_step_names_what_exists():
    text, keras = counter().PAGE.read_text("utf-8"), counter().PACKAGE / "keras"
    roots = (ROOT, keras, keras / "clipping" / "independence")
    paths = re.findall(r"`([\w/]+\.py)`", text.partition("## Lines")[0])
    assert [p for p in paths if not any((root / p).exists() for root in roots)] == []
    rows = re.findall(r"^\| \d \| `(\S+)` \| (.*?) \|", text, re.M)
    names = [(path, n) for path, cell in rows for n in re.findall(r"`(\w+)`", cell)]
    assert len(names) > 10
    assert all(f"def {n}(" in (keras / path).read_text("utf-8") for path, n in names)
