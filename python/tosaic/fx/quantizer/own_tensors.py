"""Runs a transformation of a graph that may write into its tensors, without changing the caller's module.

A graph module that torch exported has the very parameters and buffers of the caller's module. A pass that
multiplies a weight in place changes that module too, and does so again each time the module is prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule

from tosaic.fx.quantizer.memory import Roots, written_arguments

Place = tuple[nn.Module, str]


def on_own_tensors(transform: Callable[[GraphModule], Any], model: GraphModule) -> Any:
    """Returns ``transform(model)``, where the transformation may write into tensors of the graph.

    The graph has copies of its tensors during the transformation. Afterwards, each copy that was not written
    is replaced by its original, so that only changed tensors take new memory. So is the copy of each state,
    a tensor that calls of the graph write: a pass may evaluate such a call and advance a counter, but the
    first run has to begin with the value in the caller's module.
    """
    states = _written(model)
    copies: dict[int, torch.Tensor] = {}
    originals: dict[int, torch.Tensor] = {}
    for module, name in list(tensor_places(model)):
        tensor = tensor_at(module, name)
        if id(tensor) not in copies:
            own = tensor.detach().clone()
            if isinstance(tensor, nn.Parameter):
                own = nn.Parameter(own, requires_grad=tensor.requires_grad)
            copies[id(tensor)] = own
            originals[id(own)] = tensor
        put(module, name, copies[id(tensor)])
    made: Any = model
    try:
        made = transform(model)
    finally:
        for graph in {id(each): each for each in (model, made)}.values():
            _restore(graph, originals, states)
    return made


def _written(model: GraphModule) -> set[object]:
    """Returns the memory that calls of the graph write, as `storage_of` does."""
    roots = Roots()
    written = (each for node in model.graph.nodes for each in written_arguments(node))
    return set().union(*map(roots.of, written))


def _restore(graph: nn.Module, originals: dict[int, torch.Tensor], states: set[object]) -> None:
    for module, name in list(tensor_places(graph)):
        tensor = tensor_at(module, name)
        original = originals.get(id(tensor))
        if original is not None and (storage_of(original) in states or _is_same(tensor, original)):
            put(module, name, original)


def storage_of(tensor: torch.Tensor) -> int | None:
    """Returns the address of a tensor's memory, or None if it has no memory of its own."""
    strided = tensor.layout == torch.strided and not tensor.is_meta and tensor.numel()
    return tensor.untyped_storage().data_ptr() if strided else None


def _is_same(tensor: torch.Tensor, original: torch.Tensor) -> bool:
    if tensor.is_meta or tensor.shape != original.shape or tensor.dtype != original.dtype:
        return tensor.is_meta
    return torch.equal(tensor, original)


def tensor_places(graph: nn.Module) -> Iterator[Place]:
    """Yields the places of a module and its submodules that hold tensors: parameters, buffers, attributes."""
    for module in graph.modules():
        for held in (module._parameters, module._buffers, module.__dict__):
            for name, value in held.items():
                if isinstance(value, torch.Tensor):
                    yield module, name


def tensor_at(module: nn.Module, name: str) -> torch.Tensor:
    """Returns the tensor at a place that `tensor_places` yields."""
    found: torch.Tensor = getattr(module, name)
    return found


def put(module: nn.Module, name: str, tensor: torch.Tensor) -> None:
    """Replaces the tensor at a place. The old tensor, which other modules may share, is not changed."""
    for held in (module._parameters, module._buffers, module.__dict__):
        if isinstance(held.get(name), torch.Tensor):
            held[name] = tensor  # type: ignore[assignment]
            return
