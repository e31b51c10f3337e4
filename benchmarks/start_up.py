"""Where the seconds of a private run go before its first step is done.

    python benchmarks/start_up.py --models mlp,cnn,lstm,transformer --rounds 3
    python benchmarks/start_up.py --models mlp --fresh private

Processor seconds of a new model's `fit` over two steps beside those of plain Keras, in
turns in one process that has traced such models before; and less those of a second `fit`,
which traces nothing. Then where those of the first go; a part within another one counts
for itself alone. Garbage is collected between models, not while they are timed. With
`--fresh`, the first `fit` of the process, which also traces and compiles what all models of
a process share: the programs of the noise and of its key.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import importlib
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import keras
import keras_steps
import numpy as np

import tf_bandmf.keras
from tf_bandmf.keras.clipping.proof import batch_axis, proved_forward
from tf_bandmf.keras.clipping.sums import clipped_sums
from tf_bandmf.keras.compat import fixed_draws
from tf_bandmf.keras.model import preparation
from tf_bandmf.keras.model.step import PrivateStep

OPTIONS = SimpleNamespace(accuracy=False, microbatch_size=None)
# Its name is that of its function, too.
self_check = importlib.import_module("tf_bandmf.keras.clipping.sums.self_check")
# What is timed: (owner, name, part).
PARTS: list[tuple[Any, str, str]] = [
    (clipped_sums, "structure_of", "trace: where the batch axis is"),
    (proved_forward, "structure_of", "trace: where the batch axis is"),
    (proved_forward, "run_forward", "trace: forward pass that runs"),
    (clipped_sums, "_measure", "trace: gradients and norms"),
    (clipped_sums, "_weighted_sums", "trace: sums"),
    (batch_axis, "refuse_comparisons", "analysis: losses that compare"),
    (batch_axis, "prove", "analysis: independence, state, stops"),
    (proved_forward, "prove", "analysis: independence, state, stops"),
    (proved_forward, "refuse_state", "analysis: independence, state, stops"),
    (self_check, "traced_pass", "trace: the rest of the pass"),
    (self_check, "_references", "self-check: examples alone"),
    (fixed_draws.FixedCopy, "__call__", "self-check: runs"),
    (preparation, "self_check", "self-check: the rest"),
    (PrivateStep, "train_step", "trace: noise, update, metrics"),
]


class Clock:
    """Processor seconds by part, those of parts inside of others taken out."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._inside = [0.0]

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Times its body."""
        self._inside.append(0.0)
        began = time.process_time()
        try:
            yield
        finally:
            took = time.process_time() - began
            own = took - self._inside.pop()
            self._inside[-1] += took
            self.seconds[name] = self.seconds.get(name, 0.0) + own

    def timing(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """The function, timed."""

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return function(*args, **kwargs)

        return timed


def seconds(name: str, is_private: bool, clock: Clock | None = None) -> np.ndarray:
    """Processor seconds of a new model's `fit` over two steps, and of one after it."""
    size = keras_steps.BATCH_SIZES[name]
    x, y = keras_steps.data(name, 2 * size)
    optimizer = keras.optimizers.SGD(1e-3)
    data: dict[str, Any] = {"x": x, "y": y, "batch_size": size}
    if is_private:
        plan = keras_steps.plan_for("lambda_cgd", name, 2 * size, 2)
        data = {"x": plan.batches(x, y)}
        optimizer = tf_bandmf.keras.PrivateOptimizer(
            optimizer, plan, additional_run=True
        )
    model = keras_steps.compiled(name, optimizer, is_private, OPTIONS)

    gc.collect()

    def took(epoch: int) -> float:
        began = time.process_time()
        model.fit(**data, epochs=epoch + 1, initial_epoch=epoch, verbose=0)
        return time.process_time() - began

    with contextlib.ExitStack() as stack:
        if clock is not None:
            for owner, attribute, part in PARTS:
                timed = clock.timing(getattr(owner, attribute), part)
                stack.enter_context(mock.patch.object(owner, attribute, timed))
            stack.enter_context(clock.part("the rest: data, optimizing, running"))
        first = took(0)
    return np.array([first, took(1)])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default="mlp,cnn,lstm,transformer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fresh", choices=("plain", "private"))
    arguments = parser.parse_args()
    gc.disable()
    if arguments.fresh:
        name, *_ = arguments.models.split(",")
        first, _ = seconds(name, arguments.fresh == "private")
        print(f"{name}, {arguments.fresh}: first fit of the process {first:.2f} s")
        return
    for name in arguments.models.split(","):
        seconds(name, True), seconds(name, False)
        rounds = range(arguments.rounds)
        found = [[seconds(name, kind) for kind in (False, True)] for _ in rounds]
        plain, private = np.median(found, axis=0)
        starts = plain[0] - plain[1], private[0] - private[1]
        print(
            f"{name}: first fit {plain[0]:.2f} s plain, {private[0]:.2f} s private, "
            f"{private[0] / plain[0]:.1f} times; less a second fit {starts[0]:.2f} s, "
            f"{starts[1]:.2f} s, {starts[1] / starts[0]:.1f} times"
        )
        clock = Clock()
        total = sum(seconds(name, True, clock)[0] for _ in rounds)
        for part, took in sorted(clock.seconds.items(), key=lambda item: -item[1]):
            print(f"    {took / arguments.rounds:6.2f} s {took / total:5.0%}  {part}")


if __name__ == "__main__":
    main()
