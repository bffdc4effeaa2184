"""Lowered programs as ``.pte`` files: groups as delegates, and the host as calls of kernels.

::

    %x -> quantize -> group0 -> dequantize -> softmax -> out
          kernel      delegate  kernel        kernel

The caller's arrays are those of `Lowered.run`: a float input that the lowered graph has as integers is
quantized by a kernel, and an array in another dim order than a group wants is copied.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tosaic import _core
from tosaic.dim_order import is_same_order
from tosaic.dtypes import BITS, is_float
from tosaic.lowered import Lowered
from tosaic.ports import caller_outputs, first_inputs
from tosaic.pte.containers import text_of
from tosaic.pte.file_writer import MethodWriter, Payload, Slot
from tosaic.pte.host_calls import call_of, dequantize_call, quantize_call
from tosaic.writing import write_bytes

if TYPE_CHECKING:
    from tosaic.partitions.split_lowered import SplitLowered
    from tosaic.ports import Port
    from tosaic.quantization import QParams

__all__ = ["is_pte", "save_pte"]

_COPY = "dim_order_ops::_to_dim_order_copy"


def is_pte(path: str | os.PathLike[str]) -> bool:
    """True for the path of a ``.pte`` file."""
    return Path(path).suffix == ".pte"


def save_pte(
    program: Lowered | SplitLowered,
    path: str | os.PathLike[str],
    *,
    payloads: Mapping[str, Payload] | None = None,
    method: str = "forward",
) -> int:
    """Writes a ``.pte`` file; returns its size in bytes.

    Parameters
    ----------
    program : Lowered or SplitLowered
    path : path
    payloads : mapping of str to Payload
        By name of the group (``group0``; ``forward`` for a program that is one group), what its backend gets.
        By default a group whose target is TOSA has its ``.tosa`` file, for the backend ``TOSABackend``.
    method : str

    Raises
    ------
    UnsupportedOp
        Something has no counterpart in the file; the message has all reasons.
    WriteError
        The file cannot be written.
    """
    saver = _Saver(program, dict(payloads or {}), method)
    return write_bytes(path, saver.file())


@dataclass(frozen=True)
class _Held:
    """A tensor of the host: its slot, type, and dim order."""

    slot: Slot
    dtype: str
    shape: tuple[int, ...]
    order: tuple[int, ...]


class _Saver:
    def __init__(self, program: Any, payloads: dict[str, Payload], method: str) -> None:
        self._program = program
        self._payloads = payloads
        self._writer = MethodWriter(method)
        self._reasons: list[str] = []
        self._values: dict[int, _Held] = {}
        self._method = method

    def file(self) -> bytes:
        program, signature = self._program, self._program.signature
        graph: _core.Graph = program.graph
        ports = [self._new(port.dtype, port.shape, port.dim_order) for port in program.inputs]
        self._reasons += [
            f"state '{port.path or port.name}' persists from run to run" for port in program.states
        ]
        self._reasons += [
            f"the new value of input '{port.path}' is written"
            for port in program.outputs
            if port.kind != "user"
        ]
        if isinstance(program, Lowered):
            results = self._group(self._method, program, ports)
        else:
            results = self._host(program, ports)
        places = first_inputs(graph)
        inputs = [
            self._writer.plain(leaf.value) if leaf.index is None else ports[places.index(leaf.index)].slot
            for leaf in signature.input_leaves
        ]
        at = caller_outputs(graph)
        outputs = [
            self._writer.plain(leaf.value) if leaf.index is None else self._own(results[at.index(leaf.index)])
            for leaf in signature.output_leaves
        ]
        if self._reasons:
            raise self._refusal()
        return self._writer.finish(inputs, outputs, (text_of(signature.inputs), text_of(signature.outputs)))

    def _refusal(self) -> Exception:
        many = len(self._reasons) > 1
        return _core.make_error(
            _core.UnsupportedOp,
            where="save",
            what=f"{len(self._reasons)} reasons keep this program from a .pte file"
            if many
            else self._reasons[0],
            got="; ".join(self._reasons) if many else "",
            hint="ExecuTorch's own flow, to_executorch(), writes programs with kernels of any operator",
        )

    # ---- tensors ----

    def _new(self, dtype: str, shape: Sequence[int], order: Sequence[int] | None = None) -> _Held:
        axes = tuple(range(len(shape))) if order is None or len(order) != len(shape) else tuple(order)
        return _Held(self._writer.tensor(dtype, shape, axes), dtype, tuple(shape), axes)

    def _own(self, held: _Held | None) -> Slot:
        return self._writer.plain(None) if held is None else held.slot

    def _in_order(self, held: _Held, order: tuple[int, ...]) -> _Held:
        """Returns a tensor in a dim order, copied if its elements are in another one."""
        if len(order) != len(held.shape) or is_same_order(held.shape, held.order, order):
            return held
        made = self._new(held.dtype, held.shape, order)
        self._writer.call(_COPY, "out", [held.slot, False, list(order)], [made.slot])
        return made

    # ---- groups ----

    def _group(self, name: str, part: Lowered, operands: Sequence[_Held]) -> list[_Held | None]:
        """Calls the delegate of a group, with the conversions around it; returns its results."""
        payload = self._payload(name, part)
        entered: dict[str, _Held] = {}
        for port, held in zip(part.inputs, operands, strict=True):
            self._enter(port, self._in_order(held, tuple(port.dim_order)), entered)
        given = [entered.get(port.name) for port in part.graph.inputs if port.kind == "user"]
        left, results = {}, []
        for port in part.outputs:
            (tensor,) = port.tensors
            left[tensor.name] = self._new(self._stored(port, tensor.dtype), port.shape, port.dim_order)
            results.append((port, left[tensor.name]))
        made = [left[port.value.name] for port in part.graph.outputs if port.value.name in left]
        if payload is not None and all(each is not None for each in given):
            self._writer.delegate(
                payload, [each.slot for each in given if each is not None], [each.slot for each in made]
            )
        return [self._leave(port, held) for port, held in results]

    def _payload(self, name: str, part: Lowered) -> Payload | None:
        if name in self._payloads:
            return self._payloads[name]
        if part.target.startswith("TOSA-"):
            specs = (("tosa_spec", part.target.encode()), ("output_format", b"tosa"))
            return Payload("TOSABackend", part.to_bytes(), specs)
        self._reasons.append(f"group '{name}' of target {part.target} has no payload")
        return None

    def _enter(self, port: Port, held: _Held, entered: dict[str, _Held]) -> None:
        """Adds the tensors that carry an input of a group."""
        qparams: Sequence[QParams | None] = port.quantized or [None] * len(port.tensors)
        for tensor, quantization in zip(port.tensors, qparams, strict=True):
            if is_float(port.dtype) == is_float(tensor.dtype):
                entered[tensor.name] = self._converted(held, tensor.dtype)
                continue
            call, made = None, None
            if quantization is not None:
                made = self._new(quantization.dtype, held.shape, held.order)
                call = quantize_call(held.slot, _attributes(quantization), self._writer)
            if call is None or made is None:
                self._reasons.append(
                    f"input '{port.path or port.name}' is quantized in a way without a kernel"
                )
            else:
                self._writer.call(call[0], call[1], call[2], [made.slot])
                entered[tensor.name] = made

    def _stored(self, port: Port, dtype: str) -> str:
        """Returns the dtype of a delegate's result: the caller's, if integers of it have the same size."""
        if port.qparams is not None and is_float(port.dtype) and not is_float(dtype):
            return port.qparams.dtype
        return port.dtype if BITS[port.dtype] == BITS[dtype] else dtype

    def _leave(self, port: Port, held: _Held) -> _Held | None:
        """Returns the caller's tensor for a result of a group."""
        if is_float(port.dtype) == is_float(held.dtype):
            return self._converted(held, port.dtype)
        call = None
        if port.qparams is not None:
            call = dequantize_call(
                held.slot, {**_attributes(port.qparams), "dtype": "f32"}, held.dtype, self._writer
            )
        if call is None or port.dtype != "f32":
            self._reasons.append(
                f"output '{port.path or port.name}' is dequantized in a way without a kernel"
            )
            return None
        made = self._new(port.dtype, held.shape, held.order)
        self._writer.call(call[0], call[1], call[2], [made.slot])
        return made

    def _converted(self, held: _Held, dtype: str) -> _Held:
        """Returns a tensor in another dtype; integers of the same size have the same bytes."""
        if held.dtype == dtype or (
            BITS[held.dtype] == BITS[dtype] and not is_float(dtype) and not is_float(held.dtype)
        ):
            return held
        made = self._new(dtype, held.shape, held.order)
        self._writer.call(_COPY, "out", [held.slot, False, list(held.order)], [made.slot])
        return made

    # ---- the host ----

    def _host(self, split: SplitLowered, ports: Sequence[_Held]) -> list[_Held | None]:
        """Writes the host's nodes in their order, and returns the values of the caller's outputs."""
        graph = split.graph
        for index, held in zip(first_inputs(graph), ports, strict=True):
            self._values[graph.inputs[index].value.id] = held
        parts = {group.name: part for group, part in zip(split.partitions.groups, split.parts, strict=True)}
        for node in graph.nodes:
            operands = [self._value(each) for each in node.operands if each is not None]
            if any(each is None for each in operands):
                results: Sequence[_Held | None] = [None] * len(node.results)
            else:
                known = [each for each in operands if each is not None]
                results = self._node(node, known, parts)
            for value, result in zip(node.results, results, strict=True):
                if result is not None:
                    self._values[value.id] = result
        outputs = graph.outputs
        return [self._value(outputs[i].value) for i in caller_outputs(graph)]

    def _value(self, value: _core.Value) -> _Held | None:
        if value.constant is not None and value.id not in self._values:
            constant = value.constant
            slot = self._writer.constant(constant.array, constant.dtype)
            order = tuple(range(len(constant.shape)))
            self._values[value.id] = _Held(slot, constant.dtype, tuple(constant.shape), order)
        return self._values.get(value.id)

    def _node(
        self, node: _core.Node, operands: Sequence[_Held], parts: Mapping[str, Any]
    ) -> Sequence[_Held | None]:
        group = str((node.attrs or {}).get("target", ""))
        part = parts.get(group)
        if isinstance(part, Lowered):
            return self._group(group, part, operands)
        plain = [self._in_order(each, tuple(range(len(each.shape)))) for each in operands]
        call = None
        if part is None and None not in node.operands:
            call = call_of(node, [each.slot for each in plain], self._writer)
        if call is None:
            what = f"group '{group}' is no TOSA program" if part is not None else f"no kernel for '{node.op}'"
            origin = node.origin
            at = f" ({origin.source})" if origin is not None and origin.source else ""
            self._reasons.append(f"{what}, node '{node.name}'{at}")
            return [None] * len(node.results)
        made = [self._new(value.dtype, value.shape) for value in node.results]
        self._writer.call(call[0], call[1], call[2], [each.slot for each in made])
        return made


def _attributes(qparams: QParams) -> dict[str, Any]:
    """Returns qparams as the attributes of a quantize or dequantize."""
    return {
        "dtype": qparams.dtype,
        "axis": qparams.axis,
        "qmin": qparams.qmin,
        "qmax": qparams.qmax,
        "scales": list(qparams.scales),
        "zero_points": list(qparams.zero_points),
        "groups": qparams.groups,
    }
