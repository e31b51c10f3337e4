"""The Shakespeare example runs on a short made-up text."""

import csv
import pathlib
import sys

import pytest

pytest.importorskip("tensorflow_federated")
EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"
sys.path.insert(0, str(EXAMPLES))

import shakespeare  # noqa: E402

WORDS = "the quick brown fox jumps over the lazy dog; Shall I? No!\n"


@pytest.fixture()
def text(tmp_path):
    speeches = [f"SPEAKER {i}:\n{WORDS * (3 + i)}" for i in range(6)]
    speeches += ["BRIEF:\nNo.", "SPEAKER 0:\n" + WORDS * 2, "a line without a name"]
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(speeches))
    return str(path)


@pytest.mark.slow
def test_the_example(text, tmp_path, capfd):
    out = tmp_path / "out"
    shakespeare.main(
        f"--data {text} --out {out} --rounds 2 --clients-per-round 2 --sequences 2 "
        f"--min-separation 2 --mechanisms tree banded --epsilon 50".split()
    )
    with open(out / "curves.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["mechanism"], row["round"]) for row in rows] == [
        (title, number)
        for title in ("TFF's tree aggregation", "banded MF")
        for number in "12"
    ]
    assert all(0 <= float(row["accuracy"]) <= 1 for row in rows)
    table = (out / "table.md").read_text()
    assert table.count("\n") == 4 and "| banded MF |" in table
    report = (out / "privacy-banded.md").read_text()
    assert "(epsilon = 50" in report and "2 of 2 planned" in report
    printed = capfd.readouterr().out
    assert "NO meaningful protection" in printed and "6 speakers" in printed
    actual = {path.name for path in out.iterdir()} - {"curves.png"}
    assert actual == {"curves.csv", "table.md", "privacy-banded.md"}
