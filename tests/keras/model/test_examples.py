"""Runs two example programs on tiny data: a recommender and language model adapters."""

import re

import click.testing
import keras
import numpy as np
import pytest
from modules import module_at

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf.keras.clipping.sums.self_check import self_check


def test_the_self_check_takes_examples_that_cancel_but_for_rounding():
    example = module_at("examples/recommender.py")
    # The data contain only two item ids, like the batches that the self-check makes up.
    keras.utils.set_random_seed(1)
    model = tf_bandmf.keras.make_private(example.two_towers(300))
    rng = np.random.default_rng(3)
    history = rng.integers(0, 2, (2, example.HISTORY)).astype("int32")
    others = rng.integers(0, 2, (2, example.NEGATIVES + 1)).astype("int32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(), loss)
    x = {"history": history, "candidates": others}
    self_check(model, x, np.array([0, 1], "int32"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_recommender_runs():
    example = module_at("examples/recommender.py")
    arguments = "--users 300 --items 60 --kept 20 --seeds 1".split()
    for name in ("plain Keras", "λ-CGD, frequent items, in order"):
        arguments += ["--only", name]
    done = click.testing.CliRunner().invoke(example.main, arguments)
    assert done.exit_code == 0, done.output
    assert "noisy counts of items" in done.output
    assert "One user" in done.output


@pytest.mark.slow
def test_the_adapter_is_loaded_into_plain_kerashub(tmp_path, monkeypatch, capsys):
    pytest.importorskip("keras_hub")
    example = module_at("examples/language_model.py")
    monkeypatch.setattr(example, "MECHANISMS", example.MECHANISMS[:1])
    text, adapter = tmp_path / "private.txt", tmp_path / "adapter.lora.h5"
    text.write_text("To be, or not to be: that is the question.\n" * 100)
    options = {
        "--text": text,
        "--adapter": adapter,
        "--epochs": 1,
        "--batch-size": 32,
        "--learning-rates": 0.1,
        "--public-characters": 5000,
        "--public-epochs": 1,
    }
    example.main([str(part) for pair in options.items() for part in pair])
    printed = capsys.readouterr().out
    frozen, tuned, loaded = re.findall(r"perplexity (\d+\.\d+)", printed)
    assert tuned == loaded != frozen
    assert adapter.exists()
    assert "Formal statement" in printed
    assert "It writes" in printed
