"""Simulated devices, for tests of runs without Flower or TensorFlow Federated."""

import hashlib
import os

import numpy as np

from tf_bandmf_federated.averaging import Replies
from tf_bandmf_federated.clipping import clip_update
from tf_bandmf_federated.cohorts import Cohorts
from tf_bandmf_federated.device_policy import DevicePolicy
from tf_bandmf_federated.device_store import DeviceStore, Refused
from tf_bandmf_federated.rounds import Run


class Crash(BaseException):
    """Simulates a kill of the server; `except Exception` does not catch it."""


class Models:
    """Collects the released models in order; raises `Crash` after model `dies_at`."""

    def __init__(self, dies_at=None):
        self.released, self._dies_at = [], dies_at

    async def release(self, value, key):
        content = np.concatenate([np.ravel(w) for w in value]).tobytes()
        self.released.append((key, content))
        if key == self._dies_at:
            raise Crash


class Weights(dict):
    """Collects the released weights; keys are the numbers of finished rounds."""

    async def release(self, value, key):
        self[key] = value[0].astype(np.float64)


def make_run(engine, devices, folder, over_selection=1.0, **options):
    """Makes a run of the engine `FederatedAveraging` with simulated devices."""

    def cohorts(ledger):
        participation = engine.plan.participation
        present = lambda round_number: devices.present()  # noqa: E731
        return Cohorts(ledger, present, participation, over_selection)

    return Run(engine, cohorts, str(folder), **options)


class SimulatedDevices:
    """Simulated devices. Each has a store, and adds its own constant to the weights.

    Args:
      folder: folder for the stores of all devices.
      plan: plan of the run.
      number: number of devices.
    """

    def __init__(self, folder, plan, number):
        policy = DevicePolicy.from_plan(plan)
        stores = [
            DeviceStore(os.path.join(folder, f"{i}"), policy) for i in range(number)
        ]
        self.stores = {store.record["device"]: store for store in stores}
        self.values = {
            store.record["device"]: i + 1.0 for i, store in enumerate(stores)
        }
        self.clip = plan.l2_norm_clip
        self.gone = set()
        # Contains a tuple (round, weights, names) for each request.
        self.asked = []

    def present(self):
        return [name for name in self.stores if name not in self.gone]

    def exchange(self, request, add):
        content = np.concatenate([np.ravel(w) for w in request.weights]).tobytes()
        model = hashlib.sha256(content).hexdigest()
        self.asked.append((request.round_number, content, request.names))
        refused = 0
        for name in request.names:
            if name in self.gone:
                continue
            digest = f"{request.run} {request.round_number} {model}"
            try:
                kept = self.stores[name].begin(request.round_number, digest)
            except Refused:
                refused += 1
                continue
            if kept is None:
                trained = [np.full(w.shape, self.values[name]) for w in request.weights]
                kept = clip_update(trained, self.clip).update
                self.stores[name].keep(digest, kept)
            add(name, kept)
        return Replies(refused=refused)
