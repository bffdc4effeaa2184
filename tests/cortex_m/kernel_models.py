"""Models of the kernels of ExecuTorch's library ``cortex_m``, for files that call them.

ExecuTorch's Python operators compute the integers. Two are replaced, since they compute in floats: averages
round as the kernel does, and a softmax has the arithmetic of CMSIS-NN, which
`tests/test_cortex_m_arithmetic.py` compares with the C kernel.
"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import executorch.backends.cortex_m.passes.cortex_m_pass_manager  # noqa: F401 - registers the operators
import numpy as np
import torch
from tosaic import _core

from cortex_m.networks import average_of_the_kernel
from cortex_m.reference import TARGET

__all__ = ["kernel_models", "run_pte"]

_DTYPES = {1: torch.int8, 2: torch.int16}


def kernel_models(program: Any) -> dict[str, Any]:
    """Returns a model of each node of a program that is a kernel of the library, by name of the node."""
    nodes = [node for node in program.graph.nodes if node.op == "opaque"]
    return {node.name: _computed for node in nodes if node.attrs["target"].startswith("cortex_m.")}


def run_pte(file: Any, *arrays: Any) -> Any:
    """Runs the only method of a file."""
    method = file.method("forward")
    return method.prepare(models=kernel_models(method.program)).run(*arrays)


def _computed(call: Any) -> np.ndarray:
    name = str(call.node.attrs["target"]).removeprefix("cortex_m.").removesuffix(".default")
    operands = iter(each for each in call.operands if each is not None)
    given = list(operands)
    arguments = [_argument(each, given) for each in json.loads(call.node.attrs["arguments"])["args"]]
    tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
    if name in ("quantized_add", "quantized_mul") and tensors[0].shape != tensors[1].shape:
        arguments = [  # one of them has one pixel, which needs images in channels-last order
            each.to(memory_format=torch.channels_last) if isinstance(each, torch.Tensor) else each
            for each in arguments
        ]
    if name == "quantized_avg_pool2d":
        image, kernel, stride, padding = arguments[:4]
        size = tuple(call.result_types[0].shape[2:])
        return average_of_the_kernel(image.numpy(), *map(tuple, (kernel, stride, padding)), size)
    if name == "softmax":
        return _softmax(*arguments)
    if name in ("quantize_per_tensor", "dequantize_per_tensor"):
        arguments[-1] = _DTYPES[arguments[-1]]
    made = getattr(torch.ops.cortex_m, name)(*arguments)
    return np.ascontiguousarray(made.numpy())


def _argument(value: Any, operands: list[np.ndarray]) -> Any:
    if isinstance(value, dict):
        return torch.from_numpy(np.array(operands[value["$"]]))
    return value


def _softmax(
    x: torch.Tensor, dim: int, zero: int, _: int, multiplier: int, shift: int, __: int
) -> np.ndarray:
    assert dim in (-1, x.dim() - 1)
    session = _session(tuple(x.shape), multiplier * 2.0 ** (shift - 31 - 26), zero)
    (result,) = session.run([np.ascontiguousarray(x.numpy())])
    return np.asarray(result)


@cache
def _session(shape: tuple[int, ...], scale: float, zero: int) -> _core.Session:
    dims = ",".join(map(str, shape))
    text = f"""tosaic 1
graph @softmax stage=quantized {{
  input %x: i8[{dims}] q(i8 -128..127 scale {scale!r} zp {zero}) path="x"
  %y: i8[{dims}] q(i8 -128..127 scale 0.00390625 zp -128) = softmax(%x) {{axis={len(shape) - 1}, dtype=none}}
  return %y path="y"
}}
"""
    return _core.Session(_core.lower(_core.Graph.parse(text), pipeline=TARGET, semantics="cmsis-nn").tosa)
