"""Runs the app `speakers` on NVIDIA FLARE, which transports Flower's messages.

    python federated/examples/flower/on_nvflare.py --devices 4

Each NVFlare site is a process of its simulator and represents one device, whose store
is in the folder `devices` of `--out`. The server, Flower mod, ledger and report are the
same as in `deploy.py`.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import deploy
from nvflare.app_opt.flower.recipe import FlowerRecipe
from nvflare.recipe import SimEnv


def main() -> None:
    """Runs all rounds, and prints the participations and the privacy guarantee."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="flower-output", help="folder")
    parser.add_argument(
        "--go-on", action="store_true", help="continue the run in --out"
    )
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--per-round", type=int, default=2)
    parser.add_argument("--separation", type=int, default=2)
    parser.add_argument("--epsilon", type=float, default=100.0)
    options = parser.parse_args()
    os.umask(0o077)
    folder = pathlib.Path(options.out).resolve()
    if not options.go_on:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        deploy.write_plan(folder, options.rounds, options.separation, options.epsilon)
    os.environ["SPEAKERS_POLICY"] = str(folder / "policy.json")
    os.environ["SPEAKERS_STORES"] = str(folder / "devices")
    recipe = FlowerRecipe(
        name="speakers",
        flower_content=str(deploy.HERE),
        min_clients=options.devices,
        run_config={
            "folder": str(folder),
            "rounds": options.rounds,
            "per-round": options.per_round,
        },
    )
    work = str(folder / "nvflare")
    recipe.execute(SimEnv(num_clients=options.devices, workspace_root=work))
    print(f"participations by the devices' records: {deploy.participations(folder)}")
    print("\n".join((folder / "privacy.md").read_text().splitlines()[-12:]))


if __name__ == "__main__":
    main()
