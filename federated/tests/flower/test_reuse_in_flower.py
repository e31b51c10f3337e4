"""Two copies of a Flower server and of its devices: no noise on two sums."""

import shutil

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from one_process import Node, OneProcess
from plans import min_sep_plan
from simulated import Weights

from tf_bandmf_federated.device_policy import DevicePolicy
from tf_bandmf_federated.flower import PrivateFedAvg
from tf_bandmf_federated.round_noise import RoundNoise

SIZE, PER_ROUND = 2000, 2
PLAN = min_sep_plan("bsr:2", 6, 2, 3, noise_multiplier=5.0)


def train(folder, rounds, sign):
    """What is left of the rounds' steps beside the sums, in units of the noise.

    Each device adds a vector of norm 1, `sign` times the direction of ones.
    """
    grid = OneProcess(str(folder / "nodes"), PLAN, 6)
    policy = DevicePolicy.from_plan(PLAN)
    for number in list(grid.nodes):
        path = str(folder / "nodes" / str(number))
        grid.nodes[number] = Node(path, policy, number, sign)
    models = Weights({0: np.zeros(SIZE)})
    strategy = PrivateFedAvg(
        PLAN,
        str(folder / "run"),
        clients_per_round=PER_ROUND,
        max_wait=0.2,
        query_timeout=0.2,
        models=models,
    )
    start = ArrayRecord({"w": Array(np.zeros(SIZE, np.float32))})
    result = strategy.start(grid, start, num_rounds=rounds, timeout=30.0)
    sums = {
        key: sign * metrics["contributing"] / np.sqrt(SIZE)
        for key, metrics in result.train_metrics_clientapp.items()
    }
    return models, sums


def two_containers(folder):
    """The rounds 3 and 4 from two copies of server and devices, with other data."""
    before, _ = train(folder / "first", 2, 1.0)
    actual = []
    for name, sign in (("a", 1.0), ("b", -1.0)):
        shutil.copytree(folder / "first", folder / name)
        left, sums = train(folder / name, 4, sign)
        left[2] = before[2]
        steps = [PER_ROUND * (left[t] - left[t - 1]) - sums[t] for t in (3, 4)]
        actual.append(np.array(steps) / PLAN.noise_stddev)
    return actual[0] - actual[1]


@pytest.mark.attack(
    "Two containers with one Flower server and its devices",
    tried="Copies the server's folder and all devices' stores, goes on from both with "
    "opposite data, and subtracts the sums from the difference of what both release.",
    area="noise",
    invariants=[8],
)
@pytest.mark.invariant(8)
def test_two_containers_share_no_noise(tmp_path, figure):
    deviations = two_containers(tmp_path).std(axis=1)
    figure(f"{deviations.min():.1f} times the noise is left")
    assert deviations.min() > 1.25 and deviations.max() < 2.5


def test_the_measure_sees_noise_that_is_reused(tmp_path, monkeypatch):
    # The control: noise that is bound to the rounds alone.
    monkeypatch.setattr(RoundNoise, "_digest", lambda *arguments: 0)
    assert np.abs(two_containers(tmp_path)).max() < 3e-3


@pytest.mark.attack(
    "A run's files in the bundle of a Flower app",
    tried="Puts the server's folder, or a device's store, below an app's folder; and a "
    "finished run into an app that Flower's own builder bundles.",
    area="secrets",
    invariants=[10],
)
@pytest.mark.invariant(10)
def test_no_file_of_a_run_is_bundled(tmp_path, figure):
    from flwr.cli.build import build_fab_from_disk

    app = tmp_path / "app"
    (app / "speakers").mkdir(parents=True)
    (app / "speakers" / "__init__.py").touch()
    (app / "speakers" / "app.py").write_text("app = None\n")
    (app / "secret.json").write_text("{}")  # the control: this is bundled
    (app / "pyproject.toml").write_text(
        '[project]\nname = "speakers"\nversion = "1.0.0"\ndescription = ""\n'
        'license = "Apache-2.0"\n[tool.flwr.app]\npublisher = "x"\n'
        '[tool.flwr.app.components]\nserverapp = "speakers.app:app"\n'
        'clientapp = "speakers.app:app"\n'
    )
    with pytest.raises(ValueError, match="must be outside of a Flower app"):
        train(app / "output", 2, 1.0)
    train(tmp_path / "output", 2, 1.0)
    shutil.copytree(tmp_path / "output", app / "output")
    names = _names(build_fab_from_disk(app))
    assert "secret.json" in names
    written = [path for path in (app / "output").rglob("*") if path.is_file()]
    assert len(written) > 10
    assert not [name for name in names if name.startswith("output")]
    figure("0 files, and 1 of the control")


def _names(bundle):
    import io
    import zipfile

    return zipfile.ZipFile(io.BytesIO(bundle)).namelist()
