"""The rooms of the house are as few as promised, and the page names each folder."""

import re

import pytest
from modules import ROOT, module_at


def counter():
    return module_at("docs/count_house.py")


def test_keras_has_few_rooms_and_no_circle():
    count = counter()
    arrows = count.arrows_of(count.PACKAGE / "keras")
    assert len(arrows) <= 20
    assert max(count.floors_of(arrows).values()) <= 13
    assert 40 < sum(map(len, arrows.values())) <= 70


def test_a_circle_is_found():
    with pytest.raises(ValueError, match="a -> b -> a"):
        counter().floors_of({"a": {"b"}, "b": {"a"}})


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


def test_a_folder_above_its_ceiling_is_refused(tmp_path):
    count = counter()
    ceilings = {name: (2, 1) for name in count.CEILINGS}
    count.CEILINGS = ceilings
    code = '"""Words."""\n\n# More words.\nx = """\na\n"""\n'
    (tmp_path / "tf_bandmf" / "noise" / "inner").mkdir(parents=True)
    (tmp_path / "tf_bandmf" / "noise" / "inner" / "rows.py").write_text(code)
    (tmp_path / "tf_bandmf" / "workloads.py").write_text("x = 1\ny = 2\n")
    counts = count.counts_of(tmp_path)
    assert counts == {**dict.fromkeys(ceilings, 0), "noise": 3, "other": 2}
    (refusal,) = count.above_ceilings(counts)
    assert refusal == "noise: 3 code lines, 1 above the ceiling of 2."


def test_ceilings_only_go_down():
    count = counter()
    table = "\n".join(f'"{n}": ({t:_}, {r:_}),' for n, (t, r) in count.CEILINGS.items())
    higher = {name: today + 1 for name, (today, _) in count.CEILINGS.items()}
    assert count.lowered(table, higher) == table
    fewer = {**higher, "noise": 7}
    to_reach = count.CEILINGS["noise"][1]
    assert f'"noise": (7, {to_reach:_}),' in count.lowered(table, fewer)
