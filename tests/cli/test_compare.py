"""`tf-bandmf compare`, called as a function."""

import json

import numpy as np
import pytest

from tf_bandmf import cli
from tf_bandmf.accounting import gaussian

STEPS, PARTICIPATIONS = 60, 5
COMPARE = ["compare", "--steps", f"{STEPS}", "--min-sep", "12"]
KEYS = {
    "mechanism",
    "bands",
    "rmse",
    "max_se",
    "sensitivity",
    "sensitivity_is_exact",
    "noise_multiplier",
    "normalization",
    "noise_stddev",
    "converged",
    "optimality_gap",
    "memory_vectors",
    "seconds",
}


def run(capsys, *arguments):
    code = cli.main([*COMPARE, *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_json_has_one_object_a_mechanism(capsys):
    code, out, _ = run(
        capsys, "--mechanisms", "identity, bsr:4,bisr:4:normalized,dense", "--json"
    )
    assert code == 0
    # NaN and infinity are not JSON.
    rows = json.loads(out, parse_constant=pytest.fail)
    assert [row["mechanism"] for row in rows] == [
        "identity",
        "bsr:4",
        "bisr:4:normalized",
        "dense",
    ]
    for row in rows:
        assert KEYS <= set(row)
        assert row["normalization"] == "sensitivity"
        assert row["noise_multiplier"] == 1.0
        assert row["noise_stddev"] == row["sensitivity"]
        assert row["converged"] is True
    # Independent noise on the prefix sum: the mean of 1, ..., 60, times k = 5.
    np.testing.assert_allclose(rows[0]["rmse"], np.sqrt(30.5 * 5))
    np.testing.assert_allclose(rows[0]["max_se"], np.sqrt(60 * 5))
    assert rows[0]["sensitivity_is_exact"] is True
    assert rows[3]["sensitivity_is_exact"] is False
    assert rows[3]["optimality_gap"] <= 1e-6
    assert rows[1]["optimality_gap"] is None


def test_participations_limit_the_sensitivity(capsys):
    _, out, _ = run(
        capsys, "--participations", "2", "--mechanisms", "identity", "--json"
    )
    np.testing.assert_allclose(json.loads(out)[0]["sensitivity"], np.sqrt(2.0))


def test_a_budget_sets_the_noise(capsys):
    code, out, _ = run(
        capsys,
        "--epsilon", "8", "--delta", "1e-5",
        "--mechanisms", "identity,bsr:4", "--json",
    )  # fmt: skip
    assert code == 0
    sigma = gaussian.calibrate_noise_stddev(8.0, 1e-5)
    for row in json.loads(out):
        assert row["noise_multiplier"] == sigma
        np.testing.assert_allclose(row["noise_stddev"], sigma * row["sensitivity"])
    np.testing.assert_allclose(json.loads(out)[0]["rmse"], sigma * np.sqrt(30.5 * 5))


@pytest.mark.parametrize(
    ("workload", "rmse"),
    [
        ("prefix", np.sqrt(30.5 * 5)),
        ("identity", np.sqrt(5)),
        ("sgd:momentum=0,decay=1", np.sqrt(30.5 * 5)),
        ("sgd", np.sqrt(30.5 * 5)),
    ],
)
def test_workloads(capsys, workload, rmse):
    code, out, _ = run(
        capsys, "--workload", workload, "--mechanisms", "identity", "--json"
    )
    assert code == 0
    np.testing.assert_allclose(json.loads(out)[0]["rmse"], rmse)


def test_momentum_reaches_the_workload(capsys):
    _, out, _ = run(
        capsys,
        "--workload", "sgd:momentum=0.9,decay=0.999",
        "--mechanisms", "identity", "--json",
    )  # fmt: skip
    i = np.arange(60)
    column = np.convolve(0.9**i, 0.999**i)[:60]
    expected = np.sqrt(np.cumsum(column**2).mean() * 5)
    np.testing.assert_allclose(json.loads(out)[0]["rmse"], expected)


def test_the_table_shows_bounds_as_bounds(capsys):
    code, out, _ = run(capsys, "--mechanisms", "identity,dense")
    assert code == 0
    assert "RMSE" in out and "sensitivity" in out
    assert "<=" in next(line for line in out.split("\n") if "dense" in line)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--mechanisms", "magic"],
            "mechanism must be one of amplified, amplified_blt, banded, bandinv, bifr",
        ),
        (["--mechanisms", "bsr:x"], 'for instance "bsr:4"'),
        (["--mechanisms", "bsr:99"], "from 1 to num_steps = 60"),
        (["--mechanisms", " , "], "Give at least one mechanism"),
        (["--epsilon", "8"], "give both or none"),
        (["--epsilon", "-8", "--delta", "1e-5"], "epsilon must be finite and > 0"),
        (["--epsilon", "nan", "--delta", "1e-5"], "epsilon must be finite and > 0"),
        (["--epsilon", "8", "--delta", "2"], r"delta must be in (0, 1)"),
        (["--workload", "cosine"], "--workload must be prefix, identity or sgd"),
        (["--workload", "sgd:beta=1"], "takes momentum=NUMBER and decay=NUMBER"),
        (["--workload", "sgd:momentum=x"], "takes momentum=NUMBER and decay=NUMBER"),
        (["--workload", "sgd:momentum=0.9,decay=0.5"], "momentum must be < decay"),
        (["--workload", "prefix:momentum=0.9"], "--workload must be prefix"),
        (["--participations", "0"], "max_participations must be a whole number >= 1"),
        (["--sampling", "shuffle"], "found 'shuffle'. Did you mean shuffled?"),
        (["--mechanisms", "lamda_cgd"], "Did you mean lambda_cgd?"),
        (["--workload", "pefix"], "Did you mean prefix?"),
        (["--steps", "5"], "min_separation must be <= num_steps = 5"),
        (["--steps", "many"], "'many' is not a valid integer"),
        (["--unknown"], "No such option '--unknown'"),
        (["--epsillon", "8"], "Did you mean one of: '--epsilon'"),
    ],
)
def test_bad_arguments_exit_with_2_and_one_line(capsys, arguments, message):
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_cyclic_poisson_takes_each_mechanisms_bands_as_its_cycle(capsys):
    import dp_accounting
    from dp_accounting.pld import pld_privacy_accountant

    budget = ("--epsilon", "2", "--delta", "1e-5", "--sampling", "cyclic-poisson")
    code, out, _ = run(capsys, *budget, "--mechanisms", "identity,bsr:4", "--json")
    assert code == 0
    for row in json.loads(out):
        assert row["normalization"] == "column_norm"
        parts = row["bands"]
        queries = -(-STEPS // parts)
        event = dp_accounting.PoissonSampledDpEvent(
            PARTICIPATIONS * parts / STEPS,
            dp_accounting.GaussianDpEvent(row["noise_multiplier"]),
        )
        accountant = pld_privacy_accountant.PLDAccountant()
        accountant.compose(dp_accounting.SelfComposedDpEvent(event, queries))
        np.testing.assert_allclose(accountant.get_epsilon(1e-5), 2.0, rtol=1e-2)


def test_balls_in_bins_needs_less_noise_than_no_amplification(capsys):
    common = ("--epsilon", "1", "--delta", "1e-4", "--mechanisms", "lambda_cgd:0.5")
    noise = []
    for sampling in ("balls-in-bins", "none"):
        code, out, _ = run(capsys, *common, "--sampling", sampling, "--json")
        assert code == 0
        noise.append(json.loads(out)[0]["noise_stddev"])
    assert noise[0] < 0.8 * noise[1]


@pytest.mark.slow_cases("arguments2-number of bins")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sampling", "balls-in-bins"], "give --epsilon and --delta"),
        (
            ["--sampling", "cyclic-poisson", "--epsilon", "1", "--delta", "1e-5"]
            + ["--mechanisms", "bisr:4"],
            "balls-in-bins",
        ),
        (
            ["--sampling", "balls-in-bins", "--epsilon", "1", "--delta", "1e-5"]
            + ["--participations", "1"],
            "number of bins",
        ),
    ],
)
def test_amplification_that_cannot_be_is_refused(capsys, arguments, message):
    code, out, err = run(capsys, *arguments)
    assert code == 2 and out == ""
    assert message in err


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["compare"]])
def test_missing_commands_and_arguments(capsys, arguments):
    assert cli.main(arguments) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_help_and_version(capsys):
    assert cli.main(["--version"]) == 0
    assert cli.main(["compare", "--help"]) == 0
    out = capsys.readouterr().out
    assert "--min-separation" in out and "--min-sep " not in out
