"""The networks of `networks.py` in PyTorch, for Opacus; see `keras_peers.py`.

Same layers, sizes and batches; random weights. Where Opacus needs a layer of its own, the
ordinary network has PyTorch's: `private=True` builds the one that Opacus takes.
"""

from __future__ import annotations

from typing import Any, Callable

import torch
from network_shapes import BATCH_SIZES, BERT_VOCABULARY, GPT_VOCABULARY, LENGTH
from opacus.layers import DPGRU, DPLSTM, DPMultiheadAttention
from torch import nn

# Opacus needs layers of its own in these.
REPLACED = ("bert_tiny", "lstm", "gru")


class StandardizedConv2d(nn.Conv2d):
    """A convolution whose kernel is standardized (Qiao et al., arXiv:1903.10520)."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        axes = (1, 2, 3)
        mean = self.weight.mean(axes, keepdim=True)
        variance = self.weight.var(axes, keepdim=True, unbiased=False)
        kernel = (self.weight - mean) * torch.rsqrt(variance + 1e-5)
        return nn.functional.conv2d(x, kernel, self.bias, self.stride, self.padding)


class Residual(nn.Module):
    def __init__(self, depth: int, filters: int, stride: int, conv: Any) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(8, depth), nn.GroupNorm(8, filters)])
        self.first = conv(depth, filters, 3, stride=stride, padding=1)
        self.second = conv(filters, filters, 3, padding=1)
        self.shortcut = None
        if depth != filters or stride != 1:
            self.shortcut = conv(depth, filters, 1, stride=stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.norms[0](x))
        if self.shortcut is not None:
            x = self.shortcut(h)
        return x + self.second(torch.relu(self.norms[1](self.first(h))))


def _residual_network(width: int, blocks: int, conv: Any) -> nn.Module:
    layers: list[nn.Module] = [conv(3, 16, 3, padding=1)]
    depth = 16
    for stage, filters in enumerate((16 * width, 32 * width, 64 * width)):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            layers.append(Residual(depth, filters, stride, conv))
            depth = filters
    end = [nn.GroupNorm(8, depth), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, *end, nn.Linear(depth, 10))


def resnet(private: bool) -> nn.Module:
    return _residual_network(1, 2, nn.Conv2d)


def wide_resnet(private: bool) -> nn.Module:
    return _residual_network(4, 2, StandardizedConv2d)


class Recurrent(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, 64)
        self.layer = layer
        self.head = nn.Linear(128, 10)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embedding(tokens))[0][:, -1])


def lstm(private: bool) -> nn.Module:
    return Recurrent((DPLSTM if private else nn.LSTM)(64, 128, batch_first=True))


def gru(private: bool) -> nn.Module:
    return Recurrent((DPGRU if private else nn.GRU)(64, 128, batch_first=True))


class Bert(nn.Module):
    """BERT-tiny with a classifier: 2 layers of width 128, normalized after each part."""

    def __init__(self, private: bool) -> None:
        super().__init__()
        attention = DPMultiheadAttention if private else nn.MultiheadAttention
        sizes = (BERT_VOCABULARY, 512, 2)
        self.tables = nn.ModuleList([nn.Embedding(size, 128) for size in sizes])
        self.norms = nn.ModuleList([nn.LayerNorm(128) for _ in range(5)])
        self.attentions = nn.ModuleList(
            [attention(128, 2, dropout=0.1, batch_first=True) for _ in range(2)]
        )
        self.wide = nn.ModuleList([nn.Linear(128, 512) for _ in range(2)])
        self.narrow = nn.ModuleList([nn.Linear(512, 128) for _ in range(2)])
        self.pooled, self.head = nn.Linear(128, 128), nn.Linear(128, 10)
        self.dropout = nn.Dropout(0.1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        # Ghost clipping takes indices that are laid out one after the other.
        places = torch.arange(tokens.shape[1]).repeat(len(tokens), 1)
        indices = (tokens, places, torch.zeros_like(tokens))
        x = sum(table(ids) for table, ids in zip(self.tables, indices))
        x = self.dropout(self.norms[0](x))
        for i, attention in enumerate(self.attentions):
            h = attention(x, x, x, need_weights=False)[0]
            x = self.norms[2 * i + 1](x + self.dropout(h))
            h = self.narrow[i](nn.functional.gelu(self.wide[i](x)))
            x = self.norms[2 * i + 2](x + self.dropout(h))
        return self.head(self.dropout(torch.tanh(self.pooled(x[:, 0]))))


class Adapted(nn.Module):
    """A frozen product with an adapter of rank 8."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(width, width)  # Its bias is trained, as Keras does.
        self.frozen.weight.requires_grad_(False)
        self.down = nn.Linear(width, 8, bias=False)
        self.up = nn.Linear(8, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.frozen(x) + self.up(self.down(x))


class Gpt(nn.Module):
    """A frozen GPT-2 of 4 layers of width 256, adapters at queries and values."""

    def __init__(self) -> None:
        super().__init__()

        def each(make: Callable[[], nn.Module]) -> nn.ModuleList:
            return nn.ModuleList([make() for _ in range(4)])

        self.tokens = nn.Embedding(GPT_VOCABULARY, 256)
        self.places = nn.Embedding(LENGTH, 256)
        self.norms = nn.ModuleList([nn.LayerNorm(256) for _ in range(9)])
        self.keys, self.mixed = (each(lambda: nn.Linear(256, 256)) for _ in range(2))
        self.wide = each(lambda: nn.Linear(256, 1024))
        self.narrow = each(lambda: nn.Linear(1024, 256))
        self.requires_grad_(False)
        self.queries, self.values = (each(lambda: Adapted(256)) for _ in range(2))
        self.dropout = nn.Dropout(0.1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        places = torch.arange(tokens.shape[1]).expand_as(tokens)
        x = self.dropout(self.tokens(tokens) + self.places(places))
        for i in range(4):
            h = self.norms[2 * i](x)
            parts = (self.queries[i](h), self.keys[i](h), self.values[i](h))
            heads = [part.unflatten(2, (4, 64)).transpose(1, 2) for part in parts]
            h = nn.functional.scaled_dot_product_attention(
                *heads, dropout_p=0.1, is_causal=True
            )
            x = x + self.dropout(self.mixed[i](h.transpose(1, 2).flatten(2)))
            h = nn.functional.gelu(self.wide[i](self.norms[2 * i + 1](x)))
            x = x + self.dropout(self.narrow[i](h))
        return self.norms[8](x) @ self.tokens.weight.T


def lora(private: bool) -> nn.Module:
    return Gpt()


MODELS: dict[str, Callable[[bool], nn.Module]] = {
    "resnet": resnet,
    "wide_resnet": wide_resnet,
    "bert_tiny": Bert,
    "lora": lora,
    "lstm": lstm,
    "gru": gru,
}


def data(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Random inputs and classes, or next tokens."""
    size = BATCH_SIZES[name]
    classes = torch.randint(10, (size,))
    if name in ("resnet", "wide_resnet"):
        return torch.randn(size, 3, 32, 32), classes
    if name in ("lstm", "gru"):
        return torch.randint(1000, (size, LENGTH)), classes
    if name == "bert_tiny":
        return torch.randint(BERT_VOCABULARY, (size, LENGTH)), classes
    text = torch.randint(GPT_VOCABULARY, (size, LENGTH + 1))
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()
