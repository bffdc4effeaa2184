"""Converts programs with autocast regions into programs with explicit casts.

::

    wrap_with_autocast("cpu", bfloat16, .., submod, %x, %weight)      submod: linear(%x, %weight)
      ─▶ %a = _to_copy(%weight, bfloat16)
         %b = _to_copy(%x, bfloat16)
         %y = linear(%b, %a)

Only torch knows which operators cast which operands, so torch writes the casts: ``run_decompositions`` with
an empty table, which decomposes nothing else.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import torch

from tosaic.fx.reading.exported_program import functional_hint
from tosaic.torch_operators.reader import FUNCTIONALIZE
from tosaic.torch_operators.wrappers import changes_dtypes


def with_explicit_dtypes(ep: Any) -> Any:
    """Returns a program without autocast regions that change dtypes.

    Parameters
    ----------
    ep : torch.export.ExportedProgram

    Returns
    -------
    torch.export.ExportedProgram
        `ep` itself if it has no such region, or if decomposition would change its numbers or fails; the
        import then refuses the region.
    """
    if not isinstance(ep, torch.export.ExportedProgram) or not any(_regions(ep.graph_module)):
        return ep
    if functional_hint(ep) != FUNCTIONALIZE:
        return ep
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ep.run_decompositions({})


def _regions(module: torch.fx.GraphModule) -> Iterator[bool]:
    if not module.graph.find_nodes(op="get_attr"):
        return  # no get_attr node, so no nested graph and no region
    wrapper = torch.ops.higher_order.wrap_with_autocast
    for each in module.modules():
        if isinstance(each, torch.fx.GraphModule):
            for node in each.graph.find_nodes(op="call_function", target=wrapper):
                yield changes_dtypes(node.args)
