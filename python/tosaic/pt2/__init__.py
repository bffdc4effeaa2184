"""Reads ``.pt2`` files of `torch.export.save` without torch: `read_pt2`."""

from __future__ import annotations

__all__: list[str] = []
