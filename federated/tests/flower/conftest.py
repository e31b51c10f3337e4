"""Sets the sender's ids for messages, which Flower's own processes would set."""

from flwr.supercore.task_identity import TaskIdentity

TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
