"""What a ledger of many runs costs: reserving, settling, showing, verifying, a step.

    PYTHONPATH=. python benchmarks/ledger.py [RUNS] [URL]

Fills a ledger with RUNS runs (by default 100,000) in one transaction, and then times
single reservations, each in its own, with what it takes to reach the disk: by the clock,
and of the processor. URL is that of a database without a ledger; by default a file in a
temporary folder. The last lines compare steps of `fit` with and without a ledger.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import statistics
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["TF_BANDMF_LEDGER_WITNESS"] = tempfile.mkdtemp()

import tf_bandmf
from tf_bandmf.accounting.guarantee import ZERO_OUT
from tf_bandmf.files import configs
from tf_bandmf.ledger import datasets, reservations, schema
from tf_bandmf.ledger.balances import Balance
from tf_bandmf.ledger.chain import Entry, canonical
from tf_bandmf.ledger.costs import plan_cost

MEASURED = 200


def run_of(number):
    return hashlib.sha256(str(number).encode()).hexdigest()


def timed(function):
    """Seconds by the clock, and of the processor."""
    began, busy = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - began, time.process_time() - busy


def shown(name, times):
    times = [each if isinstance(each, tuple) else (each, None) for each in times]
    ordered = sorted(each for each, _ in times)
    middle = statistics.median(ordered)
    late = ordered[int(0.95 * (len(ordered) - 1))]
    text = f"{name:36} median {1e3 * middle:9.2f} ms, 95 % {1e3 * late:9.2f} ms"
    if times[0][1] is not None:
        busy = statistics.median(each for _, each in times)
        text += f", processor {1e3 * busy:9.2f} ms"
    print(text, flush=True)


def make_plan(ledger, mechanism, **changes):
    plan = tf_bandmf.plan(
        mechanism,
        delta=1e-9,
        num_examples=60_000,
        batch_size=500,
        epochs=2,
        **changes,
    )
    return ledger.bind(plan, "clicks")


def fill(ledger, plans, count):
    """As many runs, of one plan after the other, as `ledger.begin` would write them.

    With the rows of many at once, which takes a hundredth of the time; `verify` computes
    afterwards whether they are right.
    """
    account = datasets.account_key("clicks", "always", datasets.ALL_DATA)
    costs = [plan_cost(plan, ZERO_OUT) for plan in plans]
    texts = [reservations.described(plan) for plan in plans]
    balance, rows, touched = Balance(), [], []
    with ledger._writing() as found:
        newest = found.newest()
        for plan in plans:
            found.keep_plan(plan.fingerprint, configs.dumps(plan.to_config()))
        for number in range(count):
            cost = costs[number % len(plans)]
            balance = balance.plus(cost)
            body = {
                **texts[number % len(plans)],
                "partitions": [],
                "period": "always",
                "cost": cost.to_json(),
                "rest": [],
                "accounts": {account: balance.to_json()},
            }
            newest = Entry(
                newest.number + 1,
                newest.at,
                "benchmark",
                "begun",
                "clicks",
                run_of(number),
                canonical(body),
                newest.digest,
            ).sealed()
            rows.append(dataclasses.asdict(newest))
            touched.append({"account": account, "number": newest.number})
        connection = found._connection
        connection.execute(schema.entries.insert(), rows)
        connection.execute(schema.touched.insert(), touched)
        head = {"number": newest.number, "digest": newest.digest}
        connection.execute(schema.head.update().values(**head))


def steps(ledger):
    """Seconds of a step with and without a ledger, in turns."""
    import keras
    import numpy as np

    import tf_bandmf.keras

    class Clock(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.seconds = []

        def on_train_batch_begin(self, batch, logs=None):
            self._began = time.perf_counter()

        def on_train_batch_end(self, batch, logs=None):
            self.seconds.append(time.perf_counter() - self._began)

    rng = np.random.default_rng(0)
    x = rng.normal(size=(60_000, 20)).astype("float32")
    y = rng.integers(0, 3, 60_000)
    found = {}
    for name in ("without", "with a ledger"):
        options = {"ledger": ledger, "dataset": "clicks"} if "with " in name else {}
        plan = tf_bandmf.plan(
            "lambda_cgd:0.9",
            noise_multiplier=5.0,
            delta=1e-9,
            num_examples=60_000,
            batch_size=500,
            epochs=10,
            **options,
        )
        model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(3)])
        tf_bandmf.keras.make_private(model, self_check=False)
        model.compile(
            tf_bandmf.keras.PrivateOptimizer("sgd", plan, additional_run=True),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
        batches = plan.batches(x, y)
        model.fit(batches, epochs=1, verbose=0)
        found[name] = (model, batches, Clock())
    for epoch in range(1, 10):
        for model, batches, clock in found.values():
            model.fit(
                batches,
                epochs=epoch + 1,
                initial_epoch=epoch,
                verbose=0,
                callbacks=[clock],
            )
    for name, (_, _, clock) in found.items():
        shown(f"a step {name}", clock.seconds)


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    folder = tempfile.mkdtemp()
    url = sys.argv[2] if len(sys.argv) > 2 else f"sqlite:///{folder}/privacy.db"
    ledger = tf_bandmf.Ledger(url)
    ledger.add_dataset("clicks", epsilon=1e4, delta=1e-3)
    gaussian = [
        make_plan(ledger, "lambda_cgd:0.9", noise_multiplier=100.0 + i)
        for i in range(10)
    ]
    amplified = make_plan(ledger, "identity", noise_multiplier=20.0, sampling="poisson")
    plans = [*gaussian, amplified]
    took, _ = timed(lambda: fill(ledger, plans, count))
    print(
        f"{count} runs in one transaction: {took:.1f} s, {1e3 * took / count:.2f} ms each"
    )
    for first, name, plan in (
        (10**7, "without amplification", gaussian[0]),
        (2 * 10**7, "Poisson", amplified),
    ):
        seconds = [
            timed(lambda plan=plan, n=n: ledger.begin(plan, run_of(n)))
            for n in range(first, first + MEASURED)
        ]
        shown(f"a reservation, {name}", seconds)
    seconds = [
        timed(lambda n=n: ledger.begin(gaussian[0], run_of(10**7 + n)))
        for n in range(MEASURED)
    ]
    shown("finding it again (resuming)", seconds)
    seconds = [
        timed(
            lambda n=n: ledger.end(
                run_of(10**7 + n), plan=gaussian[0], steps=100, reason="benchmark"
            )
        )
        for n in range(MEASURED // 4)
    ]
    shown("settling a run", seconds)
    shown("showing what is spent", [timed(lambda: ledger.spent("clicks"))])
    found = []
    shown("verifying all of it", [timed(lambda: found.append(ledger.verify()))])
    assert found[0].is_intact, str(found[0])
    if ledger._store.is_sqlite:
        size = os.stat(f"{folder}/privacy.db").st_size
        print(f"{size / 1e6:.0f} MB, {size / count:.0f} bytes for each run")
    steps(ledger)


if __name__ == "__main__":
    main()
