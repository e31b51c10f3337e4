"""Twenty reports of federated runs still state the epsilons in golden/reports.json.

    python tests/test_golden_reports.py      # rewrites golden/reports.json

Rewrite the file only in a commit that is meant to change the numbers.
"""

import asyncio
import json
import pathlib
import re
import tempfile

import numpy as np
import pytest
import simulated
from plans import min_sep_plan

from tf_bandmf_federated import measure_participation, measured_guarantee, write_report
from tf_bandmf_federated.averaging import FederatedAveraging, Replies

FILE = pathlib.Path(__file__).parent / "golden" / "reports.json"
N, B, K, PER_ROUND = 9, 3, 3, 2
# Optimized coefficients depend on the numerical libraries; closed forms do not.
TOLERANCES = {"optimized": 1e-5, "closed": 1e-9}


def make_plan(mechanism="bsr:3", **options):
    if "epsilon" not in options:
        options["noise_multiplier"] = 1.5
    return min_sep_plan(mechanism, N, B, K, **options)


def in_turns(n=N):
    """Returns a record of cohorts in which B groups of two clients take turns."""
    return {t: [f"{t % B} {i}" for i in range(PER_ROUND)] for t in range(n)}


def of_record(plan, record, num_rounds=None, delta=None):
    measured = measure_participation(record, num_rounds)
    return plan, measured, delta


def run(folder, over_selection=1.0, answers=None, skips=False, sizes=(3, 1)):
    """Runs simulated devices.

    Returns:
      The arguments of `write_report`: the plan, the measured participation, and None,
      which stands for the plan's delta.
    """
    plan = make_plan()
    number = int(PER_ROUND * over_selection) * B
    devices = simulated.SimulatedDevices(f"{folder}/devices", plan, number)
    weights = [np.zeros(size, np.float32) for size in sizes]

    def exchange(request, add):
        if skips and request.round_number == 2 and len(devices.asked) == 2:
            devices.exchange(request, add)
            raise simulated.Crash
        return (answers or devices.exchange)(request, add)

    def once(interrupted_round):
        engine = FederatedAveraging(plan, weights, exchange, clients_per_round=2)
        return asyncio.run(
            simulated.make_run(
                engine,
                devices,
                f"{folder}/run",
                over_selection,
                clients_per_round=PER_ROUND,
                interrupted_round=interrupted_round,
            ).finish()
        )

    if skips:
        with pytest.raises(simulated.Crash):
            once("replay")
    _, measured = once("skip")
    return plan, measured, None


def too_large(request, add):
    """Sends oversized updates, which the server clips like those of honest devices."""
    for name in request.names:
        add(name, [np.full_like(w, 1e9) for w in request.weights])
    return Replies()


CASES = {
    **{
        f"min separation 2, {mechanism}": lambda folder, m=mechanism: of_record(
            make_plan(m, epsilon=4.0), {0: "a", 2: "a", 5: "a"}, N
        )
        for mechanism in (
            *("identity", "tree", "bsr:3", "bisr:3", "lambda_cgd:0.9"),
            *("banded:3", "blt:2", "bandinv:3", "dense"),
        )
    },
    "min separation kept longer": lambda folder: of_record(
        make_plan(), {0: "ab", 4: "a", 8: "b"}, N
    ),
    "as planned": lambda folder: of_record(make_plan(epsilon=4.0), in_turns()),
    "in every round": lambda folder: of_record(
        make_plan(), dict.fromkeys(range(N), "a")
    ),
    "nobody twice": lambda folder: of_record(
        make_plan(), {t: [str(t)] for t in range(N)}
    ),
    "stopped early": lambda folder: of_record(make_plan(), in_turns(5)),
    "another delta": lambda folder: of_record(make_plan(), in_turns(), delta=1e-8),
    "dropouts": lambda folder: run(folder, answers=lambda request, add: Replies()),
    "over-selection": lambda folder: run(folder, over_selection=1.5),
    "skipped round": lambda folder: run(folder, skips=True),
    "unit weights": lambda folder: run(folder, answers=too_large),
    "sums of whole numbers": lambda folder: run(folder),
}


def report(name, folder):
    """Writes a report, and returns its epsilons as printed and as exact numbers."""
    plan, measured, delta = CASES[name](folder)
    path = pathlib.Path(folder) / "report.md"
    actual = write_report(path, plan, measured, delta=delta)
    (row,) = re.findall(r"^\| epsilon at .*$", path.read_text("utf-8"), re.MULTILINE)
    assert actual == measured_guarantee(plan, measured, delta)
    return {
        "measured": actual.guarantee.epsilon,
        "planned": actual.planned.epsilon,
        "kind": actual.guarantee.kind,
        "within": actual.is_within_plan,
        "skipped": list(measured.skipped_rounds),
        "row": row,
    }


def rounded(row):
    return [float(number) for number in re.findall(r"\d[\d.e+-]*", row)]


def test_twenty_are_there():
    assert list(json.loads(FILE.read_text())) == list(CASES) and len(CASES) == 20


@pytest.mark.parametrize("name", CASES)
def test_a_report_is_as_it_was(name, tmp_path):
    was, now = json.loads(FILE.read_text())[name], report(name, str(tmp_path))
    optimized = any(word in name for word in ("banded", "blt", "bandinv", "dense"))
    within = TOLERANCES["optimized" if optimized else "closed"]
    for key in ("measured", "planned"):
        assert now[key] == pytest.approx(was[key], rel=within)
    assert rounded(now["row"]) == pytest.approx(rounded(was["row"]), rel=2e-5)
    for key in ("kind", "within", "skipped"):
        assert now[key] == was[key]


if __name__ == "__main__":
    content = {}
    for name in CASES:
        with tempfile.TemporaryDirectory() as folder:
            content[name] = report(name, folder)
    FILE.write_text(json.dumps(content, indent=1) + "\n")
