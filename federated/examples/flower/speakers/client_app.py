"""The ClientApp, which trains on one speaker's lines within the plan's limits."""

import os

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

from speakers.model import train as fit
from speakers.text import examples
from tf_bandmf_federated.device_policy import DevicePolicy
from tf_bandmf_federated.flower import private_client_app


def _policy() -> DevicePolicy:
    return DevicePolicy.load(os.environ["SPEAKERS_POLICY"])


def _speaker(context: Context) -> int:
    """Returns the speaker's number; in a simulation, this is the partition id."""
    config = context.node_config
    return int(config.get("speaker", config.get("partition-id", 0)))


def _store(context: Context) -> str:
    """Returns the path of the device's store; each simulated device has a subfolder."""
    path = context.node_config.get("store")
    return str(path or f"{os.environ['SPEAKERS_STORES']}/{_speaker(context)}")


app = private_client_app(_policy(), store=_store)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Trains for one epoch on the speaker's lines."""
    arrays, config = message.content["arrays"], message.content["config"]
    path = context.node_config.get("text") or os.environ.get("SPEAKERS_TEXT", "")
    after = fit(
        arrays.to_numpy_ndarrays(),
        *examples(str(path), _speaker(context)),
        rate=float(config["rate"]),
        proximal=float(config.get("proximal-mu", 0.0)),
    )
    record = ArrayRecord(
        {name: Array(np.asarray(w)) for name, w in zip(arrays, after, strict=True)}
    )
    return Message(RecordDict({"arrays": record}), reply_to=message)
