"""The device: one speaker's lines, a store, and the plan's limits."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

from speakers.model import train as fit
from speakers.text import examples
from tf_bandmf_federated.device_policy import DevicePolicy
from tf_bandmf_federated.flower import private_client_app


def _policy() -> DevicePolicy:
    import os

    return DevicePolicy.load(os.environ["SPEAKERS_POLICY"])


app = private_client_app(
    _policy(), store=lambda context: str(context.node_config["store"])
)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One pass over the speaker's lines."""
    arrays, config = message.content["arrays"], message.content["config"]
    path, speaker = context.node_config["text"], context.node_config["speaker"]
    after = fit(
        arrays.to_numpy_ndarrays(),
        *examples(str(path), int(speaker)),
        rate=float(config["rate"]),
        proximal=float(config.get("proximal-mu", 0.0)),
    )
    record = ArrayRecord(
        {name: Array(np.asarray(w)) for name, w in zip(arrays, after, strict=True)}
    )
    return Message(RecordDict({"arrays": record}), reply_to=message)
