"""A program as a method of a ``.pte`` file: its inputs and states, its nodes or groups, and its outputs."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tosaic import _core
from tosaic.base.dim_order import is_of_format, is_same_order, orders_of_formats
from tosaic.base.dtypes import BITS, is_float
from tosaic.base.quantization import QParams, quantizations_of_input
from tosaic.lowering.lowered import Lowered
from tosaic.ports.ports import Port, caller_inputs, caller_outputs, first_inputs
from tosaic.program.program import Program
from tosaic.pte.containers import text_of
from tosaic.pte.group_kernels import GroupKernels
from tosaic.pte.group_payloads import MethodPayloads
from tosaic.pte.host import Held, Host
from tosaic.pte.kernels.quantization import dequantized, quantized
from tosaic.pte.method_writer import MethodWriter, PtePayload, Slot
from tosaic.pte.nodes import write_node
from tosaic.pte.sidecar import SidecarDelegate, SidecarMethod

_LOG = logging.getLogger(__name__)


class MethodSaver:
    """Writes a program as a method.

    Parameters
    ----------
    writer : MethodWriter
    program : Program, Lowered or SplitLowered
    payloads : MethodPayloads
    only_host : bool
        Leave out the groups of claimants with payloads or kernels: results of groups are not written. Nothing
        is logged.
    """

    def __init__(
        self, writer: MethodWriter, program: Any, payloads: MethodPayloads, *, only_host: bool = False
    ) -> None:
        self._only_host = only_host
        self._writer, self._program, self._payloads = writer, program, payloads
        self._host = Host(writer)
        self._ports_in = tuple(map(_with_order_of_runtime, program.inputs))
        if not only_host:
            _warn_of_orders(self._ports_in)
        self._ports_out = program.outputs
        if isinstance(program, Program):
            self._ports_out = tuple(map(_without_order_of_view, program.outputs))
        self._reasons: list[str] = []
        self._values: dict[int, Held] = {}
        self._written: list[tuple[Held, Held]] = []  # a state or an input, and its new value
        self._delegates: list[tuple[PtePayload, str, str]] = []  # payload, claimant, target

    def write(self) -> list[str]:
        """Adds the method to its file; returns reasons instead if it cannot be written."""
        program, signature = self._program, self._program.signature
        graph: _core.Graph = program.graph
        if not isinstance(program, Lowered):
            graph = _core.unfold_qdq(graph, keep_integers=True)
        given = [self._host.new(port.dtype, port.shape, port.array_order) for port in self._ports_in]
        ports = [
            self._host.logical(held, port.dim_order) if port.physical else held
            for held, port in zip(given, self._ports_in, strict=True)
        ]
        if isinstance(program, Lowered):
            results = self._whole(program, ports)
        else:
            results = self._nodes(graph, ports)
        places, at = _positions(first_inputs(graph)), _positions(caller_outputs(graph))
        inputs = [
            self._writer.plain(leaf.value) if leaf.index is None else given[places[leaf.index]].slot
            for leaf in signature.input_leaves
        ]
        if self._reasons:
            return self._reasons
        if not self._only_host:
            self._warn_of_written(given)
        returned = [
            leaf.value
            if leaf.index is None
            else self._as_declared(results[at[leaf.index]], self._ports_out[at[leaf.index]])
            for leaf in signature.output_leaves
        ]
        outputs = self._outputs(returned, inputs)
        self._write_back()
        self._writer.finish(inputs, outputs, (text_of(signature.inputs), text_of(signature.outputs)))
        return []

    @property
    def delegates(self) -> Sequence[tuple[PtePayload, str, str]]:
        """The payload, the claimant and the target of each delegate."""
        return tuple(self._delegates)

    def recorded(self) -> SidecarMethod:
        """Returns the sidecar's entry of the method that was written."""
        program, signature = self._program, self._program.signature
        graph = program.graph
        inputs, input_leaves = _numbered(signature.input_leaves, self._ports_in, first_inputs(graph))
        outputs, output_leaves = _numbered(signature.output_leaves, self._ports_out, caller_outputs(graph))
        return SidecarMethod(
            self._writer.name,
            replace(signature, input_leaves=input_leaves, output_leaves=output_leaves),
            inputs,
            outputs,
            tuple(sorted(port.path or port.name for port in program.states)),
            tuple(_recorded(*each) for each in self._delegates),
        )

    # ---- outputs, and what persists ----

    def _warn_of_written(self, given: Sequence[Held]) -> None:
        """Warns if the program writes inputs of the caller, whose tensors the runtime does not change."""
        targets = {self._writer.base(target.slot) for target, _ in self._written}
        for held, port in zip(given, self._ports_in, strict=True):
            if self._writer.base(held.slot) in targets:
                _LOG.warning(
                    "the program writes to its input '%s', and ExecuTorch's runtime copies inputs into "
                    "memory of the method: the caller's tensor keeps its elements there. Return the new "
                    "value as an output, or make the input a buffer of the module",
                    port.path or port.name,
                )

    def _as_declared(self, held: Held, port: Port) -> Held:
        """Returns a result in the shape and dim order of the caller's array."""
        held = self._host.in_order(held, port.dim_order)
        return self._host.physical(held) if port.physical else held

    def _outputs(self, returned: Sequence[Any], inputs: Sequence[Slot]) -> list[Slot]:
        """Returns the slots of the results. Each has its own bytes, unless it is an unchanged input."""
        targets = {self._writer.base(target.slot) for target, _ in self._written}
        taken = {self._writer.base(each) for each in inputs} | targets
        outputs = []
        for value in returned:
            if not isinstance(value, Held):
                outputs.append(self._writer.plain(value))
                continue
            base = self._writer.base(value.slot)
            is_input = value.slot in inputs and base not in targets
            if not is_input and (base in taken or not self._writer.is_planned(base)):
                value = self._host.copy(value)
                base = value.slot
            taken.add(base)
            outputs.append(value.slot)
        return outputs

    def _write_back(self) -> None:
        """Copies new values into states and inputs, after all reads of the old values."""
        targets = {self._writer.base(target.slot) for target, _ in self._written}
        pairs = []
        for target, new in self._written:
            new = self._host.in_order(new, target.order)
            if self._writer.base(new.slot) in targets:
                new = self._host.copy(new)
            if self._writer.base(target.slot) != target.slot:  # a logical view of a physical input as target
                target, new = self._host.physical(target), self._host.physical(new)
            pairs.append((target, new))
        for target, new in pairs:
            self._writer.call_in_place("aten::copy_", [target.slot, new.slot, False])

    # ---- nodes of the host ----

    def _nodes(self, graph: _core.Graph, ports: Sequence[Held]) -> list[Held]:
        """Writes the nodes in their order; returns the values of the caller's outputs."""
        inputs, outputs = graph.inputs, graph.outputs
        for index, held in zip(first_inputs(graph), ports, strict=True):
            self._values[inputs[index].value.id] = held
        for port in inputs:
            if port.kind == "state":
                self._values[port.value.id] = self._state(port)
        parts = getattr(self._program, "parts", ())
        groups = self._program.partitions.groups if parts else ()
        by_name = {group.name: (group, part) for group, part in zip(groups, parts, strict=True)}
        for node in graph.nodes:
            operands = [None if each is None else self._value(each) for each in node.operands]
            results = self._node(node, operands, by_name)
            self._values |= {value.id: made for value, made in zip(node.results, results, strict=True)}
        for output in outputs:
            if output.mutated_input is not None:
                target = self._values[inputs[output.mutated_input].value.id]
                self._written.append((target, self._value(output.value)))
        return [self._value(outputs[i].value) for i in caller_outputs(graph)]

    def _state(self, port: _core.Input) -> Held:
        initial = port.initial
        assert initial is not None
        dtype = port.value.dtype  # in a group, the caller's int64 counter has 32 bits
        slot = self._writer.state(initial.array, dtype, port.path or port.name)
        return Held(slot, dtype, tuple(port.shape), tuple(range(len(port.shape))))

    def _value(self, value: _core.Value) -> Held:
        constant = value.constant
        if constant is not None and value.id not in self._values:
            self._values[value.id] = self._host.weight(constant)
        return self._values[value.id]

    def _node(
        self, node: _core.Node, operands: Sequence[Held | None], groups: Mapping[str, Any]
    ) -> Sequence[Held]:
        name = str((node.attrs or {}).get("target", ""))
        group, part = groups.get(name, (None, None))
        if group is not None and isinstance(part, Lowered):
            return self._group(name, part, [each for each in operands if each is not None], group.claimant)
        made = None if group is not None else write_node(self._host, node, operands)
        if made is not None:
            return made
        what = f"no kernel for {_named(node)}"
        if group is not None:
            what = f"{_not_read(name, group.claimant)}, {_named(node).partition(', ')[2]}"
        self._reasons.append(what)
        return self._stand_ins(node.results)

    def _stand_ins(self, values: Sequence[Any]) -> list[Held]:
        """Returns placeholders for results that could not be written, so that all reasons are found."""
        return [self._host.new(value.dtype, value.shape) for value in values]

    # ---- groups ----

    def _whole(self, program: Lowered, ports: Sequence[Held]) -> list[Held]:
        """Writes a program that is one group; returns the caller's outputs."""
        graph = program.graph
        results = self._group(self._writer.name, program, ports, None)
        places = caller_inputs(graph.inputs)
        first = {place: index for index, place in reversed([*enumerate(places)])}
        of_caller = _positions(first_inputs(graph))
        outputs = graph.outputs
        for index, new in zip(caller_outputs(graph), results, strict=True):
            target = outputs[index].mutated_input
            if target is not None:
                self._written.append((ports[of_caller[first[places[target]]]], new))
        return results

    def _group(self, name: str, part: Lowered, operands: Sequence[Held], claimant: str | None) -> list[Held]:
        """Calls the delegate of a group, between conversions of inputs and outputs; returns its results."""
        if self._only_host and claimant is not None and not self._payloads.is_kernels(claimant):
            return [self._host.new(port.dtype, port.shape) for port in part.outputs]
        payload = self._payloads.payload(name, part, claimant)
        if payload is None and claimant is not None and self._payloads.is_kernels(claimant):
            return self._as_kernels(part, operands)
        if payload is None and claimant is not None and self._payloads.has_library(claimant):
            return self._as_library_calls(part, operands, claimant)
        if payload is None:
            self._reasons.append(_not_read(name, claimant))
            return self._stand_ins(part.outputs)
        entered: dict[str, Held] = {}
        quantized_by = {each.name: quantizations_of_input(each) for each in part.graph.inputs}
        for port, held in zip(part.inputs, operands, strict=True):
            self._enter(port, self._host.in_order(held, tuple(port.dim_order)), quantized_by, entered)
        left: dict[str, Held] = {}
        results = []
        for port in part.outputs:
            (tensor,) = port.tensors
            if tensor.name not in left:
                stored = _stored(port, tensor.dtype)
                left[tensor.name] = self._host.new(stored, port.logical_shape, port.dim_order)
            results.append((port, left[tensor.name]))
        inside = self._states(part, entered, left)
        inputs = part.graph.inputs
        given = [entered[port.name] for port in inputs if port.name not in inside]
        made = [left[port.value.name] for port in part.graph.outputs if _target(inputs, port) not in inside]
        self._delegates.append((payload, claimant or "", part.target))
        self._writer.delegate(payload, [each.slot for each in given], [each.slot for each in made])
        return [self._leave(port, held) for port, held in results]

    def _as_kernels(self, part: Lowered, operands: Sequence[Held]) -> list[Held]:
        """Writes a group as kernel calls that compute floats between dequantize and quantize calls."""
        graph = _core.unfold_qdq(part.source.graph, keep_integers=True)
        held = dict(self._values)
        self._values = {port.value.id: each for port, each in zip(graph.inputs, operands, strict=True)}
        try:
            for node in graph.nodes:
                read = [None if each is None else self._value(each) for each in node.operands]
                results = self._node(node, read, {})
                self._values |= {value.id: made for value, made in zip(node.results, results, strict=True)}
            return [self._value(output.value) for output in graph.outputs]
        finally:
            self._values = held

    def _as_library_calls(self, part: Lowered, operands: Sequence[Held], claimant: str) -> list[Held]:
        """Writes a group as calls of kernels that compute its integers."""
        kernels = GroupKernels(self._host, part, self._payloads.claimants[claimant])
        graph = part.source.graph
        held = dict(self._values)
        self._values = {port.value.id: each for port, each in zip(graph.inputs, operands, strict=True)}
        try:
            kernels.write(self._value, self._values)
            self._reasons += [f"{claimant} has no kernel for {_named(node)}" for node in kernels.refused]
            return [self._value(output.value) for output in graph.outputs]
        finally:
            self._values = held

    def _states(self, part: Lowered, entered: dict[str, Held], left: dict[str, Held]) -> set[str]:
        """Adds the states of a group to its delegate call; returns the names of states inside the payload."""
        graph, inputs = part.graph, part.graph.inputs
        states = [port for port in inputs if port.kind == "state"]
        if not states:
            return set()
        in_file = {port.name for port in _core.file_graph(graph, target=part.target).inputs}
        outside = {port.name for port in states} & in_file
        for port in states:
            if port.name in outside:
                entered[port.name] = self._state(port)
        for output in graph.outputs:
            name, value = _target(inputs, output), output.value
            if name in outside:
                if value.name not in left:
                    left[value.name] = self._host.new(value.dtype, value.shape)
                self._written.append((entered[name], left[value.name]))
        return {port.name for port in states} - outside

    def _enter(
        self,
        port: Port,
        held: Held,
        quantized_by: Mapping[str, Sequence[QParams]],
        entered: dict[str, Held],
    ) -> None:
        """Adds the tensors of the payload that hold an input of a group.

        A float tensor needs no qparams, however many quantize nodes of the group read it.
        """
        for tensor in port.tensors:
            if is_float(port.dtype) == is_float(tensor.dtype):
                entered[tensor.name] = self._host.in_storage(held, tensor.dtype)
                continue
            found = quantized_by[tensor.name] or port.quantized
            made = quantized(self._host, held, _attributes(found[0])) if len(found) == 1 else None
            if made is None:
                self._reasons.append(
                    f"input '{port.path or port.name}' is quantized in a way without a kernel"
                )
            entered[tensor.name] = held if made is None else made

    def _leave(self, port: Port, held: Held) -> Held:
        """Returns the caller's tensor for a result of a group."""
        if is_float(port.dtype) == is_float(held.dtype):
            return self._host.in_storage(held, port.dtype)
        qparams = port.qparams
        made = None if qparams is None else dequantized(self._host, held, _attributes(qparams), port.dtype)
        if made is None:
            self._reasons.append(
                f"output '{port.path or port.name}' is dequantized in a way without a kernel"
            )
        return held if made is None else made


def _named(node: _core.Node) -> str:
    """Returns the operator and the name of a node, with its source line."""
    origin = node.origin
    at = f" ({origin.source})" if origin is not None and origin.source else ""
    return f"{node.op!r}, node '{node.name}'{at}"


def _recorded(payload: PtePayload, claimant: str, target: str) -> SidecarDelegate:
    digest = hashlib.sha256(payload.data).hexdigest()
    return SidecarDelegate(payload.backend, claimant, target, len(payload.data), digest)


def _with_order_of_runtime(port: Port) -> Port:
    """Returns an input, row-major if the runtime takes no arrays in its order.

    The runtime reads the bytes of an array as the file declares them and does not compare orders, but it
    refuses tensors that are neither row-major nor, at rank 4, channels last.
    """
    if port.physical:
        return port
    rank = len(port.shape)
    taken = orders_of_formats(rank)[: 2 if rank == 4 else 1]
    same = (each for each in taken if is_same_order(port.shape, each, port.dim_order))
    return replace(port, dim_order=next(same, taken[0]))


def _warn_of_orders(ports: Sequence[Port]) -> None:
    for port in ports:
        rows = tuple(range(len(port.shape)))
        if not port.physical and not is_same_order(port.shape, port.dim_order, rows):
            _LOG.warning(
                "input '%s' of a .pte file is channels last, and ExecuTorch's runtime does not compare "
                "orders: a row-major tensor gives wrong numbers. Pass "
                "x.contiguous(memory_format=torch.channels_last). With orders={'inputs': 'contiguous'}, "
                "tosaic.lower makes a row-major input. With 'nhwc', the input has the extents N, H, W, C, "
                "which the runtime compares",
                port.path or port.name,
            )


def _without_order_of_view(port: Port) -> Port:
    """Returns an output, row-major if its traced order only shows which view torch made."""
    if port.physical or is_of_format(port.shape, port.dim_order):
        return port
    return replace(port, dim_order=tuple(range(len(port.shape))))


def _numbered(
    leaves: Sequence[Any], ports: Sequence[Port], places: Sequence[int]
) -> tuple[tuple[Port, ...], tuple[Any, ...]]:
    """Returns the ports of the leaves that are tensors, and the leaves with indices into these ports.

    The given leaves have indices of inputs or outputs of the graph. `places` has this index for each port.
    """
    found: list[Port] = []
    numbered = []
    at = _positions(places)
    for leaf in leaves:
        if leaf.index is not None:
            found.append(ports[at[leaf.index]])
            leaf = replace(leaf, index=len(found) - 1)
        numbered.append(leaf)
    return tuple(found), tuple(numbered)


def _positions(items: Sequence[int]) -> dict[int, int]:
    """Returns the position of each item; items are distinct."""
    return {item: position for position, item in enumerate(items)}


def _not_read(group: str, claimant: str | None) -> str:
    return f"group '{group}' is for {claimant}, which does not read TOSA"


def _stored(port: Port, dtype: str) -> str:
    """Returns the dtype of a delegate's result: the caller's, if integers of it have the same size."""
    if port.qparams is not None and is_float(port.dtype) and not is_float(dtype):
        return port.qparams.dtype
    return port.dtype if BITS[port.dtype] == BITS[dtype] else dtype


def _target(inputs: Sequence[_core.Input], output: _core.Output) -> str:
    """Returns the name of the input whose new value an output is; empty for other outputs."""
    index = output.mutated_input
    return "" if index is None else inputs[index].name


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
