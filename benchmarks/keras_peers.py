"""Runs the peers' private steps and ours, in turns in one run.

    python benchmarks/keras_peers.py --opacus-python OPACUS/bin/python \
        --tf-privacy-python .venv-federated/bin/python
    python benchmarks/keras_peers.py --opacus-python OPACUS/bin/python --turns 3 \
        --models resnet,wide_resnet,bert_tiny,lora,lstm,gru

Each peer runs in an environment of its own, with its own framework's ordinary step as the
base of its ratios: Opacus 1.5 with PyTorch, TensorFlow Privacy 0.9 with TensorFlow 2.14
(the federated environment has it). Every private step clips the gradients of single
examples and adds independent noise; ours with DP-lambda-CGD besides. What a peer cannot do
is reported with its error.

A turn is one process of each, for one model after the other; in each process all kinds of
steps take turns. With more than one turn the medians of their figures follow. Opacus
takes OMP_NUM_THREADS threads or two, and TensorFlow TF_NUM_INTRAOP_THREADS or all.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
LINE = re.compile(r"(\S+) +(.+?) +seconds=(\S+) +wall=(\S+) +cpu=(\S+)")
Found = dict[tuple[str, ...], list[tuple[float, ...]]]


def run(library: str, python: str, script: str, *arguments: str) -> Found:
    """Prints what a script measures; returns seconds and ratios by library, model, kind."""
    command = [python, os.path.join(HERE, script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    measured: Found = {}
    for line in done.stdout.splitlines():
        text = formatted(line)
        print(f"{library}: {text}", flush=True)
        if match := LINE.match(text):
            model, kind, *figures = match.groups()
            measured[library, model, kind] = [tuple(map(float, figures))]
    if done.returncode:
        print(done.stderr.splitlines()[-1], flush=True)
    return measured


def formatted(line: str) -> str:
    try:
        found = json.loads(line)
    except ValueError:
        return line
    head = f"{found['model']:12s} {found['kind']:22s} "
    if "wall" not in found:
        return head + found["error"]
    return head + (
        f"seconds={found['wall']:.4f}  wall={found['wall_ratio']:.2f}  "
        f"cpu={found['cpu_ratio']:.2f}"
    )


def medians(measured: Found) -> None:
    """Prints the median of each figure over turns, and the least and most of ratios."""
    for (library, model, kind), turns in measured.items():
        seconds, wall, cpu = zip(*turns)
        text = f"{library:18s} {model:12s} {kind:22s} "
        text += f"seconds={statistics.median(seconds):.4f}"
        for name, ratios in (("wall", wall), ("cpu", cpu)):
            middle = statistics.median(ratios)
            text += f"  {name}={middle:.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--opacus-python")
    parser.add_argument("--tf-privacy-python")
    parser.add_argument("--models", default="mlp,cnn,transformer")
    parser.add_argument("--rounds", default="5")
    parser.add_argument("--turns", type=int, default=1)
    options = parser.parse_args()
    ours = ("--no-memory", "--kinds", "ordinary,clipped,identity,lambda_cgd")
    libraries = [
        ("tf-bandmf", sys.executable, "keras_steps.py", ours),
        ("Opacus", options.opacus_python, "peer_opacus.py", ()),
        ("TensorFlow Privacy", options.tf_privacy_python, "peer_tf_privacy.py", ()),
    ]
    measured: Found = {}
    for model in options.models.split(",") * options.turns:
        arguments = ["--models", model, "--rounds", options.rounds]
        for library, python, script, extra in libraries:
            if python:
                found = run(library, python, script, *arguments, *extra)
                for key, figures in found.items():
                    measured.setdefault(key, []).extend(figures)
    if options.turns > 1:
        print("Medians of turns (least to most)")
        medians(measured)


if __name__ == "__main__":
    main()
