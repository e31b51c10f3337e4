"""What it saves that a private run traces its pass once, for the self-check and the step.

    python benchmarks/first_step.py --models mlp,cnn,lstm --rounds 3

Processor time of `fit` over two steps, tracing and the self-check included, in turns in
one run: as it is, and with a pass that the check traces for itself.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from types import SimpleNamespace
from typing import Any
from unittest import mock

import keras
import keras_steps
import numpy as np

import tf_bandmf.keras
from tf_bandmf.keras.clipping.forward import kept_pass

OPTIONS = SimpleNamespace(accuracy=False, microbatch_size=None)


def traced_anew(*arguments: Any) -> Any:
    """As `kept_pass.trace`, of a pass that no step may run."""
    return dataclasses.replace(_TRACE(*arguments), repeatable=False)


_TRACE = kept_pass.trace


def seconds(name: str, is_kept: bool) -> float:
    size = keras_steps.BATCH_SIZES[name]
    plan = keras_steps.plan_for("lambda_cgd", name, 2 * size, 1)
    optimizer = tf_bandmf.keras.PrivateOptimizer(
        keras.optimizers.SGD(1e-3), plan, additional_run=True
    )
    model = keras_steps.compiled(name, optimizer, True, OPTIONS)
    batches = plan.batches(*keras_steps.data(name, 2 * size))
    trace = _TRACE if is_kept else traced_anew
    with mock.patch.object(kept_pass, "trace", trace):
        began = time.process_time()
        model.fit(batches, verbose=0)
        return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default="mlp,cnn,lstm")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    for name in arguments.models.split(","):
        seconds(name, True)
        found = [
            (seconds(name, True), seconds(name, False)) for _ in range(arguments.rounds)
        ]
        kept, anew = np.median(found, axis=0)
        print(f"{name}: {kept:.2f} s kept, {anew:.2f} s anew, {anew / kept:.2f} times")


if __name__ == "__main__":
    main()
