"""`tf-bandmf advise`, called as a function."""

import json

import pytest

import tf_bandmf
from tf_bandmf import cli

ADVISE = ["advise", "--examples", "1000", "--epsilon", "4", "--delta", "1e-5"]
ADVISE += ["--epochs", "4", "--sampling", "fixed-order", "--mechanism", "bisr:16"]
PARAMETERS = ["--parameters", "400"]


@pytest.mark.slow_cases("60", "140")
@pytest.mark.parametrize("width", [60, 80, 140])
def test_it_fits_the_terminal(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    assert cli.main([*ADVISE, *PARAMETERS, "--trials", "5"]) == 0
    out = capsys.readouterr().out
    assert max(len(line) for line in out.split("\n")) <= width
    advice = tf_bandmf.advise(
        num_examples=1000,
        num_parameters=400,
        epsilon=4.0,
        delta=1e-5,
        epochs=4,
        sampling="fixed-order",
        mechanism="bisr:16",
        expected_trials=5.0,
    )
    (chosen,) = [line for line in out.split("\n") if line.rstrip().endswith("advised")]
    assert advice.setting.mechanism in chosen
    assert str(advice.setting.batch_size) in chosen
    words = " ".join(out.split())
    for name, value in advice.values():
        assert f"{name} {value}" in words
    for _, text in advice.reasons:
        assert text in words
    assert str(advice.tuning) in words


def test_json_is_the_record(capsys):
    assert cli.main([*ADVISE, *PARAMETERS, "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found["batch_size"] in [one["batch_size"] for one in found["settings"]]
    assert found["tuning"] is None and found["epsilon"] == 4.0


def test_errors_name_the_fix(capsys):
    cases = {
        (*ADVISE, *PARAMETERS, "--memory-vectors", "-1"): "--memory-vectors must be",
        (*ADVISE, *PARAMETERS, "--epochs", "2.5"): "--epochs must be a whole number",
        (*ADVISE, *PARAMETERS, "--sampling", "none"): "--sampling must be one or more",
        (*ADVISE, *PARAMETERS, "--trials", "0"): "--trials must be",
    }
    for arguments, message in cases.items():
        assert cli.main(list(arguments)) == 2
        # What takes long is named before.
        error = capsys.readouterr().err.rstrip("\n").split("\n")[-1]
        assert error.startswith("tf-bandmf advise: error: ")
        assert message in error


def test_a_careless_delta_is_warned_about(capsys):
    arguments = [*ADVISE, *PARAMETERS, "--delta", "0.01", "--json"]
    assert cli.main(arguments) == 0
    assert "advise: warning: delta = 0.01 is not below" in capsys.readouterr().err
