"""What two `.pte` files have in common, as ExecuTorch's deserialiser shows them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from executorch.exir._serialize._program import deserialize_pte_binary
from executorch.exir.schema import DelegateCall, KernelCall
from tosaic import _core

__all__ = ["MethodShape", "is_same_but_for_reshapes", "is_same_payload", "shape_of", "transposes_in"]

_CONVERSIONS = (
    "quantized_decomposed::quantize",
    "quantized_decomposed::dequantize",
    "dim_order_ops::_to_dim_order_copy",
)


@dataclass(frozen=True)
class MethodShape:
    """A method without its memory plan and without indices.

    Attributes
    ----------
    calls : tuple of str
        The operators and delegates in the order of the instructions.
    backends : tuple of str
    inputs, outputs : tuple
        Scalar type, sizes and dim order of each.
    payloads : tuple of bytes
    """

    calls: tuple[str, ...]
    backends: tuple[str, ...]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    payloads: tuple[bytes, ...]

    @property
    def computing(self) -> tuple[str, ...]:
        """The calls that do more than change a dtype or a dim order, in order."""
        return tuple(each for each in self.calls if not each.startswith(_CONVERSIONS))

    @property
    def conversions(self) -> int:
        """The number of the other calls."""
        return len(self.calls) - len(self.computing)


def shape_of(file: bytes, method: str = "forward") -> MethodShape:
    """Returns a method of a file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = deserialize_pte_binary(file).program
    (plan,) = [each for each in program.execution_plan if each.name == method]
    calls = []
    for chain in plan.chains:
        for instruction in chain.instructions:
            arguments = instruction.instr_args
            if isinstance(arguments, KernelCall):
                operator = plan.operators[arguments.op_index]
                calls.append(f"{operator.name}.{operator.overload}")
            elif isinstance(arguments, DelegateCall):
                calls.append(f"delegate {arguments.delegate_index}")
    return MethodShape(
        tuple(calls),
        tuple(each.id for each in plan.delegates),
        tuple(_type(plan.values[index].val) for index in plan.inputs),
        tuple(_type(plan.values[index].val) for index in plan.outputs),
        tuple(bytes(program.backend_delegate_data[each.processed.index].data) for each in plan.delegates),
    )


def _type(value: Any) -> Any:
    sizes = getattr(value, "sizes", None)
    return value if sizes is None else (str(value.scalar_type), tuple(sizes), tuple(value.dim_order))


def is_same_payload(a: bytes, b: bytes) -> bool:
    """True if two `.tosa` files differ in nothing but the names of tensors and locations."""
    return _unnamed(_core.deserialize(a)) == _unnamed(_core.deserialize(b))


def is_same_but_for_reshapes(a: bytes, b: bytes) -> bool:
    """True if the same operators compute, and only reshapes are others."""
    computing = []
    for file in (a, b):
        _, nodes, _ = _unnamed(_core.deserialize(file))
        constants = [
            (op, attrs, [each for each in operands if isinstance(each, tuple)], types)
            for op, attrs, operands, types in nodes
            if op != "tosa.reshape"
        ]
        computing.append(constants)
    return computing[0] == computing[1]


def transposes_in(file: bytes) -> int:
    """Returns the number of transpositions in a `.tosa` file."""
    return sum(node.op == "tosa.transpose" for node in _core.deserialize(file).nodes)


def _unnamed(graph: _core.Graph) -> Any:
    """Returns a graph as plain data, with numbers in the place of names."""
    numbers: dict[int, int] = {}
    for port in graph.inputs:
        numbers[port.value.id] = len(numbers)
    nodes = []
    for node in graph.nodes:
        operands = [None if each is None else _operand(each, numbers) for each in node.operands]
        types = [(each.dtype, tuple(each.shape)) for each in node.results]
        for each in node.results:
            numbers[each.id] = len(numbers)
        nodes.append((node.op, dict(node.attrs or {}), operands, types))
    ports = [(port.dtype, tuple(port.shape)) for port in graph.inputs]
    return ports, nodes, [numbers[port.value.id] for port in graph.outputs]


def _operand(value: _core.Value, numbers: dict[int, int]) -> Any:
    constant = value.constant
    if constant is None:
        return numbers[value.id]
    return constant.dtype, tuple(constant.shape), np.ascontiguousarray(constant.array).tobytes()
