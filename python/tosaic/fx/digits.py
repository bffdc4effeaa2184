"""The network of ``tosaic demo``: a small CNN, trained on scikit-learn's 8x8 digits in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from tosaic.base.process import setting_changed

_SEED = 0
_TEST_SHARE = 5  # every fifth image is a test image


@dataclass(frozen=True)
class TrainedDigits:
    """A trained network, its test data, and the pictures that it was trained on.

    Attributes
    ----------
    model : torch.nn.Module
    exported : torch.export.ExportedProgram
        Exported for the whole batch of test images.
    images : numpy.ndarray
        f32, (N, 1, 8, 8).
    labels : numpy.ndarray
        i64, (N,).
    logits : numpy.ndarray
        Computed by torch eager, f32, (N, 10).
    exact_logits : numpy.ndarray
        The logits of the same network in float64.
    parameters : int
    training : numpy.ndarray
        f32, (M, 1, 8, 8).
    """

    model: nn.Module
    exported: Any
    images: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]
    logits: np.ndarray[Any, Any]
    exact_logits: np.ndarray[Any, Any]
    parameters: int
    training: np.ndarray[Any, Any]

    def run(self) -> np.ndarray[Any, Any]:
        """Computes the logits of the test images in torch eager, f32, (N, 10)."""
        with torch.no_grad():
            found: np.ndarray[Any, Any] = self.model(torch.from_numpy(self.images)).numpy()
        return found


class DigitsNet(nn.Module):
    """Two conv-bn-relu-pool blocks and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.block1 = _block(1, 16)
        self.block2 = _block(16, 32)
        self.head = nn.Linear(32 * 2 * 2, 10)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Computes the logits, (N, 10), of images, (N, 1, 8, 8)."""
        logits: torch.Tensor = self.head(self.block2(self.block1(image)).flatten(1))
        return logits


def _block(channels_in: int, channels_out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 3, padding=1),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )


def train_digits(*, epochs: int = 8) -> TrainedDigits:
    """Trains, tests and exports the network; on one machine, each run computes the same numbers."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = (images.reshape(-1, 1, 8, 8) / 16.0).astype(np.float32)
    test = np.arange(len(images)) % _TEST_SHARE == 0
    # Layers this small gain nothing from threads, which wait for each other if other programs run.
    one_thread = setting_changed(torch.get_num_threads, torch.set_num_threads, 1)
    with torch.random.fork_rng(), one_thread:
        torch.manual_seed(_SEED)
        model = _train(DigitsNet(), torch.from_numpy(images[~test]), torch.from_numpy(labels[~test]), epochs)
    model.eval()
    example = torch.from_numpy(images[test])
    exported = torch.export.export(model, (example,))
    with torch.no_grad():
        logits = model(example).numpy()
        exact = model.double()(example.double()).numpy()
    model.float()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    pictures, training = images[test], images[~test]
    return TrainedDigits(model, exported, pictures, labels[test], logits, exact, parameters, training)


def _train(model: nn.Module, images: torch.Tensor, labels: torch.Tensor, epochs: int) -> nn.Module:
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.01)
    steps = epochs * -(-len(images) // 64)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)
    model.train()
    for _ in range(epochs):
        for batch in torch.split(torch.randperm(len(images)), 64):
            loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
    return model
