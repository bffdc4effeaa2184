"""Makes quantized inputs and outputs of an exported program integers: see `tosaic.extract_io_quant`.

::

    x: f32 ─▶ permute ─▶ quantize ─▶ ...      x: int8 ─▶ permute ─▶ ...
    ... ─▶ dequantize ─▶ view ─▶ output       ... ─▶ view ─▶ output

The program is read completely before a node changes, so a refusal changes nothing.
`quantize_calls` says which calls are layout operators. Per-channel scales are followed through such a call by
computing it on the indices along the channel axis.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.export.graph_signature import (
    ExportGraphSignature,
    OutputKind,
)
from torch.fx import Node
from torch.utils._pytree import tree_flatten, tree_unflatten

from tosaic.base.dtypes import TORCH, WITH_INTEGER_FORM
from tosaic.base.quantization import QParams
from tosaic.fx.dialects import Aten, Dialect
from tosaic.fx.io.answers import Ports, answers
from tosaic.fx.io.graph_copy import copied_graph, with_names_of_results
from tosaic.fx.io.quantize_calls import (
    ZEROING,
    arguments_of,
    inserted_by,
    is_call,
    is_move,
    is_whole_copy,
    operator_of,
    overwrites,
    schema_of,
)
from tosaic.fx.io.user_ports import UserPort, user_ports
from tosaic.fx.reading.memory_order import set_value
from tosaic.ports.io_forms import AUTO, Answer, Asked, Candidates, mismatch
from tosaic.ports.io_quant import IoQuant, PortQuant
from tosaic.torch_operators.origins import place_of

_WHERE = "extract_io_quant"
_FLOATS = tuple(getattr(torch, TORCH[dtype]) for dtype in sorted(WITH_INTEGER_FORM))
_CODE = {getattr(torch, name): code for code, name in TORCH.items()}


def extract_from_exported(
    program: Any,
    method: str,
    inputs: Ports,
    outputs: Ports,
    in_place: bool,
    dialect: Dialect | None = None,
) -> tuple[Any, IoQuant]:
    """See `tosaic.extract_io_quant`. `dialect` has the quantize and dequantize operators of added calls."""
    reading = Quantizations(program)
    of_inputs = answers("inputs", inputs, [port.named for port in reading.inputs], reading.candidates_in)
    of_outputs = answers("outputs", outputs, [port.named for port in reading.outputs], reading.candidates_out)
    answered = _agreeing(reading, of_inputs)
    return _Rewrite(reading, answered, [each for _, each in of_outputs], method, dialect or Aten()).run(
        in_place
    )


@dataclass(frozen=True)
class _Chain:
    """A dequantize node and the layout operators from it to an output."""

    dequantize: Node
    moves: tuple[Node, ...]
    copies: tuple[Node, ...]  # `copy` calls whose result is all of the second operand; integers skip them
    qparams: QParams


@dataclass
class _Found:
    """The quantize nodes that read an input, and the layout operators between the input and these nodes."""

    quantizes: list[Node] = field(default_factory=list)
    moves: list[tuple[Node, int]] = field(default_factory=list)  # and zero point of moved integers
    qparams: list[QParams] = field(default_factory=list)


class _StaysFloatError(Exception):
    """The reason why an input or output stays a float, as a part of a sentence."""


class Quantizations:
    """What an exported program quantizes at its inputs and outputs; nothing is changed."""

    def __init__(self, program: Any) -> None:
        self.program = program
        self.nodes = list(program.graph.nodes)
        ports = user_ports(program)
        self.inputs, self.outputs = ports.inputs, ports.outputs
        results = self.nodes[-1].args[0]
        self.written = {
            spec.target: results[i]
            for i, spec in enumerate(program.graph_signature.output_specs)
            if spec.kind is OutputKind.USER_INPUT_MUTATION
        }
        self.found: list[_Found | None] = []
        self.candidates_in = [self._of_input(port) for port in self.inputs]
        self.chains: list[_Chain | None] = []
        self.candidates_out = [self._of_output(port) for port in self.outputs]

    def at_ports(self) -> tuple[list[tuple[QParams, ...]], list[tuple[QParams, ...]]]:
        """Returns the qparams at the float inputs and outputs; an empty tuple where there are none."""
        return [each.found for each in self.candidates_in], [each.found for each in self.candidates_out]

    # ---- inputs ----

    def _of_input(self, port: UserPort) -> Candidates:
        try:
            found = self._readers(port.node)
        except _StaysFloatError as obstacle:
            self.found.append(None)
            return Candidates((), str(obstacle))
        self.found.append(found)
        return Candidates(tuple(dict.fromkeys(found.qparams)))

    def _readers(self, node: Any) -> _Found:
        if node.meta["val"].dtype not in _FLOATS:
            raise _StaysFloatError("it is not f32, f16 or bf16")
        if not node.users:
            raise _StaysFloatError("nothing reads it")
        all_found = _Found()
        for user in node.users:
            if user.op == "output":
                raise _StaysFloatError("it is an output, too")
            if overwrites(user, node):
                continue
            found = self._reader(node, user)
            all_found.quantizes += found.quantizes
            all_found.moves += found.moves
            all_found.qparams += [each for each in found.qparams if each not in all_found.qparams]
        if not all_found.qparams:
            raise _StaysFloatError("nothing reads it")
        return all_found

    def _reader(self, node: Node, user: Node) -> _Found:
        if is_call(user, "quantize") and user.args[0] is node:
            return _Found([user], [], [self.qparams(user)])
        if not is_move(user):
            raise _StaysFloatError(f"'{user.target}' reads it as floats ({place_of(user)})")
        behind = self._readers(user)
        for qparams in behind.qparams:
            _require_zero(user, qparams)
        before = [_axis_in_front(user, qparams) for qparams in behind.qparams]
        if inserted_by(user) is not None and len(before) > 1:
            raise _StaysFloatError(
                f"it is padded before it is quantized in several ways (node '{user.name}')"
            )
        zero_point = behind.qparams[0].zero_points[0]
        return _Found(behind.quantizes, [(user, zero_point), *behind.moves], before)

    # ---- outputs ----

    def _of_output(self, port: UserPort) -> Candidates:
        try:
            chain = self.chain(port.node)
        except _StaysFloatError as obstacle:
            self.chains.append(None)
            return Candidates((), str(obstacle))
        self.chains.append(chain)
        return Candidates((chain.qparams,))

    def chain(self, node: Node | None) -> _Chain:
        """Returns the dequantize node that makes a value, and the layout operators after it."""
        moves: list[Node] = []
        copies: list[Node] = []
        while node is not None and (is_move(node) or is_whole_copy(node)):
            if is_move(node):
                moves.insert(0, node)
                node = node.all_input_nodes[0]
            else:
                copies.append(node)
                node = node.args[1]  # type: ignore[assignment]
        if node is None or not is_call(node, "dequantize"):
            made = "it is no result of a call" if node is None else f"{place_of(node)} makes it"
            raise _StaysFloatError(made)
        qparams = self.qparams(node)
        for move in moves:
            _require_zero(move, qparams)
            qparams = _axis_behind(move, qparams)
        return _Chain(node, tuple(moves), tuple(copies), qparams)

    # ---- qparams ----

    def qparams(self, node: Node) -> QParams:
        """Returns the qparams of a quantize or dequantize node."""
        values = arguments_of(node)
        numbers = {name: self._numbers(node, value) for name, value in values.items() if name in _NUMBERS}
        by_name = {_NUMBERS[name]: value for name, value in numbers.items()}
        scales = tuple(map(float, by_name["scale"]))
        zero_points = tuple(map(int, by_name.get("zero_point") or [0] * len(scales)))
        axis = values.get("axis")
        if axis is not None:
            axis %= values["input"].meta["val"].dim()
        dtype = _CODE[values["dtype"]]
        return QParams(dtype, scales, zero_points, int(by_name["qmin"][0]), int(by_name["qmax"][0]), axis)

    def _numbers(self, node: Node, value: Any) -> list[Any]:
        if not isinstance(value, Node):
            return [] if value is None else [value]
        tensor = self._constant(value)
        if tensor is None:
            raise _StaysFloatError(f"its qparams depend on data ({place_of(node)})")
        listed: list[Any] = tensor.detach().reshape(-1).tolist()
        return listed

    def _constant(self, node: Node) -> Any:
        program = self.program
        if node.op == "get_attr":
            return getattr(program.graph_module, str(node.target), None)
        for spec in program.graph_signature.input_specs:
            if spec.arg.name == node.name and spec.target is not None:
                target = spec.target
                return (
                    program.state_dict[target]
                    if target in program.state_dict
                    else program.constants.get(target)
                )
        return None


_NUMBERS = {
    "scale": "scale",
    "scales": "scale",
    "zero_point": "zero_point",
    "zero_points": "zero_point",
    "quant_min": "qmin",
    "quant_max": "qmax",
}


def _agreeing(reading: Quantizations, found: list[tuple[Asked, Answer]]) -> list[Answer]:
    """Returns the answers for inputs. A written input stays float unless its new value has its qparams."""
    out: list[Answer] = []
    for port, (asked, each), candidates in zip(reading.inputs, found, reading.candidates_in, strict=True):
        if each is False or port.node.name not in reading.written:
            out.append(each)
            continue
        try:
            agrees = (
                each is True and reading.chain(reading.written[port.node.name]).qparams == candidates.found[0]
            )
        except _StaysFloatError:
            agrees = False
        if not agrees and asked != AUTO:
            expected = (
                "a new value that is quantized with the same qparams, since the program writes this input"
            )
            raise mismatch(_WHERE, "inputs", port.path, asked, expected, "another new value")
        out.append(agrees)
    return out


class _Rewrite:
    """The changed program. Methods take nodes of the given program; `_new` maps them to the changed graph."""

    def __init__(
        self,
        reading: Quantizations,
        inputs: list[Answer],
        outputs: list[Answer],
        method: str,
        dialect: Dialect,
    ) -> None:
        self._reading = reading
        self._inputs = inputs
        self._outputs = outputs
        self._method = method
        self._dialect = dialect
        self._replaced: list[Node] = []  # nodes that only the float outputs needed
        self._quantized: dict[tuple[Node, QParams], Node] = {}
        self._moved: dict[Node, Node] = {}  # layout operator -> its copy that moves integers

    def run(self, in_place: bool) -> tuple[Any, IoQuant]:
        program = self._reading.program
        if in_place:
            self._graph, self._new = program.graph, {node: node for node in self._reading.nodes}
        else:
            self._graph, old = copied_graph(program.graph)
            self._new = {before: after for after, before in old.items()}
        of_outputs = list(self._extracted_outputs())  # before quantize nodes of inputs are removed
        of_inputs = list(self._extracted_inputs())
        signature = self._signature()
        io = IoQuant(tuple(of_inputs), tuple(self._with_names(of_outputs)), self._method)
        self._graph.lint()
        examples = self._examples()
        if in_place:
            program.graph_module.recompile()
            program._graph_signature = signature
            program._example_inputs = examples
            return program, io
        return program_with(program, self._graph, signature, examples), io

    # ---- inputs ----

    def _extracted_inputs(self) -> Iterator[PortQuant]:
        reading = self._reading
        for position, (port, each) in enumerate(zip(reading.inputs, self._inputs, strict=True)):
            found = reading.found[position]
            if each is False or found is None:
                continue
            node = self._new[port.node]
            if isinstance(each, QParams):
                self._dequantize_input(node, each)
                qparams = each
            else:
                qparams = found.qparams[0]
                _retype(node, qparams)
                for move, zero_point in found.moves:
                    _retype(self._new[move], qparams)
                    _insert(self._new[move], zero_point)
                for quantize in found.quantizes:
                    made = self._new[quantize]
                    made.replace_all_uses_with(made.all_input_nodes[0])
                    self._graph.erase_node(made)
            yield PortQuant(position, port.path, port.node.name, qparams)

    def _dequantize_input(self, node: Node, qparams: QParams) -> None:
        first = next(each for each in self._graph.nodes if each.op != "placeholder")
        users = list(node.users)
        with self._graph.inserting_before(first):
            made = self._add("dequantize_per_tensor", node, qparams, f"{node.name}_dequantize")
        if node.meta["val"].dtype is not torch.float32:
            made.kwargs = {"out_dtype": node.meta["val"].dtype}
        made.meta["val"] = node.meta["val"]
        _retype(node, qparams)
        for user in users:
            user.replace_input_with(node, made)

    def _add(self, name: str, node: Node, qparams: QParams, called: str) -> Node:
        dtype = getattr(torch, TORCH[qparams.dtype])
        args = (node, qparams.scale, qparams.zero_point, qparams.qmin, qparams.qmax, dtype)
        made: Node = self._graph.create_node("call_function", self._dialect.quantized(name), args, {}, called)
        kept = ("stack_trace", "nn_module_stack")
        near = next(iter(node.users), node) if node.op == "placeholder" else node
        made.meta = {key: held for key, held in near.meta.items() if key in kept}
        return made

    # ---- outputs ----

    def _extracted_outputs(self) -> Iterator[PortQuant]:
        reading = self._reading
        output = self._new[reading.nodes[-1]]
        results: list[Any] = list(output.args[0])
        for position, (port, chain, each) in enumerate(
            zip(reading.outputs, reading.chains, self._outputs, strict=True)
        ):
            if each is False or chain is None:
                continue
            if isinstance(each, QParams):
                results[port.spec] = self._quantized_output(results[port.spec], each)
                yield PortQuant(position, port.path, "", each)
            else:
                results[port.spec] = self._integers(chain)
                yield PortQuant(position, port.path, "", chain.qparams)
        for port, answer in zip(reading.inputs, self._inputs, strict=True):
            if answer is True and port.node.name in reading.written:
                written = reading.written[port.node.name]
                (at,) = [
                    i
                    for i, spec in enumerate(reading.program.graph_signature.output_specs)
                    if spec.kind is OutputKind.USER_INPUT_MUTATION and spec.target == port.node.name
                ]
                results[at] = self._integers(reading.chain(written))
        output.args = (type(output.args[0])(results),)
        self._remove_unread()

    def _integers(self, chain: _Chain) -> Node:
        """Returns the integers of an output: what its dequantize node reads, after its layout operators."""
        self._replaced += [*chain.copies, *reversed(chain.moves), chain.dequantize]
        dequantize = self._new[chain.dequantize]
        integers: Node = dequantize.all_input_nodes[0]
        zero_point = self._reading.qparams(chain.dequantize).zero_points[0]
        for old in chain.moves:
            if old not in self._moved:
                move = self._new[old]
                with self._graph.inserting_after(move):
                    made = self._graph.node_copy(move, {move.all_input_nodes[0]: integers}.__getitem__)
                made.meta = copy.copy(move.meta)
                _retype(made, chain.qparams)
                _insert(made, zero_point)
                self._moved[old] = made
            integers = self._moved[old]
        return integers

    def _quantized_output(self, result: Node, qparams: QParams) -> Node:
        key = (result, qparams)
        if key not in self._quantized:
            output = self._new[self._reading.nodes[-1]]
            with self._graph.inserting_before(output):
                made = self._add("quantize_per_tensor", result, qparams, f"{result.name}_quantize")
            made.meta["val"] = result.meta["val"]
            _retype(made, qparams)
            self._quantized[key] = made
        return self._quantized[key]

    def _remove_unread(self) -> None:
        """Removes the dequantize nodes and layout operators that only outputs read before."""
        replaced = set(self._replaced)
        for old in reversed(self._reading.nodes):
            if old in replaced and not self._new[old].users:
                self._graph.erase_node(self._new[old])

    # ---- the program ----

    def _results(self) -> list[Any]:
        return list(self._new[self._reading.nodes[-1]].args[0])

    def _signature(self) -> ExportGraphSignature:
        output = self._new[self._reading.nodes[-1]]
        if "val" in output.meta:
            output.meta["val"] = tuple(
                each.meta.get("val") if isinstance(each, Node) else each for each in self._results()
            )
        return with_names_of_results(self._reading.program.graph_signature, self._graph)

    def _with_names(self, ports: list[PortQuant]) -> Iterator[PortQuant]:
        results = self._results()
        for port in ports:
            yield replace(port, name=results[self._reading.outputs[port.index].spec].name)

    def _examples(self) -> Any:
        """Returns the example inputs, quantized where the program takes integers now."""
        reading = self._reading
        examples = reading.program.example_inputs
        if examples is None:
            return None
        leaves, tree = tree_flatten(examples)
        for port, found, each in zip(reading.inputs, reading.found, self._inputs, strict=True):
            if each is False or found is None or port.leaf >= len(leaves):
                continue
            value = leaves[port.leaf]
            if isinstance(value, torch.Tensor) and value.dtype in _FLOATS:
                qparams = each if isinstance(each, QParams) else found.qparams[0]
                integers = torch.from_numpy(qparams.quantize(value.detach().float().numpy()).copy())
                leaves[port.leaf] = torch.empty_strided(value.shape, value.stride(), dtype=integers.dtype)
                leaves[port.leaf].copy_(integers)
        return tree_unflatten(leaves, tree)


def program_with(program: Any, graph: Any, signature: ExportGraphSignature, examples: Any) -> Any:
    """Returns a program with another graph, which has the states and constants of the given one."""
    return torch.export.ExportedProgram(
        root=program.graph_module,
        graph=graph,
        graph_signature=signature,
        state_dict=dict(program.state_dict),
        range_constraints=copy.deepcopy(program.range_constraints),
        module_call_graph=list(map(copy.copy, program.module_call_graph)),
        example_inputs=examples,
        constants=dict(program.constants),
        verifiers=program.verifiers,
    )


# ---- changes of calls ----


def _insert(node: Node, zero_point: int) -> None:
    """Makes a padding of integers insert the zero point."""
    name = inserted_by(node)
    if name is None:
        return
    names = [argument.name for argument in schema_of(node).arguments]
    at = names.index(name)
    if at < len(node.args):
        node.args = (*node.args[:at], zero_point, *node.args[at + 1 :])
    else:
        node.kwargs = {**node.kwargs, name: zero_point}


def _retype(node: Node, qparams: QParams) -> None:
    """Records integers as the node's value, with the same shape and strides."""
    val = node.meta["val"]
    dtype = getattr(torch, TORCH[qparams.dtype])
    with torch.no_grad():
        made = val.new_empty_strided(tuple(val.shape), tuple(val.stride()), dtype=dtype)
    set_value(node.meta, made)
    recorded: Any = node.meta.get("tensor_meta")
    if hasattr(recorded, "dtype") and hasattr(recorded, "_replace"):
        node.meta["tensor_meta"] = recorded._replace(dtype=dtype)


# ---- axes ----


def _indices_behind(node: Node, axis: int) -> Any:
    """Returns, for each element of a layout operator's result, its index along `axis` in the operand."""
    shape = node.all_input_nodes[0].meta["val"].shape
    if not all(type(size) is int for size in (*shape, *node.meta["val"].shape)):
        raise _StaysFloatError(f"it has scales by channel, and node '{node.name}' has symbolic sizes")
    spread = [1] * len(shape)
    spread[axis] = shape[axis]
    indices = torch.arange(shape[axis]).reshape(spread).expand(tuple(shape)).contiguous()
    name = inserted_by(node)
    if name is None:
        return operator_of(node)(indices, *node.args[1:], **node.kwargs)
    first, *others = arguments_of(node)
    arguments = {each: arguments_of(node)[each] for each in others}
    return operator_of(node)(**{first: indices, **arguments, name: _NO_INDEX})


_NO_INDEX = -1  # marks an element that a padding inserts


def _order_along(indices: Any) -> tuple[int, list[int]] | None:
    """Returns the axis if the indices differ along it only, and the indices along it; else None."""
    for axis in range(indices.dim()):
        along = indices.movedim(axis, -1).reshape(-1, indices.shape[axis])
        if not along.numel():
            return None
        order = along.amax(0)
        if bool(((along == order) | (along == _NO_INDEX)).all()):
            return axis, order.tolist()
    return None


def _require_zero(node: Node, qparams: QParams) -> None:
    """Raises _StaysFloatError unless the integer that a layout operator inserts represents 0."""
    zeros = set(qparams.zero_points)
    if (inserted_by(node) is not None and len(zeros) > 1) or (
        schema_of(node).name in ZEROING and zeros != {0}
    ):
        raise _StaysFloatError(f"node '{node.name}' inserts 0, which its integers represent otherwise")


def _axis_in_front(node: Node, qparams: QParams) -> QParams:
    """Returns the qparams of the operand of a layout operator whose result has these."""
    if qparams.axis is None:
        return qparams
    count = len(qparams.scales)
    for axis, size in enumerate(node.all_input_nodes[0].meta["val"].shape):
        found = _order_along(_indices_behind(node, axis)) if size == count else None
        if found is not None and found[0] == qparams.axis and sorted(found[1]) == list(range(count)):
            place = [found[1].index(i) for i in range(count)]
            return _chosen(qparams, axis, place)
    raise _StaysFloatError(
        f"its scales belong to an axis that it does not have in front of node '{node.name}'"
    )


def _axis_behind(node: Node, qparams: QParams) -> QParams:
    """Returns the qparams of the result of a layout operator whose operand has these."""
    if qparams.axis is None:
        return qparams
    found = _order_along(_indices_behind(node, qparams.axis))
    if found is None or _NO_INDEX in found[1]:
        raise _StaysFloatError(f"its scales belong to an axis that it does not have after node '{node.name}'")
    return _chosen(qparams, *found)


def _chosen(qparams: QParams, axis: int, places: list[int]) -> QParams:
    return replace(
        qparams,
        axis=axis,
        scales=tuple(qparams.scales[i] for i in places),
        zero_points=tuple(qparams.zero_points[i] for i in places),
    )
