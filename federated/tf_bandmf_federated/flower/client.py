"""The device side for Flower: enforces a plan's limits, and sends only the update."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from logging import INFO, WARNING, getLogger
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod

from tf_bandmf_federated.clipping import clip_update
from tf_bandmf_federated.device_policy import DevicePolicy
from tf_bandmf_federated.device_store import DeviceStore, Refused
from tf_bandmf_federated.eligibility import NEVER
from tf_bandmf_federated.flower import messages
from tf_bandmf_federated.flower.bundles import check_outside_of_apps

# Log with Flower's own logger.
log = getLogger("flwr").log
Where = str | Callable[[Context], str]


class ParticipationMod:
    """A Flower mod that enforces the limits of a plan on the device.

    On a `train` message, this mod records the participation on disk, and then calls the
    app, which replies with new weights in an `ArrayRecord`. The device sends only the
    change of the weights, clipped to the plan's clip norm. All other records in the
    app's reply are dropped. If the device's record forbids the participation, the mod
    refuses the request without calling the app. If the server repeats a message, the
    device sends its first answer again, which it has stored.

    Put this mod first in the list of mods, so that all other mods run inside it. Then
    call `install`, so that the app answers the server's query for the device's name.
    Messages other than `train` and this query are refused, because the answers would
    not be private.

    Args:
      policy: the plan's policy, `DevicePolicy.from_plan(plan)`. Requests for another
        plan are refused.
      store: folder for the device's record, or a function that maps Flower's context to
        that folder (for example, by reading `context.node_config`). The folder must
        outlive the app, and must not be shared with another device.
    """

    def __init__(self, policy: DevicePolicy, store: Where) -> None:
        self._policy = policy
        self._store = store

    def __call__(
        self, message: Message, context: Context, call_next: ClientAppCallable
    ) -> Message:
        """Handles a message; Flower requires this signature of mods."""
        kind = message.metadata.message_type
        category, _, action = kind.partition(".")
        if category == "train":
            return self._train(message, context, call_next)
        if category == "query" and action == messages.QUERY_ACTION:
            return self.answer(message, context)
        raise ValueError(
            f"This device refuses {kind!r} messages: the answer would not be private."
        )

    def install(self, app: ClientApp) -> ClientApp:
        """Lets the app answer the query for the device's name; returns the app."""
        app.query(messages.QUERY_ACTION)(self.answer)
        return app

    def answer(self, message: Message, context: Context) -> Message:
        """Answers the server's query: returns the device's name and record."""
        record = self._open(context).record
        about = ConfigRecord({"plan": self._policy.plan, **record})
        return Message(RecordDict({messages.REPLY: about}), reply_to=message)

    def _open(self, context: Context) -> DeviceStore:
        where = self._store(context) if callable(self._store) else self._store
        check_outside_of_apps(where, "A device's store")
        return DeviceStore(where, self._policy)

    def _train(
        self, message: Message, context: Context, call_next: ClientAppCallable
    ) -> Message:
        arrays = message.content.array_records[messages.ARRAYS]
        config = message.content.config_records[messages.CONFIG]
        number, run = int(config[messages.ROUND]), str(config[messages.RUN])  # type: ignore[arg-type]
        before = {name: array.numpy() for name, array in arrays.items()}
        fixed = config.get(messages.NOT_TRAINED, [])
        trained = [name for name in before if name not in fixed]  # type: ignore[operator]
        about: dict[str, Any] = {"plan": self._policy.plan, "run": run, "round": number}
        about.update(device="", problem="", last_round=NEVER, receipt="")
        try:
            if config[messages.PLAN] != self._policy.plan:
                raise Refused("the server and this device have different plans")
            store = self._open(context)
            # Send the record as it was before this round; the server checks it.
            record = store.record
            about.update(last_round=record["last_round"], receipt=record["receipt"])
            request = _digest((self._policy.plan, run, number, trained), before)
            given = message.content.config_records.get(messages.GIVEN, {})
            receipt = str(given.get(messages.RECEIPT, ""))
            update = store.begin(number, request, receipt)
        except Refused as error:
            log(INFO, "Round %d is refused: %s.", number, error)
            about["problem"] = f"{messages.REFUSED}: {error}"
            return _reply(message, about)
        about["device"] = record["device"]
        if update is None:
            try:
                update = self._update(message, context, call_next, before, trained)
            except Exception as error:
                # The error's type and message may reveal private data. Log them only on
                # the device.
                log(WARNING, "Round %d failed: %r", number, error)
                about["problem"] = messages.FAILED
                return _reply(message, about)
            store.keep(request, update)
        record = ArrayRecord(
            {name: Array(array) for name, array in zip(trained, update, strict=True)}
        )
        return _reply(message, about, record)

    def _update(
        self,
        message: Message,
        context: Context,
        call_next: ClientAppCallable,
        before: dict[str, np.ndarray],
        trained: list[str],
    ) -> list[np.ndarray]:
        """Calls the app, and returns the clipped update of the trained arrays."""
        reply = call_next(message, context)
        if reply.has_error():
            raise RuntimeError(reply.error.reason)
        records = reply.content.array_records
        if len(records) != 1:
            raise ValueError(
                f"The app's reply must have exactly one ArrayRecord (the weights after "
                f"training), but found {len(records)} ArrayRecords."
            )
        (weights,) = records.values()
        after = {name: array.numpy() for name, array in weights.items()}
        if _kinds(after) != _kinds(before):
            raise ValueError(
                "The weights in the app's reply must have the same names, shapes and "
                "dtypes, in the same order, as the weights that the app received."
            )
        with np.errstate(over="ignore", invalid="ignore"):
            update = [after[name] - before[name] for name in trained]
        clipped = clip_update(update, self._policy.l2_norm_clip)
        if not clipped.is_finite:
            log(WARNING, "The new weights are not finite. This device sends zeros.")
        return clipped.update


def private_client_app(
    policy: DevicePolicy,
    store: Where,
    mods: Iterable[Mod] = (),
) -> ClientApp:
    """Returns a `ClientApp` in which `ParticipationMod` is installed.

    Register the training function as with any `ClientApp`:

        app = private_client_app(DevicePolicy.load("policy.json"), store=...)

        @app.train()
        def train(message, context):
            ...  # reply with an ArrayRecord of the new weights

    Args:
      policy: the plan's policy.
      store: folder for the device's record, or a function that maps Flower's context to
        that folder, as for `ParticipationMod`.
      mods: further mods, which run inside the `ParticipationMod`.
    """
    mod = ParticipationMod(policy, store)
    return mod.install(ClientApp(mods=[mod, *mods]))


def _reply(
    message: Message, about: dict[str, Any], arrays: ArrayRecord | None = None
) -> Message:
    content = RecordDict({messages.REPLY: ConfigRecord(about)})
    if arrays is not None:
        content[messages.ARRAYS] = arrays
    return Message(content, reply_to=message)


def _kinds(arrays: dict[str, np.ndarray]) -> list[tuple[Any, ...]]:
    return [(name, array.shape, array.dtype.str) for name, array in arrays.items()]


def _digest(about: tuple[Any, ...], arrays: dict[str, np.ndarray]) -> str:
    """Returns a digest of the server's request: plan, run, round, and weights."""
    digest = hashlib.sha256(repr((about, _kinds(arrays))).encode())
    for array in arrays.values():
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
