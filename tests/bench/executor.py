"""Our executor against torch eager: float32, one thread.

    python tests/bench/executor.py [--rounds N]

Both run the same network on the same input in the same process, alternately: torch eager runs the module in
inference mode, our executor runs the program as exported and as lowered to TOSA. The same run compares their
outputs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # pytest has tests/ on its path already
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import torch
import tosaic
from bench.page import Measured, Section, in_turns, milliseconds, options_of, table
from models.zoo import build

NETWORKS = ("resnet18", "mobilenet_v2", "deit_tiny", "vit_384", "audio_encoder")
"""Networks of the zoo, a ViT of width 384, and an encoder of audio, whose attentions have 1,500 positions."""
STAGES = ("exported", "tosa")
MOST_RATIO = 1.0
"""The largest allowed ratio of our time to torch's, for each network."""
_MOST_ERROR = 1e-4


@dataclass(frozen=True)
class Row:
    """One network: median seconds of torch and of each stage, and the largest relative error of ours."""

    network: str
    torch: float
    ours: dict[str, float]
    error: float

    @property
    def ratio(self) -> float:
        """The time of our slower stage over torch's time."""
        return max(self.ours.values()) / self.torch


class Result(Measured[Row]):
    @property
    def ok(self) -> bool:
        """True if every network is fast enough and right."""
        return all(row.ratio <= MOST_RATIO and row.error <= _MOST_ERROR for row in self.rows)


def run(rounds: int = 21, networks: Sequence[str] = NETWORKS) -> Result:
    """Measures the networks."""
    torch.set_num_threads(1)
    return Result(tuple(_row(name, rounds) for name in networks), rounds)


class _FirstOutput(torch.nn.Module):
    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: Any = self.module(x)
        return outputs[0]


def module_of(name: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
    """Returns a network with random weights, and its arguments."""
    from transformers import ViTConfig, ViTModel, WhisperConfig, WhisperModel

    torch.manual_seed(0)
    if name == "vit_384":
        vit = ViTConfig(hidden_size=384, num_attention_heads=6, intermediate_size=1536)
        return _FirstOutput(ViTModel(vit)).eval(), (torch.randn(1, 3, 224, 224),)
    if name == "audio_encoder":
        whisper = WhisperConfig(d_model=384, encoder_attention_heads=6, decoder_attention_heads=6)
        return _FirstOutput(WhisperModel(whisper).encoder).eval(), (torch.randn(1, 80, 3000),)
    network = build(name)
    return network.module, network.sample()


def _row(name: str, rounds: int) -> Row:
    module, args = module_of(name)
    lowered = tosaic.lower(torch.export.export(module, args))
    arrays = [a.numpy() for a in args]
    programs = [lowered.at(stage) for stage in STAGES]

    def eager() -> np.ndarray[Any, Any]:
        with torch.inference_mode():
            return module(*args).numpy()

    (seconds, expected), *ours = in_turns([eager, *(lambda p=p: p.run(*arrays) for p in programs)], rounds)
    errors = [np.linalg.norm(found - expected) / np.linalg.norm(expected) for _, found in ours]
    return Row(name, seconds, {s: t for s, (t, _) in zip(STAGES, ours, strict=True)}, float(max(errors)))


def section(result: Result) -> Section:
    """Returns the section of docs/measured/benchmarks.md."""
    rows = [
        (
            row.network,
            milliseconds(row.torch),
            *(f"{milliseconds(row.ours[s])} ({row.ours[s] / row.torch:.2f}×)" for s in STAGES),
            f"{row.error:.1g}",
        )
        for row in result.rows
    ]
    header = ("network", "torch eager, ms", *(f"tosaic at stage {s}, ms" for s in STAGES), "largest error")
    text = (
        "One inference in float32 with batch size 1, against torch eager in inference mode.\n"
        f"Both run alternately; medians of {result.rounds} rounds. "
        f"The executor uses `{tosaic._core.usable_isas()[-1]}`.\n\n"
        f"{table(header, rows)}\n\n"
        f"At worst the executor takes {max(row.ratio for row in result.rows):.2f} times torch's time. "
        f"At most {MOST_RATIO} times is allowed."
    )
    return Section("executor", "Executor", text, ok=result.ok)


def main() -> int:
    return section(run(options_of(__doc__, rounds=21).rounds)).publish()


if __name__ == "__main__":
    sys.exit(main())
