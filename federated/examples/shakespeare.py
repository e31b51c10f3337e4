"""Compares mechanisms for a federated language model of Shakespeare's speakers.

    python federated/examples/shakespeare.py --data tinyshakespeare.txt

Each speaker of tiny Shakespeare is a device. A device is available at certain hours of
its local day, and takes part again only after `--min-separation` rounds. The program
trains a next-character model with DP-FedAvg, TFF's tree aggregation, lambda-CGD, BISR
and banded MF. All of them use the same cohorts and give the same (epsilon, delta) for
all contributions of a device. The program tests each model on sequences that no device
trains on, and writes curves.csv, table.md, privacy-banded.md and, if matplotlib is
installed, curves.png to `--out`.

There are far too few devices for a small epsilon. The program prints how many devices
would be needed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import contenders
import curves
import language_model
import speakers
import tensorflow as tf
import tensorflow_federated as tff

import tf_bandmf
import tf_bandmf_federated
from tf_bandmf_federated import Ledger, SimulatedClients, diurnal

SMALL_EPSILON = 2.0
QUICK = {"rounds": 8, "clients_per_round": 6, "sequences": 16}


def train(
    contender: contenders.Contender,
    source: SimulatedClients,
    ledger: Ledger,
    rounds: int,
    every: int,
    test: language_model.Test,
    seed: int,
) -> curves.Curve:
    """Trains with one mechanism, and returns the results of the model's tests.

    Args:
      contender: the mechanism, with its plan and its learning process.
      source: the devices.
      ledger: new ledger, which records the participations.
      rounds: number of rounds.
      every: the model is tested after every `every` rounds, and after the last round.
      test: function that returns the accuracy and the loss of model weights.
      seed: seed of the initial weights. It does not affect the noise.
    """
    process = contender.process
    tf.keras.utils.set_random_seed(seed)
    start = tff.learning.models.ModelWeights.from_model(language_model.build())
    state = process.set_model_weights(process.initialize(), start)
    title = contenders.TITLES[contender.name]
    curve = curves.Curve(title, contender.rmse, [], [], [])
    wanted = int(contender.plan.expected_batch_size or 1)
    cohorts = source.cohorts(ledger, wanted, rounds)
    for number in range(1, rounds + 1):
        # The ledger does not store the model, so a killed run starts over at round 0.
        ledger.finished(number - 2, {})
        ledger.released(number - 2)
        selected = cohorts.select(number - 1, wanted)
        ledger.started(number - 1, selected.names)
        data = [*map(contender.data, source.tagged(selected, number - 1))]
        state = process.next(state, data).state
        if number % every == 0 or number == rounds:
            accuracy, loss = test(process.get_model_weights(state))
            curve.rounds.append(number)
            curve.accuracy.append(accuracy)
            curve.loss.append(loss)
            print(f"{title}, round {number}: {accuracy:.1%}, {loss:.3f}", flush=True)
    return curve


def too_few(setting: contenders.Setting) -> str:
    """Returns a message that says how many devices a small epsilon would need."""
    now = setting.plan("banded")
    wanted = setting.plan(now.strategy, SMALL_EPSILON)
    ratio = wanted.noise_multiplier / now.noise_multiplier
    clients = round(setting.clients_per_round * ratio)
    return (
        f"epsilon = {setting.epsilon:g} for a device is NO meaningful protection. A few "
        f"hundred devices are far too few for a small epsilon, because the noise in the "
        f"mean update is proportional to 1 / clients per round. For epsilon = "
        f"{SMALL_EPSILON:g} and the same noise in the mean as banded MF has here, a "
        f"round needs {clients:,} clients instead of {setting.clients_per_round}, from "
        f"at least "
        f"{clients * setting.min_separation:,} devices."
    )


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parses the options; exits with code 2 if an option is invalid."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    positive = _number(float)
    count = _number(int)
    parser.add_argument("--data", required=True, metavar="PATH", help="the text")
    parser.add_argument("--out", default="demo-output/shakespeare", metavar="FOLDER")
    parser.add_argument("--epsilon", type=positive, default=100.0)
    parser.add_argument("--delta", type=positive, default=1e-5)
    parser.add_argument("--rounds", type=count, default=48)
    parser.add_argument("--clients-per-round", type=count, default=12)
    parser.add_argument("--min-separation", type=count, default=8)
    parser.add_argument(
        "--clip", type=positive, default=1.0, help="clip norm of an update"
    )
    parser.add_argument("--client-learning-rate", type=positive, default=4.0)
    parser.add_argument("--server-learning-rate", type=positive, default=1.0)
    parser.add_argument(
        "--sequences", type=count, default=64, help="training sequences of a device"
    )
    parser.add_argument(
        "--mechanisms",
        nargs="+",
        choices=list(contenders.TITLES),
        default=list(contenders.TITLES),
        metavar="NAME",
        help=f"some of {', '.join(contenders.TITLES)}",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of cohorts and initial weights"
    )
    parser.add_argument("--quick", action="store_true", help="a few small rounds")
    options = parser.parse_args(arguments)
    if options.quick:
        vars(options).update(QUICK)
    if options.delta >= 1:
        parser.error(f"--delta must be below 1, found {options.delta}")
    try:
        options.speakers = speakers.load(options.data)
    except (OSError, ValueError) as error:
        parser.error(f"--data: {error}")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains the model with each mechanism, one after the other."""
    options = parse(arguments)
    setting = contenders.Setting(
        epsilon=options.epsilon,
        delta=options.delta,
        rounds=options.rounds,
        clients_per_round=options.clients_per_round,
        min_separation=options.min_separation,
        l2_norm_clip=options.clip,
        client_learning_rate=options.client_learning_rate,
        server_learning_rate=options.server_learning_rate,
    )
    clients = options.speakers.datasets(options.sequences)

    def source_of(plan: tf_bandmf.Plan) -> SimulatedClients:
        return SimulatedClients(
            clients,
            plan,
            availability=diurnal(rounds_per_day=24, peak=0.6, trough=0.1),
            on_shortage="fewer",
            # With the same seed, all mechanisms get the same cohorts.
            seed=options.seed,
        )

    try:
        any_plan = setting.plan("identity")
        source_of(any_plan).check_enough(options.clients_per_round, options.rounds)
    except ValueError as error:
        sys.exit(f"shakespeare.py: error: {error}")
    print(
        f"{len(clients)} speakers; {len(options.speakers.test)} sequences for testing; "
        f"(epsilon, delta) = ({options.epsilon:g}, {options.delta:g})."
    )
    print(too_few(setting), flush=True)
    os.makedirs(options.out, exist_ok=True)
    test = language_model.Test(options.speakers)
    results = []
    for name in options.mechanisms:
        contender = contenders.build(name, setting)
        source, rounds = source_of(contender.plan), options.rounds
        every = max(1, rounds // 16)
        with (
            tempfile.TemporaryDirectory() as folder,
            Ledger(os.path.join(folder, "ledger"), {"plan": name}) as ledger,
        ):
            results.append(
                train(contender, source, ledger, rounds, every, test, options.seed)
            )
            measured = ledger.measured(rounds)
        if name == "banded":
            report(os.path.join(options.out, "privacy-banded.md"), contender, measured)
    write(options.out, results)


def report(
    path: str,
    contender: contenders.Contender,
    measured: tf_bandmf_federated.MeasuredParticipation,
) -> None:
    """Writes the privacy report of a contender's run."""
    tf_bandmf_federated.write_report(
        path,
        contender.plan,
        measured,
        operator=tf_bandmf_federated.OperatorStatements(
            released="accuracies and losses of some of the models, on lines of the same "
            "speakers that no device trained on.",
            public_data="none; the alphabet is fixed.",
            devices="a speaker is a user with one device.",
            enforcement="by the learning process, which rejects devices that take part "
            "too early, and by the ledger from which the devices were selected.",
            verifiability="federated/examples of the tf-bandmf repository.",
        ),
    )


def write(folder: str, results: Sequence[curves.Curve]) -> None:
    """Writes the curves to a CSV file, a Markdown table and a plot."""
    curves.write_csv(os.path.join(folder, "curves.csv"), results)
    table = curves.markdown(results)
    with open(os.path.join(folder, "table.md"), "w", encoding="utf-8") as file:
        file.write(table)
    print(f"\n{table}")
    if not curves.save_picture(os.path.join(folder, "curves.png"), results):
        print("matplotlib is not installed, so there is no curves.png; see curves.csv.")
    print(f"Written to {folder}.")


def _number(kind: type) -> object:
    def convert(text: str) -> float:
        value = kind(text)
        if not 0 < value < float("inf"):
            raise ValueError
        return value

    # If the conversion fails, argparse prints this name.
    convert.__name__ = f"number > 0 ({kind.__name__})"
    return convert


if __name__ == "__main__":
    main()
