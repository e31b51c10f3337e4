"""Sets the ids of the sender of messages, which Flower's processes would set."""

import pathlib
import sys

from flwr.supercore.task_identity import TaskIdentity

sys.path.insert(0, str(pathlib.Path(__file__).parent))
TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
