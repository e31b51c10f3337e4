"""Sets the ids that Flower's own processes would write into each message they send."""

from flwr.supercore.task_identity import TaskIdentity

TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1
