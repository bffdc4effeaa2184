"""Runs a program of ExecuTorch: the payload of each delegate, and all other calls with torch.

ExecuTorch passes the address of a tensor to a delegate; it checks dtype and byte size, but not the order.
Here, a tensor in another order than the delegate declares is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Interpreter, Node
from torch.utils._pytree import tree_flatten

from tosaic.base.arrays import as_array, dtype_name
from tosaic.base.dtypes import OF_TORCH, is_held_as
from tosaic.base.options import layout_mismatch, shown, unsupported
from tosaic.executorch.wrapping.border_orders import lies_in
from tosaic.executorch.wrapping.declared_orders import Order
from tosaic.fx.running.written import write_tensor

Array: TypeAlias = np.ndarray[Any, Any]
Engine: TypeAlias = Callable[[bytes, list[Array]], Sequence[Array]]
"""Runs a payload. Arrays are row-major in physical shapes: the extents in dim order."""

_CALL = "executorch_call_delegate"


def run_payloads_of(
    where: str, program: Any, inputs: Sequence[Any], engines: Mapping[str, Engine]
) -> list[torch.Tensor]:
    """See `tosaic.executorch.run_payloads`; `program` is an exported program of the edge dialect."""
    run = _Run(where, program, engines)
    given, _ = tree_flatten(tuple(inputs))
    run.require_inputs(given)
    with torch.no_grad():
        results = run.run(*given)
    kinds = [spec.kind for spec in program.graph_signature.output_specs]
    return [each for each, kind in zip(results, kinds, strict=True) if kind is OutputKind.USER_OUTPUT]


class _Run(Interpreter):
    def __init__(self, where: str, program: Any, engines: Mapping[str, Engine]) -> None:
        super().__init__(program.graph_module)
        self._where = where
        self._engines = engines
        signature = program.graph_signature
        known = {**program.constants, **program.state_dict}
        lifted = {
            **signature.inputs_to_parameters,
            **signature.inputs_to_buffers,
            **signature.inputs_to_lifted_tensor_constants,
        }
        self._known = {name: known[key] for name, key in lifted.items()}
        nodes = {node.name: node for node in program.graph.nodes}
        users = [spec for spec in signature.input_specs if spec.kind is InputKind.USER_INPUT]
        self._inputs = [nodes[spec.arg.name] for spec in users if spec.arg.name in nodes]

    def require_inputs(self, given: Sequence[Any]) -> None:
        """Raises LayoutMismatch if an input of the program is not as the program declares it."""
        if len(given) != len(self._inputs):
            raise self._refusal("the number of inputs", str(len(self._inputs)), str(len(given)))
        for i, (value, node) in enumerate(zip(given, self._inputs, strict=True)):
            self._require(f"input {i} ('{node.name}') of the program", value, node.meta.get("val"))

    # ---- torch.fx.Interpreter ----

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        declared = n.meta.get("val")
        if n.op != "call_function" or not isinstance(declared, torch.Tensor):
            return result
        order = tuple(declared.dim_order())
        return result if lies_in(result, order) or not lies_in(declared, order) else _stored(result, order)

    def placeholder(self, target: Any, args: Any, kwargs: Any) -> Any:
        return self._known[target] if target in self._known else super().placeholder(target, args, kwargs)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if getattr(target, "__name__", "") != _CALL:
            return super().call_function(target, args, kwargs)
        return self._call(args[0], args[1:])

    # ---- delegates ----

    def _call(self, lowered: Any, tensors: Sequence[Any]) -> list[torch.Tensor]:
        engine = self._engines.get(lowered.backend_id)
        if engine is None:
            raise unsupported(
                self._where,
                f"nothing runs payloads of {lowered.backend_id}",
                expected=" or ".join(sorted(self._engines)) or "an entry of 'engines'",
                got=lowered.backend_id,
                hint=f"pass engines={{'{lowered.backend_id}': a function of a payload and its arrays}}",
            )
        inner = lowered.original_module
        nodes = {node.name: node for node in inner.graph.nodes}
        inputs = [nodes[name].meta["val"] for name in inner.graph_signature.user_inputs]
        outputs = [nodes[name].meta["val"] for name in inner.graph_signature.user_outputs]
        arrays = []
        for i, (tensor, declared) in enumerate(zip(tensors, inputs, strict=True)):
            self._require(f"input {i} of a delegate of {lowered.backend_id}", tensor, declared)
            order = tuple(declared.dim_order())
            arrays.append(as_array(tensor.permute(order).contiguous()))
        found = engine(lowered.processed_bytes, arrays)
        if len(found) != len(outputs):
            raise self._refusal("the number of outputs of a payload", str(len(outputs)), str(len(found)))
        return [self._result(i, *each) for i, each in enumerate(zip(found, outputs, strict=True))]

    def _result(self, i: int, array: Array, declared: Any) -> torch.Tensor:
        """Returns the output tensor whose memory an array represents."""
        order = tuple(declared.dim_order())
        shape = [declared.shape[axis] for axis in order]
        is_held = is_held_as(_name(declared.dtype), dtype_name(array.dtype))
        is_static = all(type(size) is int for size in shape)
        fits = _fits(array.shape, shape) or (is_static and array.size == math.prod(shape))
        if not (is_held and fits):
            got = f"torch.{array.dtype} {tuple(array.shape)}"
            raise self._refusal(f"output {i} of a payload", f"{declared.dtype} {tuple(shape)}", got)
        tensor = torch.empty(array.shape, dtype=getattr(torch, str(array.dtype)))
        write_tensor(tensor, array)
        if tensor.dtype != declared.dtype:  # the cases of `is_held_as`
            same = tensor.dtype.itemsize == declared.dtype.itemsize
            tensor = tensor.view(declared.dtype) if same else tensor.to(declared.dtype)
        return _logical(tensor.reshape(shape) if is_static else tensor, order)

    # ---- checks ----

    def _require(self, what: str, value: Any, declared: Any) -> None:
        if not isinstance(declared, torch.Tensor):
            return
        if not isinstance(value, torch.Tensor):
            raise self._refusal(what, "a tensor", shown(value))
        if value.dtype != declared.dtype or not _fits(value.shape, declared.shape):
            expected = f"{declared.dtype} {tuple(declared.shape)}"
            raise self._refusal(what, expected, f"{value.dtype} {tuple(value.shape)}")
        order = tuple(declared.dim_order())
        if not lies_in(value, order):
            got = f"a tensor with the strides {value.stride()}"
            raise self._refusal(what, f"a tensor in memory order {order}", got, _hint(order))

    def _refusal(self, what: str, expected: str, got: str, hint: str = "") -> Exception:
        return layout_mismatch(self._where, f"{what} does not fit", expected=expected, got=got, hint=hint)


def _name(dtype: torch.dtype) -> str:
    """Returns the name of a dtype in graphs; torch's name if graphs have no such dtype."""
    own = str(dtype).removeprefix("torch.")
    return OF_TORCH.get(own, own)


def _fits(shape: Sequence[int], declared: Sequence[Any]) -> bool:
    if len(shape) != len(declared):
        return False
    return all(a == b for a, b in zip(shape, declared, strict=True) if type(b) is int)


def _hint(order: Order) -> str:
    if order == tuple(range(len(order))):
        return "tensor.contiguous() makes it"
    return "tensor.contiguous(memory_format=torch.channels_last) makes it" if len(order) == 4 else ""


def _stored(value: torch.Tensor, order: Order) -> torch.Tensor:
    """Returns a tensor in a memory order, as ExecuTorch stores the result of a call."""
    return _logical(value.permute(order).contiguous(), order)


def _logical(physical: torch.Tensor, order: Order) -> torch.Tensor:
    """Returns a tensor whose axes are in dim order with its logical axes."""
    return physical.permute([order.index(axis) for axis in range(len(order))])
