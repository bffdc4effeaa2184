"""What lower folders ask of higher ones: each service by name, loaded when it is asked for.

A folder that has a program of ExecuTorch, or a quantizer with Arm's decompositions, needs ExecuTorch's own
operators and passes. Only `tosaic.executorch` imports ExecuTorch, and it is above the folders that ask. The
table turns the dependency around: who asks knows the name of the service and what it takes.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["SERVICES", "service"]

SERVICES = {
    "edge dialect": ("tosaic.executorch.edge_dialect", "EdgeDialect"),
    "decompositions of Arm": ("tosaic.executorch.decomposition", "decompose_for_arm"),
}
"""By name of the service, the module and the name of the function or class."""


def service(name: str) -> Any:
    """Returns the function or class that provides a service."""
    module, attribute = SERVICES[name]
    return getattr(import_module(module), attribute)
