"""Private LoRA fine-tuning of a causal language model from KerasHub.

A small byte-level GPT-2 is first trained without privacy on the Python language
reference, and stands in for a public model. Then adapters of rank 8 are trained on
another text, which is private. The private text is cut into windows of 32 bytes. The
privacy unit is one window. The program compares DP-SGD with a correlated-noise
mechanism that stores no noise, at the same (epsilon, delta). For each mechanism, the
best of a few learning rates is chosen on validation text, and the printed perplexity is
measured on other held-out text. Finally, the program saves the adapters, loads them
into an ordinary KerasHub model, and generates text.

    python examples/language_model.py              # private text: Python's docstrings
    python examples/language_model.py --text FILE  # private text: your own file

The example needs `pip install ".[keras,hub]"` in a clone, downloads nothing, and takes a
few minutes on two cores.
"""

from __future__ import annotations

import argparse
import ast
import pathlib
import pydoc_data.topics
import sysconfig
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import keras_hub
import numpy as np

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf.planning import learning_rates

LENGTH, VOCABULARY, RANK = 32, 128, 8
ADAPTED = [
    "query",
    "value",
    "feedforward_intermediate_dense",
    "feedforward_output_dense",
]


class Mechanism(NamedTuple):
    """A mechanism of the comparison: its title, and arguments of `tf_bandmf.plan`."""

    title: str
    arguments: dict[str, Any]


class Text(NamedTuple):
    """Three splits of a text, each an array [N, LENGTH + 1] of byte windows."""

    training: np.ndarray
    validation: np.ndarray
    test: np.ndarray


MOMENTUM = 0.9
MECHANISMS = (
    Mechanism("lambda-CGD, no noise state", {"mechanism": "lambda_cgd"}),
    Mechanism("DP-SGD, same batches", {"mechanism": "identity"}),
    Mechanism("DP-SGD, amplified", {"mechanism": "identity", "sampling": "poisson"}),
)


def docstrings(characters: int) -> str:
    """Returns about `characters` characters of the standard library's docstrings."""
    root = pathlib.Path(sysconfig.get_path("stdlib"))
    skipped = {"site-packages", "test", "tests", "idlelib", "pydoc_data"}
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    long_ones: list[str] = []
    for path in sorted(root.rglob("*.py")):
        if sum(map(len, long_ones)) > characters:
            break
        if skipped & set(path.relative_to(root).parts):
            continue
        try:
            tree = ast.parse(path.read_text("utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        nodes = (node for node in ast.walk(tree) if isinstance(node, documented))
        texts = (ast.get_docstring(node) or "" for node in nodes)
        long_ones += [text for text in texts if len(text) > 40]
    return "\n\n".join(long_ones)


def windows(text: str) -> np.ndarray:
    """Cuts a text into windows of LENGTH bytes, each with the byte that follows it.

    Returns:
      int32, shape [N, LENGTH + 1].
    """
    codes = np.frombuffer(text.encode("ascii", "replace"), np.uint8)
    count = (len(codes) - 1) // LENGTH
    starts = LENGTH * np.arange(count)[:, None]
    return codes[starts + np.arange(LENGTH + 1)].astype(np.int32)


def split(text: str) -> Text:
    """Splits a text into 90% for training, 5% for validation and 5% for testing."""
    rows = windows(text)
    first, second = len(rows) * 18 // 20, len(rows) * 19 // 20
    return Text(rows[:first], rows[first:second], rows[second:])


def inputs_of(tokens: np.ndarray) -> dict[str, np.ndarray]:
    """Converts byte windows to inputs for KerasHub's language models."""
    return {"token_ids": tokens, "padding_mask": np.ones_like(tokens)}


def build_model() -> keras_hub.models.GPT2CausalLM:
    """Builds a byte-level GPT-2 with 31,000 parameters."""
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=VOCABULARY,
        num_layers=2,
        num_heads=2,
        hidden_dim=32,
        intermediate_dim=128,
        max_sequence_length=2 * LENGTH,
        dropout=0.0,
    )
    return keras_hub.models.GPT2CausalLM(backbone)


def compiled(model: keras.Model, optimizer: Any) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss=loss, weighted_metrics=[], sampler="top_p")
    return model


def adapted(public: list[np.ndarray]) -> keras.Model:
    """Builds the public model with adapters; only the adapters are trainable."""
    model = build_model()
    model.set_weights(public)
    model.backbone.enable_lora(RANK, target_layer_names=ADAPTED)
    for layer in model._flatten_layers():
        if getattr(layer, "lora_enabled", False) and layer.bias is not None:
            # Biases are not trained, because the file of a saved adapter has no biases.
            layer.bias.trainable = False
    return model


def perplexity(model: keras.Model, held_out: np.ndarray) -> float:
    """Returns a model's perplexity per byte on held-out windows."""
    x, y = inputs_of(held_out[:, :-1]), held_out[:, 1:]
    if not isinstance(model, tf_bandmf.keras.extending.PrivateTraining):
        compiled(model, "sgd")
    return float(np.exp(model.evaluate(x, y, batch_size=256, verbose=0)))


def pretrain(tokens: np.ndarray, epochs: int) -> list[np.ndarray]:
    """Trains a model without privacy, and returns its weights."""
    keras.utils.set_random_seed(0)
    model = build_model()
    steps = epochs * (len(tokens) // 128)
    rate = keras.optimizers.schedules.CosineDecay(3e-3, steps)
    compiled(model, keras.optimizers.Adam(rate))
    x, y = inputs_of(tokens[:, :-1]), tokens[:, 1:]
    model.fit(x, y, batch_size=128, epochs=epochs, verbose=0)
    return model.get_weights()


def train_privately(
    public: list[np.ndarray], tokens: np.ndarray, plan: Any, rate: float
) -> keras.Model:
    """Trains adapters of the public model with a plan, and returns the adapted model."""
    keras.utils.set_random_seed(1)
    model = tf_bandmf.keras.make_private(adapted(public))
    # At its end, `fit` sets the weights to their moving average, as `advise` recommends.
    # This is post-processing, which costs no privacy.
    memory = learning_rates.ema_momentum(plan.num_steps)
    # `additional_run=True` permits several runs on the same data. The privacy losses of
    # all runs add up, but only the model of one run would be released.
    optimizer = tf_bandmf.keras.PrivateOptimizer(
        keras.optimizers.SGD(
            rate, momentum=MOMENTUM, use_ema=True, ema_momentum=memory
        ),
        plan,
        clipping="automatic",
        additional_run=True,
    )
    compiled(model, optimizer)
    batches = plan.batches(inputs_of(tokens[:, :-1]), tokens[:, 1:])
    model.fit(batches, epochs=plan.num_steps // batches.steps_per_epoch, verbose=0)
    return model


def generated(model: keras.Model, prompt: np.ndarray) -> str:
    """Returns a prompt (an array [T] of bytes) and its continuation as a text."""
    codes = np.zeros((1, 2 * LENGTH), np.int32)
    codes[0, : len(prompt)] = prompt
    mask = (np.arange(2 * LENGTH) < len(prompt)).astype(np.int32)[None]
    result = model.generate(
        {"token_ids": codes, "padding_mask": mask}, stop_token_ids=None
    )
    return bytes(np.asarray(result["token_ids"])[0].astype(np.uint8)).decode("ascii")


def compare(
    public: list[np.ndarray], text: Text, arguments: argparse.Namespace
) -> keras.Model:
    """Trains with all mechanisms and learning rates, and prints the perplexities.

    Returns:
      The best model of the first mechanism.
    """
    chosen = []
    for title, options in MECHANISMS:
        plan = tf_bandmf.plan(
            **options,
            epsilon=arguments.epsilon,
            delta=arguments.delta,
            num_examples=len(text.training),
            batch_size=arguments.batch_size,
            epochs=arguments.epochs,
            workload=f"sgd:momentum={MOMENTUM}",
        )
        trials = []
        for rate in arguments.learning_rates:
            began = time.process_time()
            model = train_privately(public, text.training, plan, rate)
            trials.append((perplexity(model, text.validation), rate, model))
            seconds = time.process_time() - began
            print(
                f"  {title}, learning rate {rate:g}: {trials[-1][0]:.3f} in validation, "
                f"{plan.num_steps} steps, {seconds:.0f} s of processor time",
                flush=True,
            )
        _, rate, model = min(trials, key=lambda entry: entry[0])
        chosen.append(model)
        print(
            f"{title:28s} perplexity {perplexity(model, text.test):.3f}, learning rate "
            f"{rate:g}",
            flush=True,
        )
    return chosen[0]


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", help="a text file: the private data")
    parser.add_argument("--characters", type=int, default=540_000, help="of it")
    parser.add_argument("--epsilon", type=float, default=2.0)
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument(
        "--learning-rates", type=float, nargs="+", default=[0.3, 1.0, 3.0]
    )
    parser.add_argument("--public-characters", type=int, default=10**6)
    parser.add_argument("--public-epochs", type=int, default=5)
    parser.add_argument("--adapter", default="adapter.lora.h5")
    arguments = parser.parse_args(argv)

    public_text = "\n".join(pydoc_data.topics.topics.values())
    public_text = public_text[: arguments.public_characters]
    if arguments.text is None:
        private_text = docstrings(arguments.characters)
    else:
        private_text = pathlib.Path(arguments.text).read_text("utf-8", "replace")
    text = split(private_text[: arguments.characters])
    began = time.process_time()
    public = pretrain(windows(public_text), arguments.public_epochs)
    seconds = time.process_time() - began
    print(f"Pre-trained without privacy: {seconds:.0f} s of processor time.")
    frozen = perplexity(adapted(public), text.test)
    print(f"{'public model, frozen':28s} perplexity {frozen:.3f}", flush=True)

    model = compare(public, text, arguments)
    print(f"\n{model.privacy_statement()}\n")
    print("This statement covers one run, but not the other runs of this comparison.")
    model.backbone.save_lora_weights(arguments.adapter)
    # The adapter's file does not record which layers have adapters, so adapters are added
    # to the same layers before the file is loaded.
    plain = adapted(public)
    plain.backbone.load_lora_weights(arguments.adapter)
    print(
        f"\nLoaded {arguments.adapter} into {type(plain).__name__}: perplexity "
        f"{perplexity(plain, text.test):.3f}. It writes:\n"
    )
    print(generated(plain, text.test[0, :20]))


if __name__ == "__main__":
    main()
