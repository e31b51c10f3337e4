"""The rooms of the house are as few as promised, and the page names each folder."""

import importlib.util
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]


def counter():
    place = ROOT / "docs" / "count_house.py"
    spec = importlib.util.spec_from_file_location("count_house", place)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_keras_has_few_rooms_and_no_circle():
    count = counter()
    arrows = count.arrows_of(count.PACKAGE / "keras")
    assert len(arrows) <= 20
    assert max(count.floors_of(arrows).values()) <= 13
    assert 40 < sum(map(len, arrows.values())) <= 70


def test_a_circle_is_found():
    try:
        counter().floors_of({"a": {"b"}, "b": {"a"}})
    except ValueError as error:
        assert "a -> b -> a" in str(error)
    else:
        raise AssertionError


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
