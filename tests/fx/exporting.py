"""Helpers that export and import a function or module, and that look at the imported graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from tosaic.fx import from_exported


class Calls(torch.nn.Module):
    """A module whose forward is a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def exported(what: Any, *args: Any, **options: Any) -> Any:
    module = what if isinstance(what, torch.nn.Module) else Calls(what)
    return torch.export.export(module.eval() if options.pop("eval", True) else module, args, **options)


def imported(what: Any, *args: Any, bind: Any = None, **options: Any) -> Any:
    return from_exported(exported(what, *args, **options), bind=bind)


def ops(result: Any) -> list[str]:
    return [node.op for node in result.graph.nodes]


def only(result: Any) -> Any:
    (node,) = result.graph.nodes
    return node
