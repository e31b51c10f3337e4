"""Runs the app `speakers` with many devices in Flower's simulation, which uses Ray.

    .venv-flower/bin/python -m pip install "flwr[simulation]==1.41.0"
    .venv-flower/bin/python federated/examples/flower/simulate.py --devices 200

As in a deployment, each device has its own store, in the folder `devices` of `--out`.
The server, Flower mod, ledger and report are the same as in `deploy.py`.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import pathlib
import shutil
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import deploy


def main() -> None:
    """Simulates all rounds, and prints the participations and the privacy guarantee."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--out", default="flower-output", help="folder, which is replaced"
    )
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--devices", type=int, default=200)
    parser.add_argument("--per-round", type=int, default=10)
    parser.add_argument("--separation", type=int, default=10)
    parser.add_argument("--epsilon", type=float, default=100.0)
    parser.add_argument("--data", default="", help="file of speeches; default: random")
    parser.add_argument("--port", type=int, default=18320)
    options = parser.parse_args()
    if importlib.util.find_spec("ray") is None:
        raise SystemExit("Ray is missing: pip install 'flwr[simulation]'")
    folder = pathlib.Path(options.out).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)
    deploy.write_plan(folder, options.rounds, options.separation, options.epsilon)
    text = str(pathlib.Path(options.data).resolve()) if options.data else ""
    run = deploy.Deployment(folder, options.port, text, cold=True)
    run.environment["SPEAKERS_STORES"] = str(folder / "devices")
    run.environment["SPEAKERS_TEXT"] = text
    began = time.monotonic()
    try:
        run.start_link("--simulation")
        run.submit(
            options.rounds,
            options.per_round,
            "--federation-config",
            f"num-supernodes={options.devices} client-resources-num-cpus=1",
            # Ray starts slowly, so the server waits up to 600 seconds for devices.
            wait=600.0,
            query_timeout=300.0,
            timeout=300.0,
        )
        run.wait_for(options.rounds, 3600.0)
        summary = run.summary()
    finally:
        run.end()
    counts = deploy.participations(folder)
    print(f"{options.rounds} rounds in {time.monotonic() - began:.0f} s")
    print(
        f"participations in the devices' records: {sum(counts)} by {len(counts)} "
        f"devices, at most {max(counts)} by one device"
    )
    print(summary)


if __name__ == "__main__":
    main()
