"""Shapes of the networks of `networks.py` and `peer_networks.py`, of no framework."""

from __future__ import annotations

BATCH_SIZES = {
    "resnet": 32,
    "wide_resnet": 8,
    "mobilenet_head": 16,
    "bert_tiny": 32,
    "lora": 16,
    "lstm": 64,
    "gru": 64,
}
LENGTH, BERT_VOCABULARY, GPT_VOCABULARY = 64, 30522, 8000
