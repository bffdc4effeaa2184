"""What `prepare(on="vgf")` refuses; `tests/full/test_vgf.py` runs VGF files on Vulkan."""

from __future__ import annotations

import pytest
import torch
import tosaic
from tosaic.devices import vgf_graph


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.last = torch.nn.Conv2d(4, 2, 3, padding=1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        middle = torch.relu(self.conv(x))
        return self.last(torch.abs(middle) + y), middle


VGF = tosaic.Claimant.named("vgf").deny(op="abs", why="so that there are two groups")


def programs() -> tuple[tosaic.Program, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    args = (torch.randn(1, 3, 6, 5), torch.randn(1, 4, 6, 5))
    exported = torch.export.export(Small().eval(), args)
    return tosaic.quantize(exported, [args], progress=False), args


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    quantized, _ = programs()
    low = tosaic.lower(quantized, unsupported="split", claimants=[VGF]).parts[0]
    monkeypatch.setattr(vgf_graph.sys, "executable", f"{tmp_path}/python")
    with pytest.raises(ImportError, match=r"vgf_dump is not installed: pip install 'tosaic\[devices\]'"):
        low.prepare(on="vgf")


def test_only_lowered_programs_without_models_run() -> None:
    quantized, _ = programs()
    with pytest.raises(tosaic.InvalidGraph, match="a VGF file runs programs at stage tosa only"):
        quantized.prepare(on="vgf")
    low = tosaic.lower(quantized, unsupported="split", claimants=[VGF]).parts[0]
    with pytest.raises(tosaic.InvalidGraph, match="a VGF file takes no models of operators"):
        low.prepare(on="vgf", models={"*": lambda call: call.default()})
