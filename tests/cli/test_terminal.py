"""What the command line looks like: widths, progress, completion, log lines."""

import io
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

from tf_bandmf import cli
from tf_bandmf.cli.native_logs import without_native_logs
from tf_bandmf.cli.progress import Progress
from tf_bandmf.optimize.options import unasked_bars

COMPARE = ["compare", "--steps", "60", "--min-separation", "12"]
COMPARE += ["--mechanisms", "identity,bsr:4,lambda_cgd:0.9"]
PLAN = ["--epsilon", "4", "--delta", "1e-5", "--mechanism", "bisr:4"]
DATA = ["--examples", "1200", "--batch-size", "100", "--epochs", "5"]


def output(capsys, arguments):
    code = cli.main(arguments)
    captured = capsys.readouterr()
    assert code == 0, captured.err
    return captured.out


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140])
def test_a_table_fits_the_terminal_and_says_what_it_left_out(
    capsys, monkeypatch, width
):
    monkeypatch.setenv("COLUMNS", str(width))
    out = output(capsys, COMPARE)
    assert max(len(line) for line in out.split("\n")) <= width
    for name, rmse in (("identity", "12.3491"), ("bsr:4", "7.2829")):
        row = next(line for line in out.split("\n") if line.startswith(f" {name} "))
        assert rmse in row
    if width == 140:
        assert "Left out" not in out and "seconds" in out
        return
    table, _, left_out = out.partition("Left out at")
    left_out = " ".join(left_out.split())
    assert left_out.startswith(f"{width} columns: ")
    assert "--wide shows all" in left_out
    # No mechanism here has a gap: an empty column is the first to go.
    assert "optimality gap" in left_out and "optimality" not in table
    assert ("seconds" in left_out) == ("seconds" not in table)
    assert ("sensitivity" in left_out) == (width <= 60)


def test_the_page_on_the_command_line_shows_what_is_printed(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    root = pathlib.Path(__file__).resolve().parents[2]
    page = (root / "docs" / "command-line.md").read_text("utf-8")
    block = page[page.index("tf-bandmf compare --examples") :].split("```")
    arguments = block[0].replace("\\\n", " ").split()[1:]
    shown = block[2].removeprefix("text\n").rstrip().split("\n")
    out = output(capsys, arguments).rstrip().split("\n")
    assert [line.rstrip() for line in out] == shown


def test_wide_shows_all_columns(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    out = output(capsys, [*COMPARE, "--wide"])
    assert "seconds" in out and "Left out" not in out
    (row,) = [line for line in out.split("\n") if line.startswith(" bsr:4 ")]
    assert len(row) > 60


def test_a_pipe_gets_everything_in_one_line_a_row(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    out = output(capsys, COMPARE)
    _, headings, *rows = out.rstrip("\n").split("\n")
    for name in ("RMSE", "max SE", "sensitivity", "noise stddev", "memory vectors"):
        assert name in headings
    assert [row.split()[0] for row in rows] == ["identity", "bsr:4", "lambda_cgd:0.9"]


def test_headings_are_the_names_in_json(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    (record, *_) = json.loads(output(capsys, [*COMPARE, "--json"]))
    headings = output(capsys, COMPARE).split("\n")[1]
    for name in ("bands", "rmse", "max_se", "sensitivity", "noise_stddev", "seconds"):
        assert name in record
        assert name.replace("_", " ") in headings.lower()
    for name in ("optimality_gap", "memory_vectors", "regenerations_per_step"):
        assert name in record and name.replace("_", " ") in headings


def test_a_mechanism_has_one_name_in_table_and_statement(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    out = output(capsys, ["plan", *PLAN[:-1], "blt", *DATA])
    name = out[out.index("Chosen: ") :].split()[1].rstrip(",")
    assert name.startswith("blt:")
    assert any(line.startswith(f"{name} ") for line in out.split("\n"))
    assert f"Mechanism: {name} (num_buffers={name[4:]})" in out


def test_the_statement_is_wrapped_and_indented(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "72")
    narrow = output(capsys, ["plan", *PLAN, *DATA])
    lines = narrow[narrow.index("Privacy statement") :].rstrip("\n").split("\n")
    assert max(map(len, lines)) <= 72
    assert all(
        line.startswith(("   ", "    ")) or line[0].isdigit() for line in lines[1:]
    )
    monkeypatch.delenv("COLUMNS")
    plain = output(capsys, ["plan", *PLAN, *DATA])
    statement = plain[plain.index("Privacy statement") :]
    assert " ".join(statement.split()) == " ".join("\n".join(lines).split())
    assert len(statement.rstrip("\n").split("\n")) == 12


@pytest.mark.slow
def test_both_ways_to_say_how_data_are_used(capsys):
    rates = ["--steps", "60", "--min-separation", "12", "--max-participations", "5"]
    found = {}
    for command, data in (("data", DATA), ("rates", rates)):
        out = output(
            capsys,
            ["compare", "--mechanisms", "bsr:4", "--json", *PLAN[:4], *data],
        )
        (row,) = json.loads(out)
        del row["seconds"], row["sensitivity_method"]
        found[command] = row
        out = output(capsys, ["plan", *PLAN, "--json", *data])
        found[f"plan {command}"] = json.loads(out)["noise_stddev"]
        out = output(
            capsys,
            ["bands", *PLAN[:4], "--mechanism", "bsr", "--json", *data]
            + ["--candidates", "1,2,4"],
        )
        found[f"bands {command}"] = json.loads(out)
    assert found["data"] == found["rates"]
    assert found["plan data"] == found["plan rates"]
    assert found["bands data"] == found["bands rates"]


def test_amplified_tables_of_data_agree_with_plans(capsys):
    # 1250 examples: the last batch of an epoch is not full, the rate is B / m.
    data = ["--examples", "1250", "--batch-size", "100", "--epochs", "4"]
    sampling = ["--sampling", "cyclic-poisson", *PLAN[:4], *data, "--json"]
    out = output(capsys, ["compare", "--mechanisms", "bsr:4", *sampling])
    (row,) = json.loads(out)
    out = output(capsys, ["plan", "--mechanism", "bsr:4", *sampling])
    plan = json.loads(out)
    assert plan["participation"]["num_parts"] == 4
    assert row["noise_stddev"] == pytest.approx(plan["noise_stddev"], rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--examples", "100", "--steps", "10"], "in one way"),
        ([], "in one way"),
        (["--examples", "100"], "needs --batch-size and --epochs"),
        (
            ["--examples", "100", "--batch-size", "10", "--epochs", "2.5"],
            "whole number",
        ),
        ([*DATA, "--min-separation", "3"], "go with --steps"),
        (["--steps", "10"], "needs --min-separation, or --epochs"),
        (["--steps", "10", "--epochs", "2", "--min-separation", "5"], "give either"),
    ],
)
@pytest.mark.parametrize("command", ["compare", "plan", "bands"])
def test_uses_of_data_that_contradict_are_refused(capsys, command, arguments, message):
    assert cli.main([command, "--epsilon", "1", "--delta", "1e-5", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.count("\n") == 1
    assert captured.err.startswith(f"tf-bandmf {command}: error: ")


def test_commands_have_suggestions_too(capsys):
    assert cli.main(["comprae"]) == 2
    assert "Did you mean 'compare'?" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["compare", "bands", "plan", "show"])
def test_plot_is_refused_before_anything_is_computed(capsys, command, tmp_path):
    arguments = ["nothing.json"] if command == "show" else [*PLAN[:4], *DATA]
    for path, message in (
        ("picture.txt", "must end with one of .png"),
        (str(tmp_path / "nowhere" / "a.png"), "folder does not exist"),
    ):
        assert cli.main([command, *arguments, "--plot", path]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.slow
def test_pictures_of_all_commands(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    saved = str(tmp_path / "plan.json")
    for name, arguments in {
        "compare.png": COMPARE,
        "bands.svg": ["bands", *PLAN[:4], "--mechanism", "bsr", *DATA],
        "plan.pdf": ["plan", *PLAN, *DATA, "--out", saved],
        "show.png": ["show", saved],
    }.items():
        path = tmp_path / name
        out = output(capsys, [*arguments, "--plot", str(path)])
        assert f"Saved {path}." in out
        begins = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[name[-3:]]
        assert path.read_bytes().startswith(begins)
    # On standard output there is JSON and nothing else.
    out = output(capsys, [*COMPARE, "--json", "--plot", str(tmp_path / "again.png")])
    json.loads(out)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(capsys, shell):
    out = output(capsys, ["completion", shell])
    assert f"_TF_BANDMF_COMPLETE={shell}_complete" in out
    assert "tf-bandmf" in out


def completions(words):
    """What a bash with the script asks, and gets."""
    environment = {
        **os.environ,
        "COMP_WORDS": " ".join(["tf-bandmf", *words]),
        "COMP_CWORD": str(len(words)),
        "_TF_BANDMF_COMPLETE": "bash_complete",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tf_bandmf.cli"],
        env=environment,
        capture_output=True,
        text=True,
    )
    return [line.split(",", 1)[1] for line in done.stdout.splitlines()]


def test_a_shell_completes_commands_options_and_mechanisms():
    assert completions(["comp"]) == ["compare", "completion"]
    assert "--min-separation" in completions(["plan", "--min"])
    names = completions(["compare", "--mechanisms", "identity,b"])
    assert "identity,bisr" in names and "identity,blt" in names


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("make", [io.StringIO, Terminal])
def test_what_is_quick_says_nothing(make):
    stream = make()
    with Progress("first", stream, quiet_seconds=60.0) as progress:
        progress("second")
    assert stream.getvalue() == ""


@pytest.mark.parametrize("make", [io.StringIO, Terminal])
def test_what_takes_long_is_named_also_without_a_further_name(make):
    stream = make()
    with Progress("first", stream, quiet_seconds=0.01) as progress:
        for _ in range(6000):
            if "first" in stream.getvalue():
                break
            time.sleep(0.01)
        progress("second")
        for _ in range(6000):
            if "second" in stream.getvalue():
                break
            time.sleep(0.01)
    written = stream.getvalue()
    assert written.index("first") < written.index("second")
    if make is io.StringIO:
        assert written.count("\n") == 2


def test_other_bars_stay_away_from_ours():
    with Progress("first", io.StringIO()):
        assert not unasked_bars.get()
    assert unasked_bars.get()


@pytest.mark.parametrize("command", ["compare", "plan", "bands", "show", "completion"])
def test_help_fits_and_breaks_no_word(capsys, monkeypatch, command):
    words = []
    for width in (80, 90, 100):
        monkeypatch.setenv("COLUMNS", str(width))
        text = output(capsys, [command, "--help"])
        words.append(text.split())
        if command != "completion":  # its lines are to be copied
            assert max(map(len, text.split("\n"))) <= width
    assert words[0] == words[1] == words[2]


LOGS = b"""\
WARNING: All log messages before absl::InitializeLog() is called are written to STDERR
I0000 00:00:1795313524.398987   15399 cudart_stub.cc:31] Could not find cuda drivers
E0000 00:00:1795313533.329806   15399 cuda_platform.cc:52] failed call to cuInit
2026-01-02 03:04:05.678901: W external/local_xla/xla/tsl/framework/cpu.cc:83] Allocation
To enable the following instructions: AVX2 FMA, rebuild TensorFlow with the appropriate
"""
OTHERS = b"F0000 00:00:1.5 1 check.cc:1] Check failed\nInformation of ours\nno newline"


def test_log_lines_of_native_code_are_dropped_and_nothing_else(capfd, monkeypatch):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")
    with without_native_logs():
        os.write(2, LOGS)
        os.write(2, OTHERS)
        os.write(2, b"\n")
    os.write(2, b"I0000 00:00:1 after the block\n")
    err = capfd.readouterr().err
    assert err == OTHERS.decode() + "\nI0000 00:00:1 after the block\n"


def test_log_lines_can_be_asked_for(capfd, monkeypatch):
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "0")
    with without_native_logs():
        os.write(2, LOGS)
    assert capfd.readouterr().err == LOGS.decode()


@pytest.mark.slow
def test_a_command_that_loads_tensorflow_logs_nothing():
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    environment["TF_BANDMF_CACHE"] = "off"
    arguments = ["compare", "--steps", "20", "--min-sep", "5"]
    done = subprocess.run(
        [sys.executable, "-m", "tf_bandmf.cli", *arguments, "--mechanisms", "banded:3"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = done.stderr.splitlines()
    assert all(line.endswith(" ...") for line in lines), lines
    assert "banded:3" in done.stdout
