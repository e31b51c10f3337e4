"""A real Flower deployment on one machine completes its run despite `kill -9`."""

import json
import pathlib
import re
import subprocess
import sys

import pytest
from ports import free_ports

from tf_bandmf.files.journal import Journal

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "flower" / "deploy.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rounds", "devices", "separation", "kills"),
    [(2, 2, 2, False), (12, 8, 3, True)],
    ids=["quiet", "killed"],
)
def test_a_deployment_runs_to_its_end(tmp_path, rounds, devices, separation, kills):
    arguments = {
        "--out": tmp_path / "out",
        "--rounds": rounds,
        "--devices": devices,
        "--per-round": 1,
        "--separation": separation,
        "--port": free_ports(devices + 1),
    }
    command = [sys.executable, str(EXAMPLE)]
    command += [str(part) for pair in arguments.items() for part in pair]
    done = subprocess.run(
        command if kills else [*command, "--no-kills"],
        capture_output=True,
        text=True,
        timeout=1200 if kills else 240,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    # TensorFlow must not have written log lines to the error output.
    assert "absl::InitializeLog" not in done.stderr and "cuda" not in done.stderr
    killed = re.findall(r"kill -9 (.*)", done.stdout)
    assert killed == (["device 0", "superlink", "device 1"] if kills else [])
    # Every round is evaluated, whichever process was killed. A round that a kill
    # interrupts may be evaluated twice, because rounds are saved before evaluation.
    evaluated = re.findall(r"^round (\d+):", done.stdout, re.MULTILINE)
    assert sorted(set(map(int, evaluated))) == list(range(1, rounds + 1))
    report = (tmp_path / "out" / "privacy.md").read_text()
    assert f"| rounds | {rounds} | {rounds} |" in report
    (planned, measured) = re.search(
        r"\| epsilon at delta = 1e-05 \| (\S+) \| (\S+) \|", report
    ).groups()
    assert float(measured) <= 1.0001 * float(planned) <= 100.1
    # Read the number of participations from each device's own store.
    stores = sorted((tmp_path / "out" / "devices").glob("*/*.device"))
    counts = [
        json.loads(Journal(str(path)).read()[0])["participations"] for path in stores
    ]
    # A device that connects late may never be selected, and then has no count.
    assert len(counts) <= devices
    assert 1 <= sum(counts) <= rounds
    assert max(counts) <= rounds // separation
