"""TFF's worker must not outlive the tests: it would keep their output open."""

import tf_bandmf_federated

tf_bandmf_federated.use_local_workers()
