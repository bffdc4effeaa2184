"""Arm's decompositions of a graph before annotation: softmax, norms and gelu become several calls each.

Arm's lowering processes quantized calls one by one, so its quantizers first decompose composite calls. The
public ``transform_for_annotation`` decomposes the calls that a quantizer marks. `decompose_for_arm` adds a
quantizer that marks the given calls and annotates nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from typing import Any

from tosaic.base.options import checked


class _Marker:
    """Marks calls for Arm's decompositions."""

    def __init__(self, names: Collection[str], key: str) -> None:
        self._names = names
        self._key = key

    def annotate(self, model: Any) -> Any:
        for node in model.graph.nodes:
            node.meta[self._key] = node.name not in self._names
        return model

    def transform_for_annotation(self, model: Any) -> Any:
        return model

    def validate(self, model: Any) -> None:
        pass


@checked
def decompose_for_arm(model: Any, calls: Collection[str], spec: str) -> Any:
    """Returns the graph after the passes that Arm's quantizers run before they annotate.

    Parameters
    ----------
    model : torch.fx.GraphModule
        Its graph may change; its tensors, which belong to the caller's module, do not.
    calls : collection of str
        Names of the calls that may be decomposed. Others stay as they are.
    spec : str
        The TOSA specification of Arm's lowering, such as ``"TOSA-1.0+INT"``.

    Returns
    -------
    torch.fx.GraphModule
    """
    from executorch.backends.arm.constants import DISALLOW_TFA_META_KEY
    from executorch.backends.arm.quantizer import TOSAQuantizer
    from executorch.backends.arm.tosa import TosaSpecification

    from tosaic.fx.quantizer.own_tensors import on_own_tensors

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the method is marked as experimental
        quantizer = TOSAQuantizer(TosaSpecification.create_from_string(spec))
        quantizer.add_quantizer(_Marker(calls, DISALLOW_TFA_META_KEY))
    _remove_guards(model)
    return on_own_tensors(quantizer.transform_for_annotation, model)


def _remove_guards(model: Any) -> None:
    """Removes the call that checks the caller's shapes, for which the passes have no rule."""
    for node in [each for each in model.graph.nodes if each.op == "call_module" and not each.users]:
        if node.target == "_guards_fn":
            model.graph.erase_node(node)
            model.delete_submodule(node.target)
    model.recompile()
