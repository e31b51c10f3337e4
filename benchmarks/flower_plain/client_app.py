"""`speakers.client_app` without a plan: no limits, no clipping, for comparison."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from speakers.model import train as fit
from speakers.text import examples

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """One pass over the speaker's lines."""
    arrays, config = message.content["arrays"], message.content["config"]
    path, speaker = context.node_config["text"], context.node_config["speaker"]
    after = fit(
        arrays.to_numpy_ndarrays(),
        *examples(str(path), int(speaker)),
        rate=float(config["rate"]),
    )
    record = ArrayRecord(
        {name: Array(np.asarray(w)) for name, w in zip(arrays, after, strict=True)}
    )
    metrics = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)
