"""Writes known qparams into an exported program of torch: torchao inserts them, and observes nothing.

our plan     Edge("relu", "conv2d_1"): the operand 0 of the only node of call conv2d_1      QParams
torch graph  conv2d_1 = aten.conv2d.default(dropout, w, b)      Edge("dropout", "conv2d_1")  the same QParams

Both graphs are imported from the same calls, so that a place (call, node, operand) means the same tensor in
both, whatever torch calls the tensor: it may pass through calls that do nothing, and constants have other
names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.export.graph_signature import ConstantArgument, InputKind
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree
from torchao.quantization.pt2e.observer import ObserverBase
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
from torchao.quantization.pt2e.quantizer import QuantizationAnnotation, QuantizationSpec
from torchao.quantization.pt2e.quantizer import Quantizer as TorchQuantizer

from tosaic import _core
from tosaic.annotation.specs import Edge, Output, Slot
from tosaic.calibration.plan_program import PlannedProgram, prepared_graph
from tosaic.dtypes import TORCH
from tosaic.fx.annotations.functional_parts import with_functional_parts
from tosaic.fx.annotations.module_graph import import_module
from tosaic.fx.annotations.observers import TosaicPerChannelGroupObserver
from tosaic.fx.annotations.quantizer import pass_by_position
from tosaic.fx.annotations.read import KEY
from tosaic.fx.annotations.state_writes import state_writes, with_rounded_writes
from tosaic.quantization import QParams

if TYPE_CHECKING:
    from tosaic.calibration.draft import Draft

__all__ = ["to_exported"]

_Place = tuple[str, int, int]  # call, its node, operand (or result)


def to_exported(exported: Any, draft: Draft) -> torch.export.ExportedProgram:
    """See `tosaic.QuantizedProgram.to_exported`."""
    quantizer = _KnownQParams(draft)
    module = exported.module()
    _remove_folded_norms(module, draft.planned)
    with torch.no_grad():
        prepared = prepare_pt2e(module, quantizer)
        states = _states_as_inputs(prepared, draft.planned.graph)
        converted = convert_pt2e(prepared)
        _inputs_as_states(converted, states)
    args, kwargs = exported.example_inputs or _zeros(exported)
    return torch.export.export(converted, args, kwargs)


def _zeros(exported: Any) -> Any:
    """Returns inputs of the traced shapes, for a program that has no example inputs."""
    values = {node.name: node.meta.get("val") for node in exported.graph.nodes if node.op == "placeholder"}
    leaves = []
    for spec in exported.graph_signature.input_specs:
        if spec.kind is InputKind.USER_INPUT:
            value = spec.arg.value if isinstance(spec.arg, ConstantArgument) else values[spec.arg.name]
            leaves.append(_zero(value) if isinstance(value, torch.Tensor) else value)
    return pytree.tree_unflatten(leaves, exported.call_spec.in_spec)


def _zero(value: torch.Tensor) -> torch.Tensor:
    def known(sizes: Any) -> list[int]:
        return [size if isinstance(size, int) else int(size.node.hint) for size in sizes]

    return torch.empty_strided(known(value.shape), known(value.stride()), dtype=value.dtype).zero_()


def _remove_folded_norms(module: GraphModule, planned: PlannedProgram) -> None:
    """Removes the batch norms that the plan has folded into convolutions, whose weights are written later.

    torchao folds them, too, but fails at transposed convolutions with groups.
    """
    calls = set(planned.plan.graph.names)  # without aliases
    unused = _unused_calls(module)  # the plan does not have them
    for node in list(module.graph.nodes):
        if str(node.target) == "aten.batch_norm.default" and node.name not in calls and node not in unused:
            if node.args[0].name not in calls:
                raise _another((node.args[0].name, 0, 0))
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
    """A buffer that the program writes, and the input that stands for it.

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
    """Makes inputs of the buffers that the program writes, so that torchao does not take them for constants.

    torchao computes once what depends on constants only. It would compute the new values of such buffers, and
    write them into the buffers of the caller's program, which the module shares.
    """
    states = []
    for at, path in enumerate(sorted({port.path for port in graph.inputs if port.kind == "state"})):
        readers = [node for node in model.graph.nodes if node.op == "get_attr" and node.target == path]
        if not readers:
            continue
        owner = _attribute(model, path.rpartition(".")[0]) if "." in path else model
        persistent = path.rpartition(".")[2] not in owner._non_persistent_buffers_set
        state = _State(path, _attribute(model, path).clone(), f"_tosaic_state_{at}", persistent)
        with model.graph.inserting_before(next(iter(model.graph.nodes))):
            made = model.graph.placeholder(state.input)
        made.meta = dict(readers[0].meta)
        for node in readers:
            node.replace_all_uses_with(made)
            model.graph.erase_node(node)
        states.append(state)
    return states


def _inputs_as_states(model: GraphModule, states: Sequence[_State]) -> None:
    """Makes buffers again of the inputs that stand for them."""
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
        super().__init__(**{**options, "ch_axis": qparams.axis})  # torchao passes no axis here
        self._qparams = qparams

    def calculate_qparams(self, **_: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns float32 scales and int32 zero points, in the order of the blocks."""
        scales, zero_points = _tensors(self._qparams)
        if self._qparams.axis == 1:  # blocks are in the order of the axes, and qparams have the groups last
            channels = self.block_counts[1]
            scales, zero_points = (each.reshape(channels, -1).T.reshape(-1) for each in (scales, zero_points))
        return scales, zero_points.to(torch.int32)

    def convert(self, model: GraphModule, observer_node: Node) -> None:
        """Finds the blocks by the shape of the weight, because nothing has run that this could observe."""
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


class _KnownQParams(TorchQuantizer):  # type: ignore[misc]
    """Annotates a graph of torch with the qparams that a plan of the same program got."""

    def __init__(self, draft: Draft) -> None:
        super().__init__()
        self._planned = draft.planned
        self._qparams = draft.qparams
        self._elements = draft.elements

    def transform_for_annotation(self, model: GraphModule) -> GraphModule:
        """Passes tensors by position that calls take by keyword, and gives biases to calls that lack one.

        Writes to parts of tensors and to inputs become functional. Calls that update a state in place become
        calls whose result can be rounded before it is stored.
        """
        with_functional_parts(model)
        with_rounded_writes(model)
        pass_by_position(model)
        self._add_biases(model)
        return model

    def _add_biases(self, model: GraphModule) -> None:
        """Adds zeros where the plan's call has a bias that torch's call lacks."""
        planned = self._planned
        for node in list(model.graph.nodes):
            at = _bias_argument(node)
            if at is None or node.name not in planned.plan.graph:
                continue
            bias = next(
                (v for _, k, v in _operands(planned, node.name) if k == 2 and v.kind == "constant"), None
            )
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
        """Writes the annotations, and the weights that the quantization changed."""
        places = _Places(model)
        annotations: dict[Node, QuantizationAnnotation] = {}
        for slot, qparams in self._qparams.items():
            found = self._in_torch(places, slot)
            if found is None:
                continue
            producer, user = found
            node = producer if user is None else user
            annotation = annotations.setdefault(node, QuantizationAnnotation(_annotated=True))
            if user is None:
                annotation.output_qspec = _spec(qparams)
            else:
                annotation.input_qspec_map[producer] = _spec(qparams)
        for node, annotation in annotations.items():
            node.meta[KEY] = annotation
        self._write_weights(model, places)
        return model

    def validate(self, model: GraphModule) -> None:
        """Accepts every graph."""

    def _in_torch(self, places: _Places, slot: Slot) -> tuple[Node, Node | None] | None:
        """Returns the node of torch that computes the tensor of a slot, and the node that reads it."""
        planned = self._planned
        value = planned.value_of(slot)
        if value < 0:
            return None
        if isinstance(slot, Output):
            place = _place_of_result(planned, value)
            return (places.producer(place), None) if place is not None else None
        if planned.plan.graph[slot.user].kind == "output":
            return places.read_by_output(planned, value)
        name = planned.graph.values[value].name
        place = next(_reads(planned, slot.user, name), None)
        return None if place is None else places.read(place)

    def _write_weights(self, model: GraphModule, places: _Places) -> None:
        planned = self._planned
        weights = _Weights(model)
        for name in planned.plan.graph.names:
            for node_index, operand_index, value in _operands(planned, name):
                if value.kind != "constant" or value.constant is None:
                    continue
                found = places.read((name, node_index, operand_index), required=False)
                if found is None:
                    continue
                slot = Edge(planned.plan.graph.names[planned.values.index(value.id)], name)
                constant = self._elements.get(slot, value.constant)
                weights.write(*found, _bounded(_tensor_of(constant.array), self._qparams.get(slot)))
        model.recompile()


class _Weights:
    """Gives calls of torch the weights that accuracy tools changed for them.

    A parameter with one reader gets the new elements. In place of a parameter with
    several readers, or of a weight that is computed, the reader gets a buffer: the others keep the old one.
    """

    def __init__(self, model: GraphModule) -> None:
        self._model = model
        self._values: dict[Node, torch.Tensor | None] = {}
        self._buffers: dict[Node, list[Node]] = {}
        self._readers: dict[str, int] = {}
        for node in model.graph.nodes:
            if node.op == "get_attr":
                target = str(node.target)
                self._readers[target] = self._readers.get(target, 0) + len(node.users)

    def write(self, node: Node, user: Node, wanted: torch.Tensor) -> None:
        """Makes a call read the wanted elements in place of a constant node, if they differ."""
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
        made = self._buffer(node, wanted)
        user.replace_input_with(node, made)
        annotation = user.meta.get(KEY)
        if annotation is not None and node in annotation.input_qspec_map:
            annotation.input_qspec_map[made] = annotation.input_qspec_map.pop(node)

    def _buffer(self, node: Node, wanted: torch.Tensor) -> Node:
        """Returns a node right after another one that has the wanted elements in place of its own."""
        made = self._buffers.setdefault(node, [])
        for each in made:
            if torch.equal(_attribute(self._model, str(each.target)), wanted):
                return each
        name = f"_tosaic_weight_{sum(map(len, self._buffers.values()))}"
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
                found = _attribute(self._model, str(node.target))
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
    """Returns a bias without elements beyond its integers of 32 bits, which torch makes the least integer.

    torch clamps floats, and 2^31 - 1 is no float32. The result is off by less than 2^-22 of the range.
    """
    if qparams is None or qparams.dtype != "i32" or tensor.dim() != 1:
        return tensor
    most = torch.tensor(qparams.scales, dtype=torch.float64) * (2.0**31 - 256)
    return torch.where(tensor.abs() > most, tensor.sign() * most, tensor).to(tensor.dtype)


def _tensor_of(array: Any) -> torch.Tensor:
    found = np.asarray(array)
    if found.dtype.name == "bfloat16":  # numpy's own types do not have it, and each fits in a float32
        return torch.tensor(found.astype(np.float32)).to(torch.bfloat16)
    return torch.tensor(found)


class _Places:
    """Finds the nodes of torch for places of calls."""

    def __init__(self, model: GraphModule) -> None:
        self._nodes = {node.name: node for node in model.graph.nodes}
        graph, values = import_module(model)
        self._by_value: dict[str, list[Node]] = {}
        for node, value in zip(model.graph.nodes, values, strict=True):
            if value >= 0:
                self._by_value.setdefault(graph.values[value].name, []).append(node)
        self._graph = prepared_graph(graph)
        core, _, _, nodes = _core.graph_calls(self._graph, {})
        self._calls = dict(zip(core.names, nodes, strict=True))
        self._stores = list(state_writes(model))
        self._output = next(node for node in model.graph.nodes if node.op == "output")

    def _value(self, place: _Place, results: bool) -> str | None:
        call, node_index, index = place
        nodes = self._calls.get(call, ())
        if node_index >= len(nodes):
            return None
        node = self._graph.nodes[nodes[node_index]]
        found = node.results if results else node.operands
        value = found[index] if index < len(found) else None
        return None if value is None else value.name

    def read(self, place: _Place, *, required: bool = True) -> tuple[Node, Node] | None:
        """Returns the node that a call of torch reads at a place, and the call."""
        user, name = self._nodes.get(place[0]), self._value(place, results=False)
        if user is not None and name is not None:
            candidates = self._by_value.get(name, ())
            for node in candidates:
                if node in user.all_input_nodes:
                    return node, user
        if required:
            schema = getattr(user.target, "_schema", None) if user is not None else None
            raise _in_place(place) if schema is not None and schema.is_mutable else _another(place)
        return None

    def producer(self, place: _Place) -> Node:
        """Returns the node that computes the result at a place."""
        name = self._value(place, results=True)
        candidates = self._by_value.get(name or "", ())
        if not candidates:
            raise _another(place)
        return candidates[0]

    def read_by_output(self, planned: PlannedProgram, value: int) -> tuple[Node, Node]:
        """Returns the node that the graph returns for a value, and the output node.

        For the new value of a state: what is stored, and the call that stores it.
        """
        paths = {
            each.path for each in planned.graph.outputs if each.kind != "user" and each.value.id == value
        }
        for node, state, stored in self._stores:
            if state.target in paths:
                return stored, node
        place = _place_of_result(planned, value)
        name = planned.graph.values[value].name if place is None else self._value(place, results=True)
        for node in self._by_value.get(name or "", ()):
            if node in self._output.all_input_nodes:
                return node, self._output
        raise _another(place or ("output", 0, 0))


def _bias_argument(node: Node) -> int | None:
    """Returns the position of the bias of a convolution or linear call."""
    schema = getattr(node.target, "_schema", None)
    names = [argument.name for argument in schema.arguments] if schema is not None else []
    return 2 if names[:3] == ["input", "weight", "bias"] and names[3:4] != ["running_mean"] else None


def _another(place: _Place) -> Exception:
    return _core.make_error(
        _core.InvalidGraph,
        where="to_exported",
        what=f"the exported program has no such call '{place[0]}'",
        expected="the program that was quantized",
        got="another program",
    )


def _in_place(place: _Place) -> Exception:
    return _core.make_error(
        _core.InvalidGraph,
        where="to_exported",
        what=f"torch cannot write rounded numbers back into the tensor that '{place[0]}' changes in place",
        expected="a program that returns what it computes",
        got="a program that changes an input or a state",
    )


def _operands(planned: PlannedProgram, call: str) -> Iterator[tuple[int, int, Any]]:
    for node_index, node in enumerate(planned.nodes[planned.call(call)]):
        for operand_index, value in enumerate(planned.graph.nodes[node].operands):
            if value is not None:
                yield node_index, operand_index, value


def _reads(planned: PlannedProgram, call: str, name: str) -> Iterator[_Place]:
    for node_index, operand_index, value in _operands(planned, call):
        if value.name == name:
            yield call, node_index, operand_index


def _place_of_result(planned: PlannedProgram, value: int) -> _Place | None:
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
    return QuantizationSpec(
        dtype=dtype,
        observer_or_fake_quant_ctr=maker,
        quant_min=qparams.qmin,
        quant_max=qparams.qmax,
        qscheme=torch.per_channel_symmetric if per_channel else torch.per_tensor_affine,
        ch_axis=qparams.axis,
    )


def _attribute(model: Any, target: str) -> Any:
    found = model
    for name in target.split("."):
        found = getattr(found, name, None)
    return found


def _set_attribute(model: Any, target: str, tensor: torch.Tensor) -> None:
    """Replaces a parameter or buffer. The old tensor, which other modules may share, is not changed."""
    path, _, name = target.rpartition(".")
    owner = _attribute(model, path) if path else model
    if name in owner._parameters:
        owner._parameters[name] = torch.nn.Parameter(tensor, requires_grad=False)
    else:
        setattr(owner, name, tensor)
