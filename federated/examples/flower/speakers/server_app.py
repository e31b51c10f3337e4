"""The server: the plan's rounds, or what is left of them."""

import os
import time

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from speakers.model import NAMES, evaluate, initial_weights
from speakers.text import examples
from tf_bandmf import Plan
from tf_bandmf_federated import OperatorStatements, write_report
from tf_bandmf_federated.flower import PrivateFedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Begins the run, or goes on with it."""
    config = context.run_config
    folder = str(config["folder"])
    test = examples(str(config["text"]), -1, 4000)
    progress = os.path.join(folder, "progress")

    def evaluate_fn(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        loss, accuracy = evaluate(arrays.to_numpy_ndarrays(), *test)
        with open(progress, "a", encoding="utf-8") as file:
            file.write(f"{server_round} {time.time():.2f} {loss:.4f} {accuracy:.4f}\n")
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    plan = Plan.load(os.path.join(folder, "plan.json"))
    strategy = PrivateFedAvg(
        plan,
        os.path.join(folder, "private"),
        clients_per_round=int(config["per-round"]),
        max_wait=float(config["wait"]),
        query_timeout=float(
            config["query-timeout"]
        ),  # nodes that were killed are listed for a while
    )
    start = initial_weights(hidden=int(config["hidden"]))
    weights = dict(zip(NAMES, start, strict=True))
    strategy.start(
        grid,
        ArrayRecord({name: Array(w) for name, w in weights.items()}),
        timeout=float(config["timeout"]),
        train_config=ConfigRecord({"rate": 0.5}),
        evaluate_fn=evaluate_fn,
    )
    write_report(
        os.path.join(folder, "privacy.md"),
        plan,
        strategy.measured,
        operator=OperatorStatements(
            released="all models, to the devices of this example",
            devices="each speaker is one device",
            enforcement="by the ledger and by each device's store",
        ),
    )
