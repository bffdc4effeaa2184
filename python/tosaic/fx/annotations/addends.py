"""addmm as a product and a sum, before Arm's passes."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch.fx import GraphModule

__all__ = ["separate_addends"]


def separate_addends(model: GraphModule, calls: Collection[str]) -> list[str]:
    """Makes addmm of these calls mm and add, and returns the names of the new calls.

    Arm's pass does so with products by alpha and beta, and fails where the addend is a parameter.
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
