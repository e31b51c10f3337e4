"""Adapters of a language model at several budgets, with seeds.

    python benchmarks/utility/text.py --text FILE [--epsilons 2 4 8]

The model, the text and the training of examples/language_model.py. As `run.py`: each row
chooses one of its learning rates by the perplexity of validation text, one run each, and
has that of other held-out text with several seeds, which are of the noise; secret samples
are drawn by the operating system. Results are appended to `results/text/adapters.csv`,
and what is there is not done again.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import pathlib
import sys
import time

import numpy as np
from results import HERE, Results

import tf_bandmf

sys.path.insert(0, str(HERE.parents[1] / "examples"))
import language_model as example

DELTA, EPOCHS, BATCH_SIZE = 1e-5, 4, 512
PUBLIC_CHARACTERS, PUBLIC_EPOCHS, CHARACTERS = 10**6, 5, 540_000
RATES = (0.1, 0.3, 1.0, 3.0)
TUNING_SEED = 100
ROWS = (
    *example.MECHANISMS,
    example.Mechanism(
        "BISR, amplified", {"mechanism": "bisr:4", "sampling": "balls-in-bins"}
    ),
)
COLUMNS = (
    "epsilon delta row phase seed learning_rate noise_stddev perplexity seconds"
).split()


class Runs:
    """Trains what the file does not have."""

    def __init__(self, text: example.Text, path: pathlib.Path) -> None:
        self.text, self.results = text, Results(path, COLUMNS)

    @functools.cached_property
    def public(self) -> list[np.ndarray]:
        """Weights of the model that was trained without privacy."""
        text = "\n".join(example.pydoc_data.topics.topics.values())
        windows = example.windows(text[:PUBLIC_CHARACTERS])
        return example.pretrain(windows, PUBLIC_EPOCHS)

    def frozen(self) -> float:
        """Perplexity of the public model; it is trained again for it."""
        return example.perplexity(example.adapted(self.public), self.text.test)

    def perplexity(
        self, row: example.Mechanism, epsilon: float, phase: str, rate: float, seed: int
    ) -> float:
        """After training with a mechanism, from the file if it is there."""
        known = {
            "epsilon": f"{epsilon:g}",
            "delta": f"{DELTA:g}",
            "row": row.title,
            "phase": phase,
            "seed": str(seed),
            "learning_rate": f"{rate:g}",
        }
        done = self.results.of(**known)
        if done:
            return float(done[0]["perplexity"])
        plan = tf_bandmf.plan(
            **row.arguments,
            epsilon=epsilon,
            delta=DELTA,
            num_examples=len(self.text.training),
            batch_size=BATCH_SIZE,
            epochs=EPOCHS,
            workload=f"sgd:momentum={example.MOMENTUM}",
        )
        public = self.public
        start = time.process_time()
        model = example.train_privately(
            public,
            self.text.training,
            dataclasses.replace(plan, test_seed=seed),
            rate,
            check=False,
        )
        held_out = self.text.test if phase == "test" else self.text.validation
        found = example.perplexity(model, held_out)
        row_of_file: dict[str, object] = {
            **known,
            "noise_stddev": f"{plan.noise_stddev / plan.l2_norm_clip:.4f}",
            "perplexity": f"{found:.4f}",
            "seconds": f"{time.process_time() - start:.0f}",
        }
        self.results.append([row_of_file])
        print(row_of_file, flush=True)
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=pathlib.Path, required=True)
    parser.add_argument("--epsilons", type=float, nargs="+", default=[2.0, 4.0, 8.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--frozen", action="store_true", help="the public model, too")
    arguments = parser.parse_args()

    private = arguments.text.read_text("utf-8", "replace")
    runs = Runs(
        example.split(private[:CHARACTERS]), HERE / "results" / "text" / "adapters.csv"
    )
    if arguments.frozen:
        print(f"public model, frozen: {runs.frozen():.2f}")
    for epsilon in arguments.epsilons:
        for row in ROWS:
            tuning = {
                rate: runs.perplexity(row, epsilon, "validation", rate, TUNING_SEED)
                for rate in RATES
            }
            rate = min(tuning, key=lambda one: tuning[one])
            found = np.array(
                [
                    runs.perplexity(row, epsilon, "test", rate, seed)
                    for seed in range(arguments.seeds)
                ]
            )
            error = found.std(ddof=1) / len(found) ** 0.5 if len(found) > 1 else 0.0
            print(
                f"epsilon {epsilon:g}, {row.title}, learning rate {rate:g}: "
                f"{found.mean():.2f} ± {error:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
