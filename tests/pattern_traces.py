"""Has torchao and ExecuTorch trace patterns only for operators that a graph contains.

`prepare_qat_pt2e`, `convert_pt2e` and XNNPACK's quantizer export up to a hundred patterns of convolutions
and batch norms in each call, whatever the graph contains. Most of the time of a small test would go there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

__all__ = ["only_of_present_operators"]


def _contains(module: Any, operator: str) -> bool:
    return any(operator in str(node.target) for node in module.graph.nodes)


def _of_present_convolutions(replace: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(replace)
    def call(module: Any, convolution: Any, *args: Any, **kwargs: Any) -> Any:
        if _contains(module, f"aten.{convolution.__name__}."):
            return replace(module, convolution, *args, **kwargs)
        return module

    return call


def _of_present_batch_norms(annotate: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(annotate)
    def call(module: Any, *args: Any, **kwargs: Any) -> Any:
        return annotate(module, *args, **kwargs) if _contains(module, "batch_norm") else []

    return call


_REPLACED: dict[tuple[str, str], Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    ("torchao.quantization.pt2e.qat_utils", "_fuse_conv_bn_qat_helper"): _of_present_convolutions,
    ("torchao.quantization.pt2e.qat_utils", "_fold_conv_bn_qat_helper"): _of_present_convolutions,
    (
        "executorch.backends.xnnpack.quantizer.xnnpack_quantizer_utils",
        "_do_annotate_conv_bn",
    ): _of_present_batch_norms,
}


def only_of_present_operators() -> None:
    """Replaces the functions of the modules that are imported by now, for the rest of the process."""
    for (module_name, name), wrapper in _REPLACED.items():
        module = sys.modules.get(module_name)
        function = getattr(module, name, None)
        if function is not None and not hasattr(function, "__wrapped__"):
            setattr(module, name, wrapper(function))
