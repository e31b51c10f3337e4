"""Counting in compiled programs, and the measurement for owners of devices."""

import json
import pathlib
import sys

import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "benchmarks" / "accelerators"


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


PROGRAM = """HloModule program

%double (p: f32[100]) -> f32[100] {
  %p = f32[100]{0} parameter(0)
  ROOT %a = f32[100]{0} add(%p, %p)
}

%update (whole: f32[10,100], part: f32[100], i: s32[]) -> f32[10,100] {
  %whole = f32[10,100]{1,0} parameter(0)
  %part = f32[100]{0} parameter(1)
  %i = s32[] parameter(2)
  %zero = s32[] constant(0)
  %row = f32[1,100]{1,0} bitcast(%part)
  ROOT %u = f32[10,100]{1,0} dynamic-update-slice(%whole, %row, %i, %zero)
}

%body (state: (s32[], f32[10,100], f32[100])) -> (s32[], f32[10,100], f32[100]) {
  %state = (s32[], f32[10,100]{1,0}, f32[100]{0}) parameter(0)
  %k = s32[] get-tuple-element(%state), index=0
  %w = f32[10,100]{1,0} get-tuple-element(%state), index=1
  %x = f32[100]{0} get-tuple-element(%state), index=2
  %n = f32[10,100]{1,0} fusion(%w, %x, %k), kind=kLoop, calls=%update
  ROOT %t = (s32[], f32[10,100]{1,0}, f32[100]{0}) tuple(%k, %n, %x)
}

%condition (state: (s32[], f32[10,100], f32[100])) -> pred[] {
  %state = (s32[], f32[10,100]{1,0}, f32[100]{0}) parameter(0)
  %k = s32[] get-tuple-element(%state), index=0
  %end = s32[] constant(10)
  ROOT %less = pred[] compare(%k, %end), direction=LT
}

ENTRY %main (x: f32[100], w: f32[10,100]) -> f32[10,100] {
  %x = f32[100]{0} parameter(0)
  %w = f32[10,100]{1,0} parameter(1)
  %y = f32[100]{0LAYOUT} fusion(%x), kind=kLoop, calls=%double
  %zero = s32[] constant(0)
  %t = (s32[], f32[10,100]{1,0}, f32[100]{0}) tuple(%zero, %w, %y)
  %l = (s32[], f32[10,100]{1,0}, f32[100]{0}) while(%t), condition=%condition, body=%body
  ROOT %r = f32[10,100]{1,0} get-tuple-element(%l), index=1
}
"""


def test_kernels_and_bytes_of_a_program_with_a_loop():
    import counting

    found = counting.count(PROGRAM.replace("LAYOUT", ""))
    # 400 bytes are read and written once; ten times a row is read and written in place,
    # with the number of the row. The 4,000 bytes are never moved as a whole.
    assert found == counting.Count(2, 2 * 400 + 10 * (2 * 400 + 4), True)


def test_what_stays_in_vector_memory_is_not_counted():
    import counting

    in_main = counting.count(PROGRAM.replace("LAYOUT", ""))
    found = counting.count(PROGRAM.replace("LAYOUT", ":T(128)S(1)"))
    assert in_main.bytes - found.bytes == 400


def test_a_loop_of_unknown_length_is_said_to_be_one():
    import counting

    text = PROGRAM.replace("LAYOUT", "").replace("constant(10)", "constant(true)")
    text = text.replace("%end = s32[]", "%end = pred[]")
    assert not counting.count(text).is_complete


def test_the_page_has_the_table_of_the_results():
    import table

    results = json.loads((FOLDER / "results" / "compiled.json").read_text("utf-8"))
    page = (FOLDER.parents[1] / "docs" / "accelerators.md").read_text("utf-8")
    assert f"{table.BEGIN}\n{table.table(results)}\n{table.END}" in page


def test_the_page_has_what_was_measured():
    import table

    files = sorted((FOLDER / "results" / "measured").glob("*.json"))
    results = [json.loads(path.read_text("utf-8")) for path in files]
    page = (FOLDER.parents[1] / "docs" / "accelerators.md").read_text("utf-8")
    begin, end = table.MEASURED
    assert f"{begin}\n{table.measured(results)}\n{end}" in page


@pytest.mark.slow
def test_one_command_measures_what_there_is(tmp_path, monkeypatch, capsys):
    import on_device

    path = tmp_path / "mine.json"
    arguments = ["--parameters", "5000", "--models", "mlp", "--rounds", "2"]
    arguments += ["--scales", "1"]
    monkeypatch.setattr(sys, "argv", ["on_device", "--results", str(path), *arguments])
    on_device.main()
    found = json.loads(path.read_text())
    assert found["device"] == "CPU"
    (noise,) = found["noise"]
    assert noise["ratio_to_independent"]["lambda_cgd"] > 0.0
    assert found["normals"]["philox"]["different_words"] == 0
    (steps,) = found["steps"]
    assert (steps["model"], steps["batch"]) == ("mlp", 256)
    assert steps["ratio_to_ordinary"]["ordinary"] == 1.0
    (epochs,) = found["epochs"]
    assert epochs["ratio_to_ordinary"]["lambda_cgd"] > 0.0
    assert found["placement"]["mlp"]["operations"]["CPU"] > 100
