# %% [markdown]
# # Fine-tuning a language model with LoRA
#
# A small GPT-2 of KerasHub learns English sentences without privacy, as a stand-in for
# a public model. Then adapters of rank 4 learn private sentences, with other word
# choices, with (ε, δ)-DP and correlated noise. All text is generated in this notebook;
# nothing is downloaded. For a real model, use `from_preset` instead of `build_model`.

# %%
import keras
import keras_hub
import numpy as np

import tf_bandmf
import tf_bandmf.keras
from tf_bandmf import plots

rng = np.random.default_rng(0)

# %% [markdown]
# ## Text
#
# All sentences have the same form. The person in a sentence determines the most likely
# verb, adjective and object; private and public text differ in these choices.

# %%
WHO = "ann ben carl dora emma finn gita hugo".split()
DOES = "sees paints buys sells mends finds hides draws".split()
HOW = "red blue green black white old new small".split()
WHAT = "boats books cups doors hats keys lamps shoes".split()
WORDS = [".", "the", *WHO, *DOES, *HOW, *WHAT]
LENGTH = 6  # "ann sees the red boats ."


def sentences(count, shift):
    """Draws sentences as word numbers, int32 [count, LENGTH]; one word in ten is random."""
    who, free = rng.integers(8, size=count), rng.integers(8, size=(3, count))
    kept = rng.random((3, count)) < 0.9
    does = np.where(kept[0], (3 * who + shift) % 8, free[0])
    how = np.where(kept[1], (5 * does + shift) % 8, free[1])
    what = np.where(kept[2], (3 * how + shift) % 8, free[2])
    the, stop = np.ones(count, int), np.zeros(count, int)
    columns = [2 + who, 10 + does, the, 18 + how, 26 + what, stop]
    return np.stack(columns, axis=1).astype("int32")


def text(rows):
    return [" ".join(WORDS[i] for i in row) for row in rows]


PUBLIC, PRIVATE = 0, 3
public, private = sentences(4000, PUBLIC), sentences(8000, PRIVATE)
validation, test = sentences(1000, PRIVATE), sentences(1000, PRIVATE)
print("public: ", text(public[:3]))
print("private:", text(private[:3]))

# %% [markdown]
# ## A public model


# %%
def inputs_of(rows):
    return {"token_ids": rows[:, :-1], "padding_mask": np.ones_like(rows[:, :-1])}


def build_model():
    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size=len(WORDS),
        num_layers=1,
        num_heads=2,
        hidden_dim=32,
        intermediate_dim=64,
        max_sequence_length=LENGTH,
        dropout=0.0,
    )
    return keras_hub.models.GPT2CausalLM(backbone)


def compiled(model, optimizer):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss=loss, weighted_metrics=[], sampler="greedy")
    return model


def perplexity(model, rows):
    """Returns the perplexity per word of a model on rows of text."""
    loss = model.evaluate(inputs_of(rows), rows[:, 1:], batch_size=500, verbose=0)
    return float(np.exp(loss))


keras.utils.set_random_seed(0)
model = compiled(build_model(), keras.optimizers.Adam(3e-3))
model.fit(inputs_of(public), public[:, 1:], batch_size=100, epochs=10, verbose=0)
weights = model.get_weights()
print(f"perplexity of public text {perplexity(model, sentences(1000, PUBLIC)):.2f}")
frozen = perplexity(model, test)
print(f"perplexity of private text {frozen:.2f}")

# %% [markdown]
# No model of the private text can have a lower perplexity than the true distribution:

# %%
likely, other = 0.9 + 0.1 / 8, 0.1 / 8
entropy = -(likely * np.log(likely) + 7 * other * np.log(other))
print(f"least perplexity {np.exp(3 * entropy / (LENGTH - 1)):.2f}")

# %% [markdown]
# ## A plan
#
# The privacy unit is one sentence. Before training, the plan computes the error of its
# noise, which is compared with the error of DP-SGD on the same batches.

# %%
EPOCHS = 12
budget = {"epsilon": 1, "delta": 1e-5}
use = {"num_examples": len(private), "batch_size": 400, "epochs": EPOCHS}
use["workload"] = "sgd:momentum=0.9"
plan = tf_bandmf.plan("bisr", **budget, **use)
fresh = tf_bandmf.plan("identity", **budget, **use)
print(
    f"{plan.num_steps} steps; RMSE of the noise {plan.rmse():.1f}, DP-SGD {fresh.rmse():.1f}"
)

# %% [markdown]
# ## Adapters, trained privately
#
# `enable_lora` freezes everything except the adapters; `make_private` and
# `PrivateOptimizer` are used in the same way as for any model. With automatic clipping,
# there is no clip norm to tune. The learning rate, the momentum and the averaging of
# the weights follow from the plan and the number of trained weights.

# %%
ADAPTED = [
    "query",
    "value",
    "feedforward_intermediate_dense",
    "feedforward_output_dense",
]


def with_adapters():
    model = build_model()
    model.set_weights(weights)
    model.backbone.enable_lora(4, target_layer_names=ADAPTED)
    for layer in model._flatten_layers():
        if getattr(layer, "lora_enabled", False) and layer.bias is not None:
            layer.bias.trainable = False  # The adapter's file contains no biases.
    return model


keras.utils.set_random_seed(1)
model = tf_bandmf.keras.make_private(with_adapters())
trained = sum(int(np.prod(weight.shape)) for weight in model.trainable_weights)
optimizer = tf_bandmf.keras.PrivateOptimizer(
    keras.optimizers.SGD(**plan.optimizer_arguments(trained)),
    plan,
    clipping="automatic",
)
compiled(model, optimizer)
history = model.fit(
    plan.batches(inputs_of(private), private[:, 1:]),
    epochs=EPOCHS,
    validation_data=(inputs_of(validation), validation[:, 1:]),
    verbose=0,
)
print(f"{trained:,} of {model.count_params():,} weights are trained")
print(
    f"perplexity of private text: {frozen:.2f} before, {perplexity(model, test):.2f} after"
)
axes = plots.training_curves(
    {"BISR": [np.exp(history.history["val_loss"])]}, "perplexity in validation"
)

# %% [markdown]
# This was a toy example, with one run and one seed: `examples/language_model.py`
# compares mechanisms on more text, with tuned learning rates.
#
# ## Release
#
# Only the adapter was trained, so only its file has to be shared. An ordinary KerasHub
# model can load it.

# %%
model.backbone.save_lora_weights("adapter.lora.h5")
plain = compiled(with_adapters(), "sgd")
plain.backbone.load_lora_weights("adapter.lora.h5")
print(f"{type(plain).__name__}: perplexity {perplexity(plain, test):.2f}")
print(model.privacy_statement())
