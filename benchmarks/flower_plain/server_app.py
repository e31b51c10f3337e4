"""`speakers.server_app` with Flower's own FedAvg: no privacy, for comparison."""

from flwr.app import Array, ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from speakers.evaluation import evaluation
from speakers.model import NAMES, initial_weights

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs all rounds."""
    config = context.run_config
    folder, per_round = str(config["folder"]), int(config["per-round"])
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
        evaluate_fn=evaluation(folder, str(config["text"])),
    )
