"""Sets the ids of the sender of messages, as Flower's own processes would do."""

from flwr.supercore.task_identity import TaskIdentity

TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
