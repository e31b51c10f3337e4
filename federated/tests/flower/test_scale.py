"""A million connected nodes: what a round costs the server beside its devices' answers."""

import functools
import time

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from one_process import initial_arrays

import tf_bandmf
from tf_bandmf_federated.flower import PrivateFedAvg

CONNECTED, ROUNDS = 1_000_000, 6
PLAN = tf_bandmf.plan(
    "lambda_cgd",
    noise_multiplier=1.0,
    delta=1e-6,
    num_steps=ROUNDS,
    sampling=tf_bandmf.MinSep(4, 2),
)
FINGERPRINT = PLAN.fingerprint


def answer_to(message):
    name = f"{message.metadata.dst_node_id:032x}"
    about = {"plan": FINGERPRINT, "device": name, "receipt": "", "last_round": -1}
    if message.metadata.message_type.startswith("query"):
        content = RecordDict({"tf-bandmf": ConfigRecord(about)})
    else:
        config = message.content["config"]
        about.update(run=config["tf-bandmf.run"], round=config["tf-bandmf.round"])
        update = {name: np.full(a.shape, 0.1) for name, a in initial_arrays().items()}
        arrays = {name: Array(np.float32(part)) for name, part in update.items()}
        content = RecordDict(
            {
                "tf-bandmf": ConfigRecord({**about, "problem": ""}),
                "arrays": ArrayRecord(arrays),
            }
        )
    return Message(content, reply_to=message)


def apart(method):
    """A method whose processor time is none of the server's."""

    @functools.wraps(method)
    def timed(self, *arguments):
        began = time.process_time()
        result = method(self, *arguments)
        self.took += time.process_time() - began
        return result

    return timed


class Stub(Grid):
    """Nodes that answer at once.

    Attributes:
      took: processor seconds of the nodes.
    """

    run = property(lambda self: None)

    def __init__(self):
        self.took, self._waiting, self._sent = 0.0, {}, 0

    def set_run(self, run):
        raise NotImplementedError

    def create_message(self, *arguments, **options):
        raise NotImplementedError

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError

    @apart
    def get_node_ids(self):
        return list(range(1, CONNECTED + 1))

    @apart
    def push_messages(self, messages):
        numbers = []
        for message in messages:
            self._sent += 1
            message.metadata.__dict__["_message_id"] = str(self._sent)
            self._waiting[str(self._sent)] = message
            numbers.append(str(self._sent))
        return numbers

    @apart
    def pull_messages(self, message_ids):
        here = [self._waiting.pop(m) for m in message_ids if m in self._waiting]
        return [answer_to(message) for message in here]


@pytest.mark.slow
@pytest.mark.parametrize("devices, most", [(10, 0.1), (1_000, 0.3)])
def test_a_million_connected_nodes(tmp_path, devices, most, monkeypatch):
    grid, began, ended = Stub(), [], []
    exchange = PrivateFedAvg._exchange

    def noted(*arguments):
        began.append(time.process_time() - grid.took)
        return exchange(*arguments)

    monkeypatch.setattr(PrivateFedAvg, "_exchange", noted)
    strategy = PrivateFedAvg(PLAN, str(tmp_path / "run"), clients_per_round=devices)
    start = time.process_time()
    result = strategy.start(
        grid,
        initial_arrays(),
        timeout=600.0,
        evaluate_fn=lambda *_: ended.append(time.process_time() - grid.took),
    )
    for counts in result.train_metrics_clientapp.values():
        assert counts["contributing"] == devices
    assert began[0] - start < 2.0
    # The first one traces the noise.
    assert np.median(np.diff(ended)) < most
