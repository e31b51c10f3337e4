"""Opacus' private steps on the models of `keras_steps.py`; see `keras_peers.py`."""

from __future__ import annotations

import os
import warnings
from typing import Callable

import peer_networks
import torch
from opacus import PrivacyEngine
from opacus.layers import DPMultiheadAttention
from peer_timing import BATCH_SIZES, options, report
from torch import nn

warnings.filterwarnings("ignore")
VOCABULARY, LENGTH, WIDTH = 1000, 64, 128


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 512),
        nn.ReLU(),
        nn.Linear(512, 512),
        nn.ReLU(),
        nn.Linear(512, 10),
    )


def cnn() -> nn.Module:
    layers: list[nn.Module] = []
    depth = 3
    for filters in (32, 64, 128):
        layers += [nn.Conv2d(depth, filters, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        depth = filters
    dense = [nn.Flatten(), nn.Linear(2048, 96), nn.ReLU(), nn.Linear(96, 10)]
    return nn.Sequential(*layers, *dense)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(5)])
        self.attentions = nn.ModuleList(
            [DPMultiheadAttention(WIDTH, 4, batch_first=True) for _ in range(2)]
        )
        self.wide = nn.ModuleList([nn.Linear(WIDTH, 4 * WIDTH) for _ in range(2)])
        self.narrow = nn.ModuleList([nn.Linear(4 * WIDTH, WIDTH) for _ in range(2)])
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens)
        for i in range(2):
            h = self.norms[2 * i](x)
            x = x + self.attentions[i](h, h, h, need_weights=False)[0]
            h = self.norms[2 * i + 1](x)
            x = x + self.narrow[i](nn.functional.gelu(self.wide[i](h)))
        return self.head(self.norms[4](x))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "mlp": mlp,
    "cnn": cnn,
    "transformer": Transformer,
}


def data(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    if name in peer_networks.MODELS:
        return peer_networks.data(name)
    size = BATCH_SIZES[name]
    if name == "transformer":
        text = torch.randint(VOCABULARY, (size, LENGTH + 1))
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()
    shape = (784,) if name == "mlp" else (3, 32, 32)
    return torch.randn(size, *shape), torch.randint(10, (size,))


def step_of(name: str, mode: str | None, private_layers: bool) -> Callable[[], None]:
    if name in peer_networks.MODELS:
        model = peer_networks.MODELS[name](private_layers)
    else:
        model = MODELS[name]()
    x, y = data(name)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=1e-3)
    loss = nn.CrossEntropyLoss()
    if mode is not None:
        loader = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(x, y), batch_size=len(x)
        )
        extra = {"criterion": loss} if mode == "ghost" else {}
        made = PrivacyEngine().make_private(
            module=model,
            optimizer=optimizer,
            data_loader=loader,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            poisson_sampling=False,
            grad_sample_mode=mode,
            **extra,
        )
        if mode == "ghost":
            model, optimizer, loss, _ = made
        else:
            model, optimizer, _ = made
    model.train()
    # Ghost clipping takes tokens in one row, and is told of how many examples they are.
    extra = {"shape": y.shape} if mode == "ghost" and y.ndim == 2 else {}

    def step() -> None:
        optimizer.zero_grad()
        predicted = model(x)
        predicted = predicted.reshape(-1, predicted.shape[-1])
        loss(predicted, y.reshape(-1), **extra).backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", 2)))
    chosen = options()
    print(f"PyTorch {torch.__version__}")
    for name in chosen.models.split(","):
        modes = {"ordinary": (None, False)}
        if name in peer_networks.REPLACED:
            modes["ordinary, its layers"] = (None, True)
        modes |= {"hooks": ("hooks", True), "ghost": ("ghost", True)}
        makers = {k: lambda name=name, m=m: step_of(name, *m) for k, m in modes.items()}
        report(name, makers, chosen.rounds)
