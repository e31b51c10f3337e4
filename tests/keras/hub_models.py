"""Small KerasHub models with random weights, and data for them."""

import functools
import inspect

import keras_hub
import numpy as np

VOCABULARY, LENGTH, CLASSES = 20, 6, 3
SIZES = {"vocabulary_size": VOCABULARY, "num_layers": 1, "hidden_dim": 8}
SIZES["intermediate_dim"] = 12
ENCODER = {**SIZES, "num_heads": 2, "max_sequence_length": 8, "dropout": 0.0}
DECODER = {**SIZES, "num_query_heads": 2, "num_key_value_heads": 1}
# Options that Gemma 2 needs in addition to those of Gemma.
SECOND = {
    "use_post_ffw_norm": True,
    "use_post_attention_norm": True,
    "final_logit_soft_cap": 30.0,
    "attention_logit_soft_cap": 50.0,
    "use_sliding_window_attention": True,
    "sliding_window_size": 4,
}
# Values of all size arguments. Each backbone gets the arguments that it accepts.
EVERY_SIZE = dict(
    **{**ENCODER, **DECODER},
    num_experts=2,
    head_dim=4,
    mlp_dim=16,
    max_encoder_sequence_length=8,
    max_decoder_sequence_length=8,
    num_mels=8,
    bucket_size=4,
    image_size=16,
    image_shape=(16, 16, 3),
    patch_size=8,
    input_conv_filters=[64],
    input_conv_kernel_sizes=[3],
    stackwise_num_filters=[64],
    stackwise_num_blocks=[1],
    stackwise_num_strides=[1],
    block_type="basic_block",
)
models = keras_hub.models


def bert(preprocessor=None, **sizes):
    backbone = models.BertBackbone(**{**ENCODER, **sizes})
    return models.BertTextClassifier(
        backbone, num_classes=CLASSES, dropout=0.0, preprocessor=preprocessor
    )


def distil_bert():
    return models.DistilBertMaskedLM(models.DistilBertBackbone(**ENCODER))


def gpt2(**sizes):
    return models.GPT2CausalLM(models.GPT2Backbone(**{**ENCODER, **sizes}))


def gemma(**more):
    backbone = models.GemmaBackbone(**DECODER, head_dim=4, **more)
    return models.GemmaCausalLM(backbone)


def llama():
    return models.LlamaCausalLM(models.LlamaBackbone(**DECODER))


MAKERS = {f.__name__: f for f in (bert, distil_bert, gpt2, gemma, llama)}
MAKERS["gemma2"] = functools.partial(gemma, **SECOND)


def backbone(name):
    make = getattr(models, f"{name}Backbone")
    names = inspect.signature(make).parameters
    return make(**{name: size for name, size in EVERY_SIZE.items() if name in names})


def adapted(name):
    """Returns the named model with a frozen backbone and trainable LoRA adapters."""
    model = MAKERS[name]()
    model.backbone.enable_lora(2)
    return model


def data(name, count=5):
    """Returns inputs with padding of varying length, targets and sample weights."""
    rng = np.random.default_rng(0)
    ids = rng.integers(1, VOCABULARY, (count, LENGTH)).astype("i4")
    padding = (np.arange(LENGTH) < LENGTH - np.arange(count)[:, None] % 3).astype("i4")
    x = {"token_ids": ids, "padding_mask": padding}
    if name == "bert":
        x["segment_ids"] = np.zeros_like(ids)
        return x, rng.integers(0, CLASSES, count).astype("i4"), None
    if name == "distil_bert":
        x["mask_positions"] = rng.integers(0, LENGTH, (count, 2)).astype("i4")
        weights = np.ones((count, 2), "f4")
        weights[::2, 1] = 0.0
        return x, rng.integers(0, VOCABULARY, (count, 2)).astype("i4"), weights
    return x, np.roll(ids, -1, axis=1), padding.astype("f4")
