"""The Shakespeare example runs on a small made-up text."""

import csv
import pathlib
import sys

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_privacy as tfp

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"
sys.path.insert(0, str(EXAMPLES))

import contenders  # noqa: E402
import shakespeare  # noqa: E402

WORDS = "the quick brown fox jumps over the lazy dog; Shall I? No!\n"


@pytest.fixture()
def text(tmp_path):
    speeches = [f"SPEAKER {i}:\n{WORDS * (3 + i)}" for i in range(6)]
    speeches += ["BRIEF:\nNo.", "SPEAKER 0:\n" + WORDS * 2, "a line without a name"]
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(speeches))
    return str(path)


@pytest.mark.slow
def test_the_example(text, tmp_path, capfd):
    out = tmp_path / "out"
    shakespeare.main(
        f"--data {text} --out {out} --rounds 2 --clients-per-round 2 --sequences 2 "
        f"--min-separation 2 --mechanisms tree banded --epsilon 50".split()
    )
    with open(out / "curves.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [(row["mechanism"], row["round"]) for row in rows] == [
        (title, number)
        for title in ("TFF's tree aggregation", "banded MF")
        for number in "12"
    ]
    assert all(0 <= float(row["accuracy"]) <= 1 for row in rows)
    table = (out / "table.md").read_text()
    assert table.count("\n") == 4 and "| banded MF |" in table
    report = (out / "privacy-banded.md").read_text()
    assert "(epsilon = 50" in report and "2 of 2 planned" in report
    printed = capfd.readouterr().out
    assert "NO meaningful protection" in printed and "6 speakers" in printed
    actual = {path.name for path in out.iterdir()} - {"curves.png"}
    assert actual == {"curves.csv", "table.md", "privacy-banded.md"}


class OneHot(tfp.tree_aggregation.ValueGenerator):
    """Gives the noise of every tree node its own direction."""

    def initialize(self):
        return tf.constant(0)

    def next(self, state):
        return tf.one_hot(state, 64), state + 1


def test_the_noise_of_the_tree_is_that_of_tff():
    setting = contenders.Setting(10.0, 1e-5, 13, 4, 3, 2.0, 1.0, 1.0)
    plan = setting.plan("tree")
    tree = tfp.tree_aggregation.EfficientTreeAggregator(OneHot())
    state = tree.init_state()
    rows = []
    for _ in range(plan.num_steps):
        row, state = tree.get_cumsum_and_update(state)
        rows.append(row.numpy())
    residuals = np.diff(rows, axis=0, prepend=0.0)
    models = plan.workload.to_dense() @ residuals
    expected = np.sqrt(np.mean(np.sum(models**2, axis=1))) * plan.noise_stddev
    np.testing.assert_allclose(contenders.tree_noise(plan), expected, rtol=1e-5)
    # The plan's decoder is optimal, so TFF's decoder leaves more noise.
    assert plan.rmse() * plan.l2_norm_clip < expected


def test_tffs_tree_gets_the_noise_of_the_plan():
    setting = contenders.Setting(10.0, 1e-5, 8, 4, 3, 2.0, 1.0, 1.0)
    plan = setting.plan("tree")
    # A round is in one tree node per level; a device takes part in rounds 0, 3 and 6
    # of 8.
    gram = np.array([[4.0, 2.0, 1.0], [2.0, 4.0, 1.0], [1.0, 1.0, 4.0]])
    sensitivity = np.sqrt(gram.sum())
    assert plan.sensitivity.value >= sensitivity * (1 - 1e-9)
    multiplier = contenders.node_noise_multiplier(plan)
    expected = plan.noise_multiplier * plan.sensitivity.value
    np.testing.assert_allclose(multiplier, expected)
    contender = contenders.build("tree", setting)
    state = contender.process.initialize()
    query = state.aggregator.query_state
    noise = query.numerator_state.tree_state.value_generator_state
    np.testing.assert_allclose(noise.stddev, expected * 2.0, rtol=1e-6)
    assert query.denominator == 4.0
