"""Arguments of `plan` under the names that they had before."""

import numpy as np
import pytest

import tf_bandmf
from tf_bandmf import workloads

USE = {
    "noise_multiplier": 1.0,
    "delta": 1e-5,
    "num_examples": 40,
    "batch_size": 5,
    "epochs": 2,
}


@pytest.mark.parametrize(
    ("earlier", "name", "workload"),
    [
        (("bsr", {"bands": 4}), "bsr:4", None),
        (("bsr", {"bands": 4, "column_normalized": True}), "bsr:4:normalized", None),
        (("bisr", {"bands": 3, "column_normalized": False}), "bisr:3", None),
        (("lambda_cgd", {"lambda_": 0.7}), "lambda_cgd:0.7", None),
        (("bifr", {"bands": 4, "gamma": 0.6}), "bifr:4:0.6", None),
        (("bifr:4", {"gamma": 0.6}), "bifr:4:0.6", None),
        (("identity", {"momentum": 0.9}), "identity", "sgd:momentum=0.9"),
        (
            ("bsr", {"bands": 2, "momentum": 0.9, "decay": 0.99}),
            "bsr:2",
            "sgd:momentum=0.9,decay=0.99",
        ),
        (("bisr", {"bands": 2, "objective": "mean", "gamma": None}), "bisr:2", None),
    ],
)
def test_they_mean_what_they_meant_and_are_deprecated(earlier, name, workload):
    mechanism, arguments = earlier
    with pytest.warns(DeprecationWarning, match="deprecated"):
        before = tf_bandmf.plan(mechanism, **arguments, **USE)
    now = tf_bandmf.plan(name, workload=workload, **USE)
    assert before.fingerprint == now.fingerprint


def test_learning_rates_are_a_workload():
    rates = np.linspace(1.0, 0.5, 16)
    with pytest.warns(DeprecationWarning):
        before = tf_bandmf.plan("identity", learning_rates=rates, momentum=0.5, **USE)
    own = workloads.momentum_sgd(16, momentum=0.5, learning_rates=rates)
    now = tf_bandmf.plan("identity", workload=own, **USE)
    assert before.fingerprint == now.fingerprint


@pytest.mark.parametrize(
    ("mechanism", "arguments", "error", "match"),
    [
        ("bsr:4", {"bands": 4}, ValueError, "in one place"),
        ("bsr", {"lambda_": 0.5}, ValueError, "does not take lambda_"),
        ("auto", {"bands": 4}, ValueError, "auto chooses bands"),
        ("bifr", {"gamma": 0.5}, ValueError, "gamma needs bands"),
        ("bsr", {"momentum": 0.5, "workload": "prefix"}, ValueError, "either workload"),
        ("bsr", {"number_of_bands": 4}, TypeError, "unexpected keyword argument"),
        ("bsr", {"target_delta": 1e-5}, TypeError, "Did you mean .delta.?"),
    ],
)
def test_what_is_twice_or_none_is_refused(mechanism, arguments, error, match):
    with pytest.raises(error, match=match):
        tf_bandmf.plan(mechanism, **arguments, **USE)


def test_a_strategy_has_its_parameters():
    strategy = tf_bandmf.plan("bsr:2", **USE).strategy
    with pytest.raises(ValueError, match="A Strategy has its parameters"):
        tf_bandmf.plan(strategy, bands=4, **USE)


def test_a_ledger_binds_what_was_planned(tmp_path):
    ledger = tf_bandmf.Ledger(f"sqlite:///{tmp_path}/privacy.db")
    ledger.add_dataset("clicks", epsilon=5.0, delta=1e-5)
    with pytest.warns(DeprecationWarning, match="ledger.bind"):
        before = tf_bandmf.plan("bsr:2", ledger=ledger, dataset="clicks", **USE)
    now = ledger.bind(tf_bandmf.plan("bsr:2", **USE), "clicks")
    assert before.account is not None and before.fingerprint == now.fingerprint
    for half in ({"ledger": ledger}, {"dataset": "clicks"}):
        with pytest.raises(ValueError, match="Give ledger and dataset together"):
            tf_bandmf.plan("bsr:2", **half, **USE)
