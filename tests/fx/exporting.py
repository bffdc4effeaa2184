"""Helpers that export and import a function or module, and that look at the imported graph."""

from __future__ import annotations

from typing import Any

import torch
from function_module import FunctionModule
from tosaic.fx import from_exported


def exported(what: Any, *args: Any, **options: Any) -> Any:
    module = what if isinstance(what, torch.nn.Module) else FunctionModule(what)
    return torch.export.export(module.eval() if options.pop("eval", True) else module, args, **options)


def imported(what: Any, *args: Any, bind: Any = None, **options: Any) -> Any:
    return from_exported(exported(what, *args, **options), bind=bind)


def ops(result: Any) -> list[str]:
    return [node.op for node in result.graph.nodes]


def only(result: Any) -> Any:
    (node,) = result.graph.nodes
    return node
