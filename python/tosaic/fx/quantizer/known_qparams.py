"""Writes known qparams into an exported program of torch: torchao inserts them, and observes nothing.

our plan     Edge("relu", "conv2d_1")       QParams
torch graph  Edge("dropout", "conv2d_1")    the same QParams

`tosaic.fx.quantizer.places` says which node of torch has the tensor of a slot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torchao.quantization.pt2e.observer import ObserverBase
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, QuantizationSpec
from torchao.quantization.pt2e.quantizer import Quantizer as TorchQuantizer

from tosaic import _core
from tosaic.annotation.specs import Edge, Output, Slot
from tosaic.base.dtypes import TORCH
from tosaic.base.quantization import QParams
from tosaic.calibration.plan_program import PlannedProgram
from tosaic.fx.io.quantize_calls import is_dequantize, is_quantize
from tosaic.fx.quantizer.functional_parts import with_functional_parts
from tosaic.fx.quantizer.graph import attribute_at, bodies_of
from tosaic.fx.quantizer.held_annotations import KEY
from tosaic.fx.quantizer.inlined_wrappers import with_inlined_wrappers
from tosaic.fx.quantizer.moved_weights import moved_back, qparams_before, with_moves
from tosaic.fx.quantizer.observers import TosaicPerChannelGroupObserver
from tosaic.fx.quantizer.places import Place, Places, Read, another_program
from tosaic.fx.quantizer.quantizer import pass_by_position
from tosaic.fx.quantizer.separated_writes import refuse_separated_writes
from tosaic.fx.quantizer.state_writes import (
    refuse_writes_to_states,
    with_one_node_per_state,
    with_rounded_writes,
)
from tosaic.fx.quantizer.symbolic_sizes import bound_sizes, exported_again, warn_of_sizes
from tosaic.fx.quantizer.write import note_for_arm

if TYPE_CHECKING:
    from tosaic.calibration.draft import Draft


def to_exported(exported: Any, draft: Draft, *, symbolic: bool = True) -> torch.export.ExportedProgram:
    """See `tosaic.QuantizedProgram.to_exported`. Without `symbolic`, all sizes come from the draft."""
    module = exported.module()
    names = with_inlined_wrappers(module)
    _remove_folded_norms(module, draft.planned, names)
    sizes = bound_sizes(exported, draft.planned.graph)
    quantizer = _KnownQParams(draft, names, sizes)
    with torch.no_grad():
        prepared = prepare_pt2e(module, quantizer)
        states = _states_as_inputs(prepared, draft.planned.graph)
        converted = convert_pt2e(prepared)
        _inputs_as_states(converted, states)
    if symbolic and quantizer.is_fixed:
        warn_of_sizes("it writes a part of a tensor whose place depends on a symbolic size")
    found = exported_again(exported, converted, sizes, symbolic=symbolic and not quantizer.is_fixed)
    _note_quantized(found)
    return found


def _note_quantized(exported: torch.export.ExportedProgram) -> None:
    """Records for the lowering of ExecuTorch's backends by Arm which calls compute with integers.

    Without the notes, their passes leave quantize and dequantize calls, and the call between them computes
    with floats.
    """
    for node in exported.graph.nodes:
        if node.op == "call_function" and not is_quantize(node) and not is_dequantize(node):
            reads = any(each.op == "call_function" and is_dequantize(each) for each in node.all_input_nodes)
            note_for_arm(node, quantized=reads or any(map(is_quantize, node.users)))


def _remove_folded_norms(module: GraphModule, planned: PlannedProgram, names: Mapping[Node, str]) -> None:
    """Removes the batch norms that the plan has folded into convolutions, whose weights are written later.

    torchao folds them, too, but fails at transposed convolutions with groups.
    """
    calls = set(planned.plan.graph.names)  # without aliases
    unused = _unused_calls(module)  # which the plan leaves out
    for node in list(module.graph.nodes):
        is_norm = str(node.target) == "aten.batch_norm.default"
        if is_norm and names.get(node, node.name) not in calls and node not in unused:
            operand = names.get(node.args[0], node.args[0].name)
            if operand not in calls:
                raise another_program((operand, 0, 0))
            node.replace_all_uses_with(node.args[0])
            module.graph.erase_node(node)
    module.recompile()


def _unused_calls(module: GraphModule) -> set[Node]:
    """The calls on which neither an output nor a write depends."""
    unused: set[Node] = set()
    for node in reversed(module.graph.nodes):
        if node.op == "call_function" and not node.is_impure() and unused.issuperset(node.users):
            unused.add(node)
    return unused


@dataclass(frozen=True)
class _State:
    """A buffer that the program writes, and the input that replaces it for a time.

    Attributes
    ----------
    path : str
    value : Tensor
        A copy of the initial value.
    input : str
    persistent : bool
    """

    path: str
    value: torch.Tensor
    input: str
    persistent: bool


def _states_as_inputs(model: GraphModule, graph: _core.Graph) -> list[_State]:
    """Replaces buffers that the program writes by inputs, so that torchao does not take them for constants.

    torchao evaluates calls that depend on constants only. It would compute the new values of such buffers,
    and write them into the buffers of the caller's program, which the module shares.
    """
    states = []
    for at, path in enumerate(sorted({port.path for port in graph.inputs if port.kind == "state"})):
        readers = [node for node in model.graph.nodes if node.op == "get_attr" and node.target == path]
        if not readers:
            continue
        owner = attribute_at(model, path.rpartition(".")[0]) if "." in path else model
        persistent = path.rpartition(".")[2] not in owner._non_persistent_buffers_set
        state = _State(path, attribute_at(model, path).clone(), f"_tosaic_state_{at}", persistent)
        with model.graph.inserting_before(next(iter(model.graph.nodes))):
            made = model.graph.placeholder(state.input)
        made.meta = dict(readers[0].meta)
        for node in readers:
            node.replace_all_uses_with(made)
            model.graph.erase_node(node)
        states.append(state)
    return states


def _inputs_as_states(model: GraphModule, states: Sequence[_State]) -> None:
    """Replaces the inputs by the buffers again."""
    by_input = {state.input: state for state in states}
    for node in list(model.graph.nodes):
        state = by_input.get(node.target) if node.op == "placeholder" else None
        if state is None:
            continue
        owner: torch.nn.Module = model
        *names, name = state.path.split(".")
        for each in names:
            if not hasattr(owner, each):
                owner.add_module(each, torch.nn.Module())
            owner = getattr(owner, each)
        if hasattr(owner, name):
            delattr(owner, name)
        owner.register_buffer(name, state.value, persistent=state.persistent)
        with model.graph.inserting_before(node):
            made = model.graph.get_attr(state.path)
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        model.graph.erase_node(node)
    model.recompile()


class KnownQParamsObserver(ObserverBase):  # type: ignore[misc]
    """Observes nothing, and returns qparams that are known."""

    def __init__(self, dtype: torch.dtype, qparams: QParams, **_: Any) -> None:
        super().__init__(dtype=dtype, is_dynamic=False)
        per_channel = qparams.axis is not None
        self.qscheme = torch.per_channel_affine if per_channel else torch.per_tensor_affine
        self.quant_min, self.quant_max = qparams.qmin, qparams.qmax
        self.ch_axis = qparams.axis if per_channel else -1
        self.eps = torch.tensor([torch.finfo(torch.float32).eps])
        self._qparams = qparams

    def forward(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the tensor."""
        return tensor

    def calculate_qparams(self, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns float32 scales and int64 zero points."""
        return _tensors(self._qparams)


class KnownGroupObserver(TosaicPerChannelGroupObserver):
    """Returns known scales of the groups of a weight."""

    def __init__(self, qparams: QParams, **options: Any) -> None:
        own = {name: each for name, each in options.items() if name not in ("scale", "zero_point")}
        super().__init__(**{**own, "ch_axis": qparams.axis})  # torchao passes no axis here
        self._qparams = qparams

    def calculate_qparams(self, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns float32 scales and int32 zero points, in the order of the blocks."""
        scales, zero_points = _tensors(self._qparams)
        if self._qparams.axis == 1:  # blocks: [groups, channels]; qparams: [channels, groups]
            channels = self.block_counts[1]
            scales, zero_points = (each.reshape(channels, -1).T.reshape(-1) for each in (scales, zero_points))
        return scales, zero_points.to(torch.int32)

    def convert(self, model: GraphModule, observer_node: Node) -> None:
        """Derives the blocks from the shape of the weight, because this observer has seen no tensor."""
        weight = observer_node.all_input_nodes[0].meta["val"]
        block = list(weight.shape)
        block[self.ch_axis], block[1 - self.ch_axis] = 1, self.group_size
        self.block_size = tuple(block)
        self.block_counts = tuple(extent // size for extent, size in zip(weight.shape, block, strict=True))
        self.original_dtype = weight.dtype
        super().convert(model, observer_node)


def _tensors(qparams: QParams) -> tuple[torch.Tensor, torch.Tensor]:
    scales = torch.tensor(qparams.scales, dtype=torch.float32)
    return scales, torch.tensor(qparams.zero_points, dtype=torch.int64)


@dataclass(eq=True, frozen=True)
class _KnownSpec(QuantizationSpec):  # type: ignore[misc]
    """A spec with qparams. torchao gives a tensor and its reader one observer if their specs look equal."""

    scale: tuple[float, ...] = ()
    zero_point: tuple[int, ...] = ()


class _KnownQParams(TorchQuantizer):  # type: ignore[misc]
    """Annotates a graph of torch with the qparams of a plan of the same program.

    Attributes
    ----------
    is_fixed : bool
        After ``transform_for_annotation``: the graph is right only for the sizes of the plan.
    """

    def __init__(self, draft: Draft, names: Mapping[Node, str], sizes: Mapping[tuple[int, int], int]) -> None:
        super().__init__()
        self._names, self._sizes = names, sizes
        self.is_fixed = False
        self._planned = draft.planned
        self._qparams = draft.qparams
        self._elements = draft.elements
        self._bodies: set[GraphModule] = set()
        self._states: dict[str, str | None] = {}
        self._unread: tuple[set[int], set[str]] = set(), set()

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Passes tensors by position that calls take by keyword, and gives biases to calls that lack one.

        Writes to parts of tensors and to inputs become functional. Calls that update a state in place become
        calls whose result can be rounded before it is stored.
        """
        if model in self._bodies:
            return model
        self._states = with_one_node_per_state(model)
        unread = {name for name, first in self._states.items() if first is None}
        self._unread = _unread(self._planned, unread)
        self.is_fixed = with_functional_parts(model, self._sizes)
        with_rounded_writes(model)
        refuse_writes_to_states(model, "to_exported")
        pass_by_position(model)
        self._add_biases(model)
        return model

    def _add_biases(self, model: GraphModule) -> None:
        """Adds zeros where the plan's call has a bias that torch's call lacks."""
        planned = self._planned
        for node in list(model.graph.nodes):
            at, call = _bias_argument(node), self._names.get(node, node.name)
            if at is None or call not in planned.plan.graph:
                continue
            bias = next((v for _, k, v in _operands(planned, call) if k == 2 and v.kind == "constant"), None)
            args = list(node.args)
            if bias is None or (len(args) > at and args[at] is not None):
                continue
            name = f"_tosaic_bias_{node.name}"
            zeros = torch.zeros(tuple(bias.shape))
            model.register_buffer(name, zeros)
            with model.graph.inserting_before(node):
                made = model.graph.get_attr(name)
            made.meta = {**node.meta, "val": zeros}
            schema = node.target._schema.arguments
            while len(args) <= at:
                args.append(schema[len(args)].default_value)
            args[at] = made
            node.args = tuple(args)
        model.recompile()

    def annotate(self, model: GraphModule) -> GraphModule:
        """Writes the annotations, and the weights that the quantization changed.

        torchao prepares bodies of loops, too, after the graph that calls them. They compute with floats.
        """
        if model in self._bodies:
            return model
        self._bodies = set(bodies_of(model).values())
        places = Places(model, self._names, self._sizes, self._states)
        annotations: dict[Node, QuantizationAnnotation] = {}
        moved: list[tuple[Read, QParams]] = []
        for slot, qparams in self._qparams.items():
            for found in self._in_torch(places, slot):
                own = qparams_before(qparams, found.moves)
                if own is None:
                    moved.append((found, qparams))
                    continue
                node = found.node if found.user is None else found.user
                annotation = annotations.setdefault(node, QuantizationAnnotation(_annotated=True))
                if found.user is None:
                    annotation.output_qspec = _spec(own)
                else:
                    annotation.input_qspec_map[found.node] = _spec(own)
        for node, annotation in annotations.items():
            node.meta[KEY] = annotation
        weights = self._write_weights(model, places)
        for found, qparams in moved:
            assert found.user is not None
            read = weights.read_by(found.node, found.user)
            source, reader = with_moves(model, read, found.user, found.moves)
            specs = {source: _spec(qparams)}
            reader.meta[KEY] = QuantizationAnnotation(input_qspec_map=specs, _annotated=True)
        refuse_separated_writes(model, "to_exported", are_constant=False)
        model.recompile()
        return model

    def validate(self, model: GraphModule) -> None:
        """Accepts every graph."""

    def _in_torch(self, places: Places, slot: Slot) -> Sequence[Read]:
        """Returns the nodes of torch that compute the tensor of a slot; for an edge, the nodes read."""
        planned = self._planned
        value = planned.value_of(slot)
        values, calls = self._unread
        if value < 0 or value in values or (isinstance(slot, Edge) and slot.user in calls):
            return ()
        if isinstance(slot, Output):
            place = _place_of_result(planned, value)
            return [Read(node, None) for node in places.producers(place)] if place is not None else ()
        if planned.plan.graph[slot.user].kind == "output":
            return [Read(*places.read_by_output(planned, value, _place_of_result(planned, value)))]
        name = planned.graph.values[value].name
        place = next(_reads(planned, slot.user, name), None)
        return () if place is None else places.reads(place)

    def _write_weights(self, model: GraphModule, places: Places) -> _Weights:
        planned = self._planned
        weights = _Weights(model)
        for name in planned.plan.graph.names:
            for node_index, operand_index, value in _operands(planned, name):
                if value.kind != "constant" or value.constant is None:
                    continue
                for found in places.reads((name, node_index, operand_index), required=False):
                    assert found.user is not None
                    slot = Edge(planned.plan.graph.names[planned.values.index(value.id)], name)
                    constant = self._elements.get(slot, value.constant)
                    wanted = _bounded(_tensor_of(constant.array), self._qparams.get(slot))
                    weights.write(found.node, found.user, moved_back(wanted, found.moves))
        return weights


class _Weights:
    """Replaces weights of torch's calls that accuracy tools changed.

    A parameter with one reader gets the new elements. A changed reader of a parameter with several readers,
    or of a computed weight, reads a new buffer instead; the other readers keep the old one.
    """

    def __init__(self, model: GraphModule) -> None:
        self._model = model
        self._values: dict[Node, torch.Tensor | None] = {}
        self._made: dict[Node, list[Node]] = {}
        self._replaced: dict[tuple[Node, Node], Node] = {}
        self._readers: dict[str, int] = {}
        for node in model.graph.nodes:
            if node.op == "get_attr":
                target = str(node.target)
                self._readers[target] = self._readers.get(target, 0) + len(node.users)

    def write(self, node: Node, user: Node, wanted: torch.Tensor) -> None:
        """Makes a call read the wanted elements instead of a constant node, if they differ."""
        present = self._value(node)
        if present is None or present.shape != wanted.shape:
            return
        wanted = wanted.to(present.dtype)
        if torch.equal(present.detach(), wanted):
            return
        if node.op == "get_attr" and self._readers[str(node.target)] == 1:
            _set_attribute(self._model, str(node.target), wanted)
            self._values[node] = wanted
            return
        made = self._replaced[node, user] = self._buffer(node, wanted)
        user.replace_input_with(node, made)
        annotation = user.meta.get(KEY)
        if annotation is not None and node in annotation.input_qspec_map:
            annotation.input_qspec_map[made] = annotation.input_qspec_map.pop(node)

    def read_by(self, node: Node, user: Node) -> Node:
        """Returns the node that a call reads now instead of a constant node."""
        return self._replaced.get((node, user), node)

    def _buffer(self, node: Node, wanted: torch.Tensor) -> Node:
        """Returns a buffer with the wanted elements, inserted after `node`; equal buffers are shared."""
        made = self._made.setdefault(node, [])
        for each in made:
            if torch.equal(attribute_at(self._model, str(each.target)), wanted):
                return each
        name = f"_tosaic_weight_{sum(map(len, self._made.values()))}"
        self._model.register_buffer(name, wanted)
        with self._model.graph.inserting_after(node):
            found = self._model.graph.get_attr(name)
        found.meta = dict(node.meta)
        made.append(found)
        return found

    def _value(self, node: Node) -> torch.Tensor | None:
        """Returns the value of a node that depends on no input, else None."""
        if node not in self._values:
            self._values[node] = None
            if node.op == "get_attr":
                found = attribute_at(self._model, str(node.target))
            elif node.op == "call_function" and node.all_input_nodes:
                values = {each: self._value(each) for each in node.all_input_nodes}
                if any(value is None for value in values.values()):
                    return None
                call: Any = node.target
                args: Any = map_arg(node.args, values.__getitem__)
                kwargs: Any = map_arg(node.kwargs, values.__getitem__)
                found = call(*args, **kwargs)
            else:
                return None
            self._values[node] = found
        return self._values[node]


def _bounded(tensor: torch.Tensor, qparams: QParams | None) -> torch.Tensor:
    """Clamps a bias to 256 less than the bounds of int32, for which torch would write the least integer.

    torch clamps in float32, which does not have 2^31 - 1. The result is off by less than 2^-22 of the range.
    """
    if qparams is None or qparams.dtype != "i32" or tensor.dim() != 1:
        return tensor
    most = torch.tensor(qparams.scales, dtype=torch.float64) * (2.0**31 - 256)
    return torch.where(tensor.abs() > most, tensor.sign() * most, tensor).to(tensor.dtype)


def _tensor_of(array: Any) -> torch.Tensor:
    found = np.asarray(array)
    if found.dtype.name == "bfloat16":  # torch reads no bfloat16 of numpy; float32 has all its numbers
        return torch.tensor(found.astype(np.float32)).to(torch.bfloat16)
    return torch.tensor(found)


def _bias_argument(node: Node) -> int | None:
    """Returns the position of the bias of a convolution or linear call."""
    schema = getattr(node.target, "_schema", None)
    names = [argument.name for argument in schema.arguments] if schema is not None else []
    return 2 if names[:3] == ["input", "weight", "bias"] and names[3:4] != ["running_mean"] else None


def _operands(planned: PlannedProgram, call: str) -> Iterator[tuple[int, int, Any]]:
    for node_index, node in enumerate(planned.nodes[planned.call(call)]):
        for operand_index, value in enumerate(planned.graph.nodes[node].operands):
            if value is not None:
                yield node_index, operand_index, value


def _reads(planned: PlannedProgram, call: str, name: str) -> Iterator[Place]:
    for node_index, operand_index, value in _operands(planned, call):
        if value.name == name:
            yield call, node_index, operand_index


def _unread(planned: PlannedProgram, dropped: set[str]) -> tuple[set[int], set[str]]:
    """Returns the values and calls that only the new values of dropped states need."""
    if not dropped:
        return set(), set()
    todo = [each.value for each in planned.graph.outputs if each.kind == "user" or each.path not in dropped]
    read: set[int] = set()
    calls: set[int] = set()
    while todo:
        value = todo.pop()
        if value.id in read:
            continue
        read.add(value.id)
        if value.producer is not None:
            calls.add(planned.call_of_node[value.producer.id])
            todo += [each for each in value.producer.operands if each is not None]
    computing = set(planned.call_of_node) - calls
    values = {each.id for each in planned.graph.values} - read
    return values, {planned.plan.graph.names[call] for call in computing}


def _place_of_result(planned: PlannedProgram, value: int) -> Place | None:
    producer = planned.graph.values[value].producer
    if producer is None:
        return None
    name = planned.graph.values[value].name
    result = next(i for i, each in enumerate(producer.results) if each.name == name)
    call = planned.call_of_node[producer.id]
    nodes = planned.nodes[call]
    return planned.plan.graph.names[call], nodes.index(producer.id), result


def _spec(qparams: QParams) -> QuantizationSpec:
    dtype = getattr(torch, TORCH[qparams.dtype])
    if qparams.groups is not None:
        maker = KnownGroupObserver.with_args(group_size=qparams.groups.size, search=False, qparams=qparams)
    else:
        maker = KnownQParamsObserver.with_args(qparams=qparams)
    per_channel = qparams.axis is not None
    return _KnownSpec(
        scale=qparams.scales,
        zero_point=qparams.zero_points,
        dtype=dtype,
        observer_or_fake_quant_ctr=maker,
        quant_min=qparams.qmin,
        quant_max=qparams.qmax,
        qscheme=torch.per_channel_symmetric if per_channel else torch.per_tensor_affine,
        ch_axis=qparams.axis,
    )


def _set_attribute(model: Any, target: str, tensor: torch.Tensor) -> None:
    """Replaces a parameter or buffer. The old tensor, which other modules may share, is not changed."""
    path, _, name = target.rpartition(".")
    owner = attribute_at(model, path) if path else model
    if name in owner._parameters:
        owner._parameters[name] = torch.nn.Parameter(tensor, requires_grad=False)
    else:
        setattr(owner, name, tensor)
