"""`tf-bandmf bands`, called as a function."""

import json

import pytest

from tf_bandmf import cli

COMMON = ["--epsilon", "2", "--delta", "1e-6", "--json"]
BANDS = ["bands", "--steps", "64", "--epochs", "4", "--mechanism", "bsr", *COMMON]


@pytest.mark.slow
def test_the_contract_and_the_default_candidates(capsys):
    assert cli.main(BANDS) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert set(found) == {"bands", "candidates"}
    assert [c["bands"] for c in found["candidates"]] == [1, 2, 4, 8, 16, 64]
    for candidate in found["candidates"]:
        assert set(candidate) == {"bands", "rmse", "noise_multiplier"}
    best = min(found["candidates"], key=lambda candidate: candidate["rmse"])
    assert found["bands"] == best["bands"]
    # Less amplification with more bands.
    noise = [c["noise_multiplier"] for c in found["candidates"][:-1]]
    assert noise == sorted(noise) and len(set(noise)) == len(noise)


@pytest.mark.parametrize("mechanism", ["bsr", "banded", "toeplitz:normalized"])
@pytest.mark.slow_cases("banded", "toeplitz:normalized")
def test_agrees_with_compare(capsys, mechanism):
    arguments = ["bands", "--steps", "64", "--epochs", "4", "--candidates", "4"]
    assert cli.main([*arguments, "--mechanism", mechanism, *COMMON]) == 0
    (candidate,) = json.loads(capsys.readouterr().out)["candidates"]
    family, _, rest = mechanism.partition(":")
    name = f"{family}:4" + (f":{rest}" if rest else "")
    compare = ["compare", "--steps", "64", "--min-sep", "16", "--participations", "4"]
    code = cli.main(
        [*compare, "--sampling", "cyclic-poisson", "--mechanisms", name, *COMMON]
    )
    assert code == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert candidate["rmse"] == pytest.approx(row["rmse"], rel=1e-6)
    assert candidate["noise_multiplier"] == pytest.approx(
        row["noise_multiplier"], rel=1e-9
    )


@pytest.mark.slow
def test_the_table_names_the_best(capsys):
    arguments = ["bands", "--steps", "64", "--epochs", "2.5", "--candidates", "1,2,4"]
    assert cli.main([*arguments, "--mechanism", "bsr", *COMMON[:-1]]) == 0
    out = capsys.readouterr().out
    assert "best" in out and "64 steps" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--candidates", "1,x"], "--candidates must be"),
        (["--candidates", "0"], "bands must be a whole number >= 1"),
        (["--candidates", "17"], "bands must be <= steps / epochs = 16, or 64"),
        (["--candidates", ","], "at least one number of bands"),
        (["--mechanism", "bisr"], "mechanism must be banded, bsr or toeplitz"),
        (["--mechanism", "bsr:4"], "without a number of bands"),
        (["--epochs", "0"], "epochs must be > 0 and <= num_steps = 64, found 0"),
        (["--epochs", "many"], "is not a number"),
        (["--epochs", "65"], "epochs must be > 0 and <= num_steps = 64"),
        (["--epsilon", "-1"], "epsilon must be finite and > 0"),
        (["--delta", "2"], "delta must be in (0, 1)"),
        (["--workload", "cosine"], "--workload must be"),
    ],
)
def test_bad_arguments_exit_with_2_and_one_line(capsys, arguments, message):
    assert cli.main([*BANDS, *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err and captured.err.count("\n") == 1
