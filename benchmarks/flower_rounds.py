"""Seconds of a Flower round with `PrivateFedAvg`, beside Flower's plain FedAvg.

    PYTHONPATH=federated .venv-flower/bin/python benchmarks/flower_rounds.py

The same devices train the same model of one dense layer (d = 1,001,000), in NumPy, a few
batches of SGD each. They are apps in this process: nothing is sent, but every message goes
through Flower's serialization, both ways. The two strategies take their rounds in turns,
so that other work on the machine slows both; `ratio` is of two rounds in one turn.

With `--steps 0` devices send back what they got: what is left is Flower and the privacy.
"""

from __future__ import annotations

import argparse
import logging
import os
import pathlib
import platform
import tempfile
import threading
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
from flwr.app import (
    Array,
    ArrayRecord,
    Context,
    Message,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as RecordDictProto
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.task_identity import TaskIdentity

import tf_bandmf
from tf_bandmf_federated.device_policy import DevicePolicy
from tf_bandmf_federated.flower import PrivateFedAvg, private_client_app

BATCH = 32


def add_training(app: ClientApp, width: int, steps: int) -> None:
    """Some steps of SGD on made-up data."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(BATCH, width)).astype(np.float32)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = message.content["arrays"]
        kernel, bias = (np.array(w) for w in arrays.to_numpy_ndarrays())
        for _ in range(steps):
            error = (x @ kernel + bias) / BATCH
            kernel -= 0.01 * (x.T @ error)
            bias -= 0.01 * error.sum(0)
        after = ArrayRecord({"kernel": Array(kernel), "bias": Array(bias)})
        metrics = MetricRecord({"num-examples": BATCH})
        return Message(
            RecordDict({"arrays": after, "metrics": metrics}), reply_to=message
        )


class HereGrid(Grid):
    """Apps in this process; messages and replies are serialized as on the way."""

    def __init__(self, apps: list[ClientApp], folder: str) -> None:
        self._nodes = {
            number: (
                app,
                Context(1, number, {"store": f"{folder}/{number}"}, RecordDict(), {}),
            )
            for number, app in enumerate(apps, 1)
        }
        self._replies: dict[str, Message] = {}
        self._count = 0

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *arguments: Any, **options: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self._nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        sent = []
        for message in messages:
            self._count += 1
            key = f"message {self._count}"
            message.metadata.__dict__["_message_id"] = key
            app, context = self._nodes[message.metadata.dst_node_id]
            received = _sent(message)
            self._replies[key] = _sent(app(received, context))
            sent.append(key)
        return sent

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        found = [self._replies.pop(key, None) for key in message_ids]
        return [reply for reply in found if reply is not None]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))


def _sent(message: Message) -> Message:
    """The message as the other side has it: its content from its bytes."""
    content = recorddict_to_proto(message.content).SerializeToString()
    message.content = recorddict_from_proto(RecordDictProto.FromString(content))
    return message


class Turns:
    """Two threads, one round each in turn."""

    def __init__(self, number: int) -> None:
        self._mine = [threading.Semaphore(0) for _ in range(number)]
        self.seconds: list[list[float]] = [[] for _ in range(number)]
        self._began = 0.0

    def first(self, who: int) -> None:
        """Waits for one's first turn."""
        self._mine[who].acquire()
        self._began = time.perf_counter()

    def after_round(self, who: int) -> None:
        """Ends one's turn and waits for the next."""
        self.seconds[who].append(time.perf_counter() - self._began)
        self._mine[(who + 1) % len(self._mine)].release()
        self.first(who)

    def start(self) -> None:
        self._mine[0].release()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--width", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=20, help="of SGD on a device")
    parser.add_argument("--devices", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--mechanism", default="lambda_cgd")
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
    width, rounds = options.width, options.rounds + 1
    initial = [np.zeros([width, width], np.float32), np.zeros(width, np.float32)]

    def arrays() -> ArrayRecord:
        pairs = zip(("kernel", "bias"), initial)
        return ArrayRecord({name: Array(w.copy()) for name, w in pairs})

    # The same devices in every round: a separation of 1 is what plain FedAvg has.
    plan = tf_bandmf.plan(
        options.mechanism,
        noise_multiplier=1.0,
        delta=1e-6,
        num_steps=rounds,
        participation=tf_bandmf.MinSep(1, rounds),
    )
    policy = DevicePolicy.from_plan(plan)
    turns = Turns(2)

    def evaluated(who: int) -> Any:
        def evaluate(number: int, _: ArrayRecord) -> None:
            if number:  # FedAvg evaluates the first weights, too
                turns.after_round(who)

        return evaluate

    with tempfile.TemporaryDirectory() as folder:
        plain = [ClientApp() for _ in range(options.devices)]
        private = [
            private_client_app(
                policy, lambda context: str(context.node_config["store"])
            )
            for _ in range(options.devices)
        ]
        for app in (*plain, *private):
            add_training(app, width, options.steps)

        def run_plain() -> None:
            turns.first(0)
            strategy = FedAvg(fraction_evaluate=0.0)
            grid = HereGrid(plain, folder)
            strategy.start(grid, arrays(), rounds, evaluate_fn=evaluated(0))

        def run_private() -> None:
            turns.first(1)
            place = str(pathlib.Path(folder) / "run")
            strategy = PrivateFedAvg(plan, place, clients_per_round=options.devices)
            grid = HereGrid(private, folder)
            strategy.start(grid, arrays(), evaluate_fn=evaluated(1))

        threads = [
            threading.Thread(target=target, daemon=True)
            for target in (run_plain, run_private)
        ]
        for thread in threads:
            thread.start()
        turns.start()
        while len(turns.seconds[1]) < rounds:
            time.sleep(0.2)
            if not all(thread.is_alive() for thread in threads):
                break
        ours, theirs = np.array(turns.seconds[1]), np.array(turns.seconds[0])
    # The first round traces the noise, and asks the nodes for their names.
    ratios = ours[1:] / theirs[1 : len(ours)]
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, {options.mechanism}, "
        f"d = {sum(w.size for w in initial):,}, {options.devices} devices, "
        f"{options.steps} steps each: FedAvg {np.median(theirs[1:]):.3f} s per round, "
        f"PrivateFedAvg {np.median(ours[1:]):.3f} s, ratio {np.median(ratios):.2f} "
        f"({ratios.min():.2f} to {ratios.max():.2f})"
    )


if __name__ == "__main__":
    main()
