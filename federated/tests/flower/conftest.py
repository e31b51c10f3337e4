"""Flower in one process: sets the sender of messages, as its processes would."""

import pathlib
import sys

from flwr.supercore.task_identity import TaskIdentity

sys.path.insert(0, str(pathlib.Path(__file__).parent))
TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
