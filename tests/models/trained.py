"""Small networks, trained on generated tasks and on digits, to measure accuracies after quantization.

Each is trained in seconds to a minute on one core, with fixed seeds. Test samples are no training samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

__all__ = ["BATCH", "TASKS", "DigitsCnn", "Task", "Trained", "accuracy", "digits", "digits_epoch", "train"]

BATCH = 100
"""Batch size of the test samples: programs are exported for it."""


@dataclass(frozen=True)
class Task:
    """A task: training and test samples, and a network for it.

    Attributes
    ----------
    name : str
    network : callable
        Makes an untrained network. Its output has shape (N, classes) or (N, positions, classes).
    samples : callable
        Returns training inputs, training labels, test inputs and test labels. A label of -1 is not scored.
    epochs : int
    rate : float
        The largest learning rate.
    """

    name: str
    network: Callable[[], nn.Module]
    samples: Callable[[], tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]
    epochs: int
    rate: float = 2e-3


@dataclass(frozen=True)
class Trained:
    """A trained network in inference form, with its samples in batches of `BATCH`."""

    module: nn.Module
    calibration: list[torch.Tensor]
    tests: list[torch.Tensor]
    labels: list[torch.Tensor]
    task: Task


def train(task: Task, module: nn.Module | None = None, *, epochs: int | None = None) -> Trained:
    """Trains a new network for the task, or the module that is passed, with one thread and a fixed seed."""
    x, y, test_x, test_y = task.samples()
    epochs = task.epochs if epochs is None else epochs
    torch.manual_seed(0)
    model = task.network() if module is None else module
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=task.rate, weight_decay=1e-2)
    steps = epochs * -(-len(x) // 64)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, task.rate, total_steps=steps)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            logits = model(x[rows])
            loss = F.cross_entropy(logits.flatten(0, -2), y[rows].flatten(), ignore_index=-1)
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()
    whole = len(test_x) // BATCH * BATCH
    return Trained(
        model,
        list(x[: 5 * BATCH].split(BATCH)),
        list(test_x[:whole].split(BATCH)),
        list(test_y[:whole].split(BATCH)),
        task,
    )


def accuracy(run: Callable[[torch.Tensor], torch.Tensor | np.ndarray], trained: Trained) -> float:
    """The percentage of scored labels that are the class of the largest logit."""
    right = scored = 0
    with torch.no_grad():
        for x, y in zip(trained.tests, trained.labels, strict=True):
            found = torch.as_tensor(np.asarray(run(x))).argmax(-1)
            right += int(((found == y) & (y >= 0)).sum())
            scored += int((y >= 0).sum())
    return 100 * right / scored


# ---- digits ----


def digits(copies: int = 12, size: int = 10) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Scikit-learn's digits at random places of a larger, noisy image: (N, 1, size, size)."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = torch.from_numpy(images.reshape(-1, 8, 8) / 16.0).float()
    random = np.random.default_rng(0)
    test = np.arange(len(images)) % 4 == 0

    def placed(rows: np.ndarray, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        rows = np.tile(np.flatnonzero(rows), count)
        random.shuffle(rows)
        out = torch.from_numpy(random.normal(0, 0.1, (len(rows), 1, size, size))).float()
        for i, row in enumerate(rows):
            top, left = random.integers(0, size - 8 + 1, 2)
            out[i, 0, top : top + 8, left : left + 8] += images[row]
        return out, torch.from_numpy(labels[rows]).long()

    return (*placed(~test, copies), *placed(test, 40))


class DigitsCnn(nn.Module):
    """Three convolutions with batch norms, one of them without a bias, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(32 * 4, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(image).flatten(1))


class DepthwiseNet(nn.Module):
    """Inverted residuals as in MobileNet: expand, depthwise, project, add."""

    class Block(nn.Module):
        def __init__(self, channels: int, stride: int) -> None:
            super().__init__()
            wide = 4 * channels
            self.stride = stride
            self.layers = nn.Sequential(
                nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6(),
                nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False),
                nn.BatchNorm2d(wide), nn.ReLU6(),
                nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels),
            )  # fmt: skip

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layers(x) + x if self.stride == 1 else self.layers(x)

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.Hardswish()
        )
        self.blocks = nn.Sequential(*(self.Block(16, stride) for stride in (1, 2, 1, 2, 1)))
        self.head = nn.Linear(16, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(image)).mean((2, 3)))


class Attention(nn.Module):
    """Self-attention over (N, positions, width)."""

    def __init__(self, width: int, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, positions, width = x.shape
        qkv = self.qkv(x).view(n, positions, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(qkv[0], qkv[1], qkv[2], is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(n, positions, width))


class Layer(nn.Module):
    """A pre-norm transformer layer with GELU."""

    def __init__(self, width: int, heads: int, *, causal: bool = False) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal=causal)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class SmallVit(nn.Module):
    """A vision transformer over patches of 2 x 2 pixels."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 2, 2)
        self.place = nn.Parameter(0.02 * torch.randn(1, 25, width))
        self.layers = nn.Sequential(*(Layer(width, 4) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.patches(image).flatten(2).transpose(1, 2) + self.place
        return self.head(self.norm(self.layers(x)).mean(1))


# ---- sequences ----

_LENGTH, _SYMBOLS = 8, 16


def sequences(
    count: int = 6000, tests: int = 6000
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Symbols, a separator, the same symbols sorted. The labels are the next symbols of the sorted part."""
    random = np.random.default_rng(1)
    data = random.integers(0, _SYMBOLS, (tests + count, _LENGTH))
    separator = np.full((tests + count, 1), _SYMBOLS)
    whole = torch.from_numpy(np.concatenate([data, separator, np.sort(data, axis=1)], axis=1))
    x, y = whole[:, :-1].clone(), whole[:, 1:].clone()
    y[:, :_LENGTH] = -1
    return x[tests:], y[tests:], x[:tests], y[:tests]


class CausalTransformer(nn.Module):
    """A decoder with embeddings, learned positions and causal attention."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.tokens = nn.Embedding(_SYMBOLS + 1, width)
        self.place = nn.Parameter(0.02 * torch.randn(1, 2 * _LENGTH, width))
        self.layers = nn.Sequential(*(Layer(width, 4, causal=True) for _ in range(2)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, _SYMBOLS + 1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.layers(self.tokens(tokens) + self.place)))


TASKS = {
    task.name: task
    for task in (
        Task("digits_cnn", DigitsCnn, digits, 5, 4e-3),
        Task("depthwise", DepthwiseNet, digits, 4, 4e-3),
        Task("small_vit", SmallVit, digits, 15, 4e-3),
        Task("causal", CausalTransformer, sequences, 12),
    )
}


def digits_epoch(module: nn.Module) -> None:
    """Trains a module on the digits for an epoch, in batches of `BATCH`: a function for ``recipes.qat``."""
    x, y, *_ = digits()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-4)
    for rows in torch.randperm(len(x)).split(BATCH):
        if len(rows) == BATCH:
            optimizer.zero_grad()
            F.cross_entropy(module(x[rows]), y[rows]).backward()
            optimizer.step()
