"""Networks that warp images, which the tests of the export flow share."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import nn

HEIGHT, WIDTH = 24, 32


class Flow(nn.Module):
    """A grid near the identity, which convolutions compute from an image."""

    def __init__(self, channels: int = 3) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 2, 3, padding=1), nn.Tanh()
        )
        y, x = torch.meshgrid(
            torch.linspace(-0.9, 0.9, HEIGHT), torch.linspace(-0.9, 0.9, WIDTH), indexing="ij"
        )
        self.register_buffer("base", torch.stack([x, y], -1)[None])

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.base + 0.1 * self.layers(image).permute(0, 2, 3, 1)


class Warp(nn.Module):
    """RGB in and out: a flow from the image, the warped image, convolutions after it."""

    def __init__(self) -> None:
        super().__init__()
        self.flow = Flow()
        self.refine = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 3, padding=1), nn.Tanh()
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.refine(F.grid_sample(image, self.flow(image), align_corners=False))


class TwoOutputs(Warp):
    """Returns the warped image, too."""

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        warped = F.grid_sample(image, self.flow(image), align_corners=False)
        return self.refine(warped), warped


class TwoInputs(Warp):
    """The result is multiplied by a gain, which the caller passes."""

    def forward(self, image: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
        return super().forward(image) * gain


def seeded(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind().eval()


def images(count: int = 4, batch: int = 1) -> Iterator[tuple[torch.Tensor]]:
    """Images with large-scale structure, in -1..1."""
    made = torch.Generator().manual_seed(7)
    for _ in range(count):
        coarse = torch.rand(batch, 3, 6, 8, generator=made) * 2 - 1
        yield (F.interpolate(coarse, (HEIGHT, WIDTH), mode="bilinear"),)
