"""What a ledger of many runs costs: reserving, settling, showing, verifying, a step.

    PYTHONPATH=. python benchmarks/ledger.py [RUNS] [URL]

Fills a ledger with RUNS runs (by default 100,000) in one transaction, by the code that
reserves, and then times single reservations, each in its transaction with what it takes to
reach the disk. URL is that of a database without a ledger; by default a file in a temporary
folder. The last lines compare steps of `fit` with and without a ledger.
"""

from __future__ import annotations

import hashlib
import os
import statistics
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["TF_BANDMF_LEDGER_WITNESS"] = tempfile.mkdtemp()

import tf_bandmf
from tf_bandmf.files import configs
from tf_bandmf.ledger import reservations

MEASURED = 200


def run_of(number):
    return hashlib.sha256(str(number).encode()).hexdigest()


def timed(function):
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def shown(name, seconds):
    ordered = sorted(seconds)
    middle = statistics.median(ordered)
    late = ordered[int(0.95 * (len(ordered) - 1))]
    print(f"{name:34} median {1e3 * middle:8.2f} ms, 95 % {1e3 * late:8.2f} ms")


def make_plan(ledger, mechanism, **changes):
    return tf_bandmf.plan(
        mechanism,
        delta=1e-9,
        num_examples=60_000,
        batch_size=500,
        epochs=2,
        ledger=ledger,
        dataset="clicks",
        **changes,
    )


def fill(ledger, plans, count):
    """As many runs, of one plan after the other; some of them have ended early."""
    texts = [configs.dumps(plan.to_config()) for plan in plans]
    with ledger._writing() as found:
        for number in range(count):
            place = number % len(plans)
            reservations.begin(
                found, "benchmark", plans[place], run_of(number), texts[place]
            )


def steps(ledger):
    """Seconds of a step with and without a ledger, in turns."""
    import keras
    import numpy as np

    import tf_bandmf.keras

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
        found[name] = (model, batches, [])
    for epoch in range(1, 10):
        for model, batches, seconds in found.values():
            took = timed(
                lambda model=model, batches=batches, epoch=epoch: model.fit(
                    batches, epochs=epoch + 1, initial_epoch=epoch, verbose=0
                )
            )
            seconds.append(took / 120)
    for name, (_, _, seconds) in found.items():
        shown(f"a step {name}", seconds)


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
    took = timed(lambda: fill(ledger, plans, count))
    print(
        f"{count} runs in one transaction: {took:.1f} s, {1e3 * took / count:.2f} ms each"
    )
    # Both within one budget that is generous, so that quick bounds decide.
    for name, plan in (("without amplification", gaussian[0]), ("Poisson", amplified)):
        names = iter(range(10**7 + (plan is amplified) * 10**6, 10**8))
        seconds = [
            timed(lambda plan=plan, n=next(names): ledger.begin(plan, run_of(n)))
            for _ in range(MEASURED)
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
    shown("verifying all of it", [timed(ledger.verify)])
    if ledger._store.is_sqlite:
        size = os.stat(f"{folder}/privacy.db").st_size
        print(f"{size / 1e6:.0f} MB, {size / count:.0f} bytes for each run")
    steps(ledger)


if __name__ == "__main__":
    main()
