"""Constant addends: splits addmm into a product and a sum before Arm's passes, and warns of coarse addends.

Torchao's observers choose the scale of a constant from all its elements, even if the readers of the sum do
not distinguish the largest of them::

    relu(c + x), c = [-3, 0.05, 0.03, 0.06]    one unit of c is 0.012, and the results end at 0.06

When the addend's observer chooses its scale at conversion, `SumOf` compares the scale with the sum's scale.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import torch
from torch.fx import GraphModule, Node

from tosaic.annotation.bias import addends, crowded_channels, full_range_scale, note_coarse_addend
from tosaic.annotation.plan import Plan
from tosaic.fx.quantizer.biases import elements_of
from tosaic.fx.quantizer.graph import call_graph
from tosaic.fx.quantizer.read_ranges import ReadRange, reach_of, read_range


class SumOf:
    """A call that adds a constant; the observer of the constant refers to it.

    Parameters
    ----------
    call : str
    elements : callable
        Returns the elements of the constant; None if they are not known.
    addend, result : observer
        The observers of the constant and of the sum.
    read : ReadRange, optional
        The range of the sum that its readers distinguish. None: all numbers.
    """

    def __init__(
        self, call: str, elements: Callable[[], Any], addend: Any, result: Any, read: ReadRange | None
    ) -> None:
        # A tuple: the observers in a tuple do not become submodules of each other.
        self._observers = (addend, result)
        self._call, self._elements, self._read = call, elements, read
        self._noted = False

    def watch(self, observer: Any, samples: np.ndarray[Any, Any]) -> None:
        """Does nothing: `note` needs only the bounds of the samples, which observers have."""

    def note(self, _: Any, scale: torch.Tensor, __: torch.Tensor) -> None:
        """Warns once if a scale of the addend leaves too few bits to channels."""
        addend, result = self._observers
        bounds = np.array([float(result.min_val), float(result.max_val)])
        if self._noted or scale.numel() != 1 or not bounds[0] <= bounds[1]:
            return
        if self._read is not None and self._read.axis is None:
            bounds = bounds.clip(self._read.end(bounds[1]), self._read.greatest)
        unit = full_range_scale(bounds, (result.quant_min, result.quant_max))
        elements = self._elements()
        if elements is None or not unit:
            return
        # Channels without any bit caused a warning already when the specs were chosen.
        least = full_range_scale(elements, (addend.quant_min, addend.quant_max))
        if crowded_channels(elements, least) is None:
            dtype = str(addend.dtype).removeprefix("torch.")
            self._noted = note_coarse_addend(self._call, dtype, elements, float(scale), unit)


def _elements(model: GraphModule, constant: Node) -> Callable[[], Any]:
    return lambda: elements_of(model, constant)  # copies of observers share a lambda, but copy a partial


def link_addends(model: GraphModule, observers: Mapping[Any, Any]) -> None:
    """Links the observer of each constant addend to its sum.

    Parameters
    ----------
    model : GraphModule
    observers : mapping
        What torchao passes to `prepare_obs_or_fq_callback`.
    """
    nodes = {node.name: node for node in model.graph.nodes}
    of_node = {node: id(module) for node, module in observers.items() if isinstance(node, Node)}
    for slot in addends(Plan(call_graph(model))):
        constant, call = nodes[slot.producer], nodes[slot.user]
        addend, result = observers.get((constant, call), observers.get(constant)), observers.get(call)
        if addend is None or result is None or elements_of(model, constant) is None:
            continue
        addend, result = (getattr(each, "activation_post_process", each) for each in (addend, result))
        if hasattr(addend, "notes") and hasattr(result, "min_val"):
            elements = _elements(model, constant)
            reach = reach_of(result.quant_max - result.quant_min)
            found = SumOf(call.name, elements, addend, result, read_range(call, of_node, reach))
            addend.notes = (*addend.notes, found)


def separate_addends(model: GraphModule, calls: Collection[str]) -> list[str]:
    """Makes addmm of these calls mm and add, and returns the names of the new calls.

    Arm's pass also multiplies by alpha and beta, and fails if the addend is a parameter.
    """
    made = []
    for node in list(model.graph.nodes):
        factors = {**dict(zip(("beta", "alpha"), node.args[3:], strict=False)), **node.kwargs}
        if node.target != torch.ops.aten.addmm.default or node.name not in calls:
            continue
        if any(each != 1 for each in factors.values()):
            continue
        addend, x, matrix = node.args[:3]
        with model.graph.inserting_before(node):
            product = model.graph.create_node(
                "call_function", torch.ops.aten.mm.default, (x, matrix), name="mm"
            )
            total = model.graph.create_node(
                "call_function", torch.ops.aten.add.Tensor, (product, addend), name="add"
            )
        product.meta, total.meta = dict(node.meta), dict(node.meta)
        node.replace_all_uses_with(total)
        model.graph.erase_node(node)
        made += [product.name, total.name]
    return made
