"""The qparams at inputs and outputs of an ExecuTorch program, also if delegates have the quantize nodes."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from torch.fx import Node

from tosaic import _core
from tosaic.base.quantization import QParams
from tosaic.fx.io.io_quantization import Quantizations
from tosaic.fx.io.quantize_calls import is_call
from tosaic.fx.io.user_ports import UserPort, user_ports
from tosaic.fx.reading.exported_program import module_argument_names, trees_of_call
from tosaic.fx.reading.weights import CODE_OF
from tosaic.ports.ports import Port
from tosaic.ports.signature import InputLeaf, OutputLeaf, Signature

_CALL = "executorch_call_delegate"


@dataclass(frozen=True)
class ProgramPorts:
    """How a program of ExecuTorch is called.

    Attributes
    ----------
    signature : Signature
        The indices of its leaves are positions in `inputs` and `outputs`.
    inputs, outputs : tuple of Port
        The user's tensors. ``quantized`` has the qparams of the quantize node that reads a float input, or of
        the dequantize node that reads an integer input; outputs likewise. A symbolic size is -1.
    """

    signature: Signature
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]


def ports_of_program(program: Any) -> ProgramPorts:
    """Returns the ports of an exported program, which may hold delegates."""
    ports = user_ports(program)
    inputs, outputs = _qparams(program)
    return ProgramPorts(
        _signature(program),
        tuple(_port(port, each) for port, each in zip(ports.inputs, inputs, strict=True)),
        tuple(_port(port, each) for port, each in zip(ports.outputs, outputs, strict=True)),
    )


def _port(port: UserPort, quantized: tuple[QParams, ...]) -> Port:
    value = port.node.meta["val"]
    code = CODE_OF.get(value.dtype)
    return Port(
        port.node.name,
        port.path,
        str(value.dtype) if code is None else _core.DTYPES[code],
        tuple(size if type(size) is int else -1 for size in value.shape),
        tuple(value.dim_order()),
        quantized=quantized,
    )


def _signature(program: Any) -> Signature:
    """Returns the nested signature. A leaf that is not a tensor has its constant value."""
    from torch.export.graph_signature import InputKind, OutputKind

    ports = user_ports(program)
    signature = program.graph_signature
    given = [spec.arg for spec in signature.input_specs if spec.kind is InputKind.USER_INPUT]
    users = (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
    returned = [spec.arg for spec in signature.output_specs if spec.kind in users]
    in_tree, out_tree = trees_of_call(program, len(given), len(returned))
    places = {port.leaf: (i, port.path) for i, port in enumerate(ports.inputs)}
    results = {port.leaf: (i, port.path) for i, port in enumerate(ports.outputs)}
    return Signature(
        in_tree,
        out_tree,
        tuple(
            InputLeaf(places[i][1], places[i][0]) if i in places else InputLeaf("", None, _value(arg))
            for i, arg in enumerate(given)
        ),
        tuple(
            OutputLeaf(results[i][1], results[i][0]) if i in results else OutputLeaf("", None, _value(arg))
            for i, arg in enumerate(returned)
        ),
        module_argument_names(program),
    )


def _value(arg: Any) -> Any:
    value = getattr(arg, "value", None)
    return value if value is None or isinstance(value, bool | int | float | str) else None


def _qparams(program: Any) -> tuple[list[tuple[QParams, ...]], list[tuple[QParams, ...]]]:
    found = Quantizations(program)
    inputs, outputs = found.at_ports()
    for i, port in enumerate(found.inputs):
        if not inputs[i]:
            inputs[i] = tuple(
                dict.fromkeys(q for user in port.node.users for q in _read(found, port.node, user))
            )
    for i, port in enumerate(found.outputs):
        if not outputs[i]:
            outputs[i] = _made(found, port.node)
    return inputs, outputs


def _read(found: Quantizations, node: Node, user: Node) -> tuple[QParams, ...]:
    """Returns the qparams with which a dequantize call or a delegate reads a value; else empty."""
    if is_call(user, "dequantize") and user.args[0] is node:
        return (found.qparams(user),)
    if getattr(user.target, "__name__", "") != _CALL:
        return ()
    inner, _ = _qparams(_delegate(user).original_module)
    places = [i for i, each in enumerate(user.args[1:]) if each is node]
    return tuple(q for i in places if i < len(inner) for q in inner[i])


def _made(found: Quantizations, node: Node) -> tuple[QParams, ...]:
    """Returns the qparams with which a quantize call or a delegate makes a value; else empty."""
    if is_call(node, "quantize"):
        return (found.qparams(node),)
    call: Any = node.args[0] if node.target is operator.getitem else None
    if getattr(getattr(call, "target", None), "__name__", "") != _CALL:
        return ()
    _, inner = _qparams(_delegate(call).original_module)
    index: Any = node.args[1]
    return inner[index] if index < len(inner) else ()


def _delegate(call: Node) -> Any:
    held: Any = call.args[0]
    return getattr(call.graph.owning_module, held.target)
