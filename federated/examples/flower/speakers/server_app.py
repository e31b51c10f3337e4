"""The ServerApp, which runs all rounds of the plan that are not yet done."""

import os

from flwr.app import Array, ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from speakers.evaluation import evaluation
from speakers.model import NAMES, initial_weights
from tf_bandmf import Plan
from tf_bandmf_federated import OperatorStatements, write_report
from tf_bandmf_federated.flower import PrivateFedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Starts the run, or continues an interrupted run."""
    config = context.run_config
    folder = str(config["folder"])
    plan = Plan.load(os.path.join(folder, "plan.json"))
    strategy = PrivateFedAvg(
        plan,
        os.path.join(folder, "private"),
        clients_per_round=int(config["per-round"]),
        max_wait=float(config["wait"]),
        # Flower lists a killed node for a while, and a query to this node times out.
        query_timeout=float(config["query-timeout"]),
    )
    start = initial_weights(hidden=int(config["hidden"]))
    weights = dict(zip(NAMES, start, strict=True))
    strategy.start(
        grid,
        ArrayRecord({name: Array(w) for name, w in weights.items()}),
        timeout=float(config["timeout"]),
        train_config=ConfigRecord({"rate": 0.5}),
        evaluate_fn=evaluation(folder, str(config["text"])),
    )
    write_report(
        os.path.join(folder, "privacy.md"),
        plan,
        strategy.measured,
        operator=OperatorStatements(
            released="all models, which are sent to the devices of this demo",
            devices="each speaker is one device",
            enforcement="by the ledger and by each device's store",
        ),
    )
