"""Runs the peers' private steps and ours, one after the other in one run.

    python benchmarks/keras_peers.py --opacus-python OPACUS/bin/python \
        --tf-privacy-python .venv-federated/bin/python

Each peer runs in an environment of its own, with its own framework's ordinary step as the
base of its ratios: Opacus 1.5 with PyTorch, TensorFlow Privacy 0.9 with TensorFlow 2.14
(the federated environment has it). Every private step clips the gradients of single
examples and adds independent noise; ours with DP-lambda-CGD besides. What a peer cannot do
is reported with its error.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def run(python: str, script: str, *arguments: str) -> None:
    command = [python, os.path.join(HERE, script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            print(line, flush=True)
            continue
        print(
            f"{found['model']:12s} {found['kind']:22s} "
            + (
                f"seconds={found['wall']:.4f}  wall={found['wall_ratio']:.2f}  "
                f"cpu={found['cpu_ratio']:.2f}"
                if "wall" in found
                else found["error"]
            ),
            flush=True,
        )
    if done.returncode:
        print(done.stderr.splitlines()[-1], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--opacus-python")
    parser.add_argument("--tf-privacy-python")
    parser.add_argument("--models", default="mlp,cnn,transformer")
    parser.add_argument("--rounds", default="5")
    options = parser.parse_args()
    arguments = ["--models", options.models, "--rounds", options.rounds]
    print("tf-bandmf", flush=True)
    run(sys.executable, "keras_steps.py", *arguments, "--no-memory")
    if options.opacus_python:
        print("Opacus", flush=True)
        run(options.opacus_python, "peer_opacus.py", *arguments)
    if options.tf_privacy_python:
        print("TensorFlow Privacy", flush=True)
        run(options.tf_privacy_python, "peer_tf_privacy.py", *arguments)


if __name__ == "__main__":
    main()
