"""Evaluates the models on the server, and writes the results to a progress file."""

import os
import time
from typing import Callable

from flwr.app import ArrayRecord, MetricRecord

from speakers.model import evaluate
from speakers.text import examples


def evaluation(folder: str, text: str) -> Callable[[int, ArrayRecord], MetricRecord]:
    """Returns an `evaluate_fn`, which tests on speakers that no device has.

    It appends a line per round to `folder/progress`: round, time in seconds, loss,
    accuracy.
    """
    test = examples(text, -1, 4000)

    def evaluate_fn(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        loss, accuracy = evaluate(arrays.to_numpy_ndarrays(), *test)
        if server_round:  # Flower's strategies also evaluate the initial weights
            with open(os.path.join(folder, "progress"), "a", encoding="utf-8") as file:
                file.write(
                    f"{server_round} {time.time():.2f} {loss:.4f} {accuracy:.4f}\n"
                )
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    return evaluate_fn
