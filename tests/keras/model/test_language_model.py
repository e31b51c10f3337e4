"""The example that fine-tunes a language model, at a tiny size."""

import importlib.util
import pathlib
import re

import numpy as np
import pytest

EXAMPLE = pathlib.Path(__file__).parents[3] / "examples" / "language_model.py"


@pytest.fixture
def example():
    pytest.importorskip("keras_hub")
    spec = importlib.util.spec_from_file_location("language_model", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_text_is_split_into_windows_and_their_next_bytes(example):
    text = "abcdefgh" * 200
    actual = example.windows(text)
    assert actual.shape == ((len(text) - 1) // example.LENGTH, example.LENGTH + 1)
    assert bytes(actual[:, :-1].astype(np.uint8).ravel()).decode() in text
    np.testing.assert_array_equal(actual[:-1, -1], actual[1:, 0])
    parts = example.split(text)
    np.testing.assert_array_equal(np.concatenate(parts), actual)


@pytest.mark.slow
def test_the_adapter_is_loaded_into_plain_kerashub(
    example, tmp_path, monkeypatch, capsys
):
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
