"""`speakers.server_app` with Flower's own FedAvg: no privacy, for comparison."""

import os
import time

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from speakers.model import NAMES, evaluate, initial_weights
from speakers.text import examples

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs all rounds."""
    config = context.run_config
    folder, per_round = str(config["folder"]), int(config["per-round"])
    test = examples(str(config["text"]), -1, 4000)

    def evaluate_fn(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        loss, accuracy = evaluate(arrays.to_numpy_ndarrays(), *test)
        if server_round:  # FedAvg evaluates the initial weights, too
            with open(os.path.join(folder, "progress"), "a", encoding="utf-8") as file:
                file.write(
                    f"{server_round} {time.time():.2f} {loss:.4f} {accuracy:.4f}\n"
                )
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    weights = initial_weights(hidden=int(config["hidden"]))
    strategy = FedAvg(
        fraction_train=1e-9,  # `min_train_nodes` of them, and 0 would be none
        fraction_evaluate=0.0,
        min_train_nodes=per_round,
        min_evaluate_nodes=0,
        min_available_nodes=per_round,
    )
    strategy.start(
        grid,
        ArrayRecord({n: Array(w) for n, w in zip(NAMES, weights, strict=True)}),
        num_rounds=int(config["rounds"]),
        timeout=float(config["timeout"]),
        train_config=ConfigRecord({"rate": 0.5}),
        evaluate_fn=evaluate_fn,
    )
