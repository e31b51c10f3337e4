"""The README's training loop runs unchanged, and keeps the min separation."""

import pathlib
import re

import pytest

pytest.importorskip("tensorflow_federated")
README = pathlib.Path(__file__).parents[1] / "README.md"


def the_loop():
    text = README.read_text(encoding="utf-8")
    programs = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (actual,) = [program for program in programs if "process.next(" in program]
    return actual


def test_the_loop_keeps_the_separation(capfd):
    # Insert a line that records when each device takes part.
    source = the_loop()
    names = {"__name__": "readme"}
    came = []
    source = source.replace(
        "        data.append(",
        "        came.append((device, now))\n        data.append(",
    )
    names["came"] = came
    exec(compile(source, str(README), "exec"), names)
    plan, devices = names["plan"], names["devices"]
    b, k = plan.participation.min_separation, plan.participation.max_participations
    for device in devices:
        rounds = [now for one, now in came if one is device]
        assert len(rounds) == device.participations <= k
        assert all(late - early >= b for early, late in zip(rounds, rounds[1:]))
    printed = capfd.readouterr().out
    counts = re.findall(r"'contributing_clients': (\d+)", printed)
    assert len(counts) == plan.num_steps
    assert sum(map(int, counts)) == len(came)
    assert set(re.findall(r"'early_clients': (\d+)", printed)) == {"0"}
    assert "Unit of privacy: One device: all that it contributes" in printed
    assert "noisy sums of the devices' clipped updates" in printed
    assert "noisy gradients" not in printed and "training example" not in printed
