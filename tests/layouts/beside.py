"""Compares the transposes in our file of a program with those in the files of ExecuTorch's Arm lowering."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import tosaic
from models.delegates import delegates_of, lower_with_executorch, transposes_of

__all__ = ["Beside", "beside"]


@dataclass
class Beside:
    """The transposes of one program.

    Attributes
    ----------
    name, target : str
    count, elements, bytes : int
        The transposes in our file, and the elements and bytes that they move.
    planned : int
        The bytes that our layout plan moves. The file must not move more.
    is_minimal : bool
        The certificate proves that the plan is optimal.
    fewest : int
        The number of transposes in our file with the objective "count".
    theirs : str
        The reason why ExecuTorch has no result; empty if it has one.
    their_count, their_elements, their_bytes : int
        The same as `count`, `elements` and `bytes` for all delegates of ExecuTorch.
    delegates : int
        The number of delegates.
    left : int
        The number of calls that ExecuTorch leaves outside the delegates.
    """

    name: str
    target: str
    count: int = 0
    elements: int = 0
    bytes: int = 0
    planned: int = 0
    is_minimal: bool = False
    fewest: int = 0
    theirs: str = ""
    their_count: int = 0
    their_elements: int = 0
    their_bytes: int = 0
    delegates: int = 0
    left: int = 0

    @property
    def violations(self) -> list[str]:
        """The conditions that are violated, as texts."""
        out = []
        if not self.is_minimal:
            out.append("the certificate leaves a gap")
        if self.bytes > self.planned:
            out.append(f"the file transposes {self.bytes:,} bytes, the plan {self.planned:,}")
        if not self.theirs and self.bytes > self.their_bytes:
            out.append(f"{self.bytes:,} bytes, theirs {self.their_bytes:,}")
        if not self.theirs and self.fewest > self.their_count:
            out.append(f"{self.fewest} transposes by count, theirs {self.their_count}")
        return out


def beside(name: str, program: torch.export.ExportedProgram, target: str) -> Beside:
    """Lowers a program with both compilers and counts the transposes."""
    lowered = tosaic.lower(program, target=target)
    out = Beside(name, target, planned=lowered.layout.bytes, is_minimal=lowered.layout.is_minimal)
    out.count, out.elements, out.bytes = _moved(lowered.to_bytes())
    out.fewest = _moved(tosaic.lower(program, target=target, objective="count").to_bytes())[0]
    try:
        edge = lower_with_executorch(program, target)
        files = delegates_of(edge)
    except Exception as failed:  # any error of ExecuTorch is a result of the comparison
        out.theirs = (
            f"{type(failed).__name__}: {str(failed).strip().splitlines()[0][:100] if str(failed) else ''}"
        )
        return out
    out.delegates = len(files)
    out.left = sum(_is_left(node) for node in edge.graph.nodes)
    for file in files:
        count, elements, size = _moved(file)
        out.their_count += count
        out.their_elements += elements
        out.their_bytes += size
    if not files:
        out.theirs = "nothing delegated"
    return out


def _is_left(node: torch.fx.Node) -> bool:
    name = str(node.target)
    return node.op == "call_function" and not any(part in name for part in ("getitem", "call_delegate"))


def _moved(file: bytes) -> tuple[int, int, int]:
    found = transposes_of(file)
    return len(found), sum(n for n, _ in found), sum(n * bits // 8 for n, bits in found)
