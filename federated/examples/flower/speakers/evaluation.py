"""Evaluates models on the server, and appends the results to a progress file."""

import os
import time
from typing import Callable

from flwr.app import ArrayRecord, MetricRecord

from speakers.model import evaluate
from speakers.text import examples


def evaluation(folder: str, text: str) -> Callable[[int, ArrayRecord], MetricRecord]:
    """Returns an `evaluate_fn` that tests on speakers who belong to no device.

    For each round, the function appends a line to the file `progress` in `folder`:
    round, time in seconds, loss and accuracy.
    """
    test = examples(text, -1, 4000)

    def evaluate_fn(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        loss, accuracy = evaluate(arrays.to_numpy_ndarrays(), *test)
        # In round 0, Flower evaluates the initial weights, before any training.
        if server_round:
            with open(os.path.join(folder, "progress"), "a", encoding="utf-8") as file:
                file.write(
                    f"{server_round} {time.time():.2f} {loss:.4f} {accuracy:.4f}\n"
                )
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    return evaluate_fn
