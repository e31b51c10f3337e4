"""A Flower grid without a network, whose nodes are ClientApps in this process."""

import os

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, RecordDict
from flwr.serverapp import Grid

from tf_bandmf_federated.device_policy import DevicePolicy
from tf_bandmf_federated.flower import private_client_app

WEIGHTS = [np.zeros([3, 1], np.float32), np.zeros([1], np.float32)]


def is_train(message):
    return message.metadata.message_type == "train"


def on_updates(change):
    """Returns a function that applies `change` only to replies that hold updates."""
    return lambda reply: change(reply) if is_train(reply) else reply


def initial_arrays():
    return ArrayRecord({f"w{i}": Array(w) for i, w in enumerate(WEIGHTS)})


def adding(value, came):
    """Returns a training function that adds a constant to all weights.

    Args:
      value: the constant.
      came: list to which the function appends the number of each round.
    """

    def train(message, context):
        came.append(message.content["config"]["tf-bandmf.round"])
        arrays = message.content["arrays"]
        after = {n: Array(a.numpy() + np.float32(value)) for n, a in arrays.items()}
        return Message(RecordDict({"new": ArrayRecord(after)}), reply_to=message)

    return train


class Node:
    """A ClientApp with its own device store, which adds a constant to all weights."""

    def __init__(self, folder, policy, number, value):
        self.number = number
        # Contains the rounds in which the app has trained.
        self.came = []
        self.context = Context(1, number, {"store": folder}, RecordDict(), {})
        self.app = private_client_app(
            policy, lambda context: context.node_config["store"]
        )
        self.app.train()(adding(value, self.came))


class OneProcess(Grid):
    """A Flower grid whose nodes answer when the server pulls their replies.

    Attributes:
      nodes: the nodes, by number.
      silent: numbers of nodes that send their device names, but no updates.
      slow: numbers of nodes that do not answer until they are removed from this set.
      asked: (node number, content) of each train message.
      before_train: a function that is called with a round's train messages before they
        are sent.
      change: a function that is applied to each reply, and returns the reply to use.
    """

    def __init__(self, folder, plan, number):
        self._folder, self._plan = folder, plan
        policy = DevicePolicy.from_plan(plan)
        self.nodes = {
            i: Node(os.path.join(folder, str(i)), policy, i, float(i))
            for i in range(1, number + 1)
        }
        self.silent, self.slow, self.asked = set(), set(), []
        self.before_train, self.change = lambda messages: None, lambda reply: reply
        self._messages, self._count = {}, 0

    def restart(self, number, new_number):
        """Replaces a node with one that has a new number and the same device store."""
        policy = DevicePolicy.from_plan(self._plan)
        del self.nodes[number]
        folder = os.path.join(self._folder, str(number))
        self.nodes[new_number] = Node(folder, policy, new_number, float(number))

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *arguments, **options):
        raise NotImplementedError

    def get_node_ids(self):
        return list(self.nodes)

    def push_messages(self, messages):
        sent, messages = [], list(messages)
        if training := [m for m in messages if is_train(m)]:
            self.before_train(training)
        for message in messages:
            self._count += 1
            key = f"message {self._count}"
            message.metadata.__dict__["_message_id"] = key
            self._messages[key] = message
            if is_train(message):
                self.asked.append((message.metadata.dst_node_id, message.content))
            sent.append(key)
        return sent

    def pull_messages(self, message_ids):
        replies = []
        for key in message_ids:
            message = self._messages.get(key)
            number = None if message is None else message.metadata.dst_node_id
            if number is None or number in self.slow:
                continue
            if number not in self.nodes or (
                number in self.silent and is_train(message)
            ):
                continue
            node = self.nodes[number]
            del self._messages[key]
            try:
                reply = node.app(message, node.context)
            except Exception as error:
                reply = Message(Error(0, str(error)), reply_to=message)
            replies.append(self.change(reply))
        return replies

    def send_and_receive(self, messages, *, timeout=None):
        raise NotImplementedError
