"""A method of a ``.pte`` file as a graph with a signature."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tosaic import _core
from tosaic.base.diagnostics import Diagnostics
from tosaic.base.visible import one_line
from tosaic.ports.ports import Port
from tosaic.ports.signature import InputLeaf, OutputLeaf, Signature, Tree
from tosaic.program.program import Program
from tosaic.pte.containers import tree_of
from tosaic.pte.delegate_calls import DelegateNode
from tosaic.pte.facts import MethodFacts, is_permuted, persists
from tosaic.pte.instructions import InstructionReader
from tosaic.pte.sidecar import SidecarMethod
from tosaic.torch_operators.value import NoValue, Ref

_LOG = logging.getLogger(__name__)


@dataclass
class MethodGraph:
    """The result of reading a method.

    Attributes
    ----------
    graph : Graph
    signature : Signature or None
        None if the file does not say how arguments are nested.
    diagnostics : Diagnostics
    delegate_nodes : list of DelegateNode
    """

    graph: _core.Graph
    signature: Signature | None
    diagnostics: Diagnostics
    delegate_nodes: list[DelegateNode]


def read_method(
    file: _core.PteFile,
    method: _core.PteMethod,
    sources: Mapping[int, Program] | None = None,
    recorded: SidecarMethod | None = None,
) -> MethodGraph:
    """Reads a method as a graph at stage ``exported``.

    Parameters
    ----------
    file : PteFile
    method : PteMethod
    sources : mapping of int to Program, optional
        TOSA programs that run instead of payloads. The key is the index of the delegate.
    recorded : SidecarMethod, optional
        The sidecar's entry of the method: names, paths and the nested signature.

    Raises
    ------
    UnsupportedOp
        Graphs of tosaic cannot express an instruction, a dtype or a payload of the method.
    InvalidGraph
        The instructions are inconsistent.
    """
    shared = MethodFacts(file, method.name, method, Diagnostics(), sources or {})
    builder = _core.GraphBuilder(method.name)
    reader = InstructionReader(shared, builder)
    input_tree = tree_of(method.input_containers)
    inputs = _add_inputs(shared, reader, input_tree, recorded)
    reader.run(0, len(shared.instructions))
    _warn_of_shared_states(shared, [index for index, _ in reader.values.states])
    output_tree = tree_of(method.output_containers)
    outputs = _add_outputs(shared, reader, output_tree, inputs, recorded)
    graph = builder.finish()
    if recorded is None:
        signature = _signature(input_tree, inputs, output_tree, outputs)
    else:
        signature, graph = _recorded_signature(recorded), _with_physical_shapes(graph, recorded)
    return MethodGraph(graph, signature, shared.diagnostics, shared.delegate_nodes)


def _warn_of_shared_states(shared: MethodFacts, states: Iterable[int]) -> None:
    """Warns of states that methods of the file may share: here, each program has its own states.

    ExecuTorch plans shared states into a memory without other tensors. In the memory of activations, tensors
    of two methods overlap by chance.
    """
    values = shared.values
    placed = [(index, values[index]) for index in states if _is_placed(values[index])]
    own = _Taken(value for _, value in placed)
    used = filter(_is_placed, map(values.__getitem__, shared.used))
    mixed = {_bytes_of(value)[0] for value in used if not own.overlaps(value)}
    alone = [(index, value) for index, value in placed if _bytes_of(value)[0] not in mixed]
    for other in shared.file.methods if alone else ():
        if other.name == shared.name:
            continue
        taken = _Taken(filter(_is_placed, other.values))
        names = [_state_name(value, index) for index, value in alone if taken.overlaps(value)]
        if names:
            what = (
                f"method '{shared.name}' has states where method '{other.name}' has tensors "
                f"({', '.join(map(repr, names))}): in ExecuTorch's runtime they may be one state, and here "
                "each method has its own"
            )
            shared.diagnostics.note("shared-state", what, names[0])
            _LOG.warning("%s", one_line(what))


def _is_placed(value: object) -> bool:
    return isinstance(value, _core.PteTensor) and value.allocation is not None and value.byte_size > 0


class _Taken:
    """The byte ranges of tensors in the memories of a method."""

    def __init__(self, values: Iterable[_core.PteTensor]) -> None:
        self._begins: dict[int, list[int]] = {}  # by memory: first bytes, sorted
        self._ends: dict[int, list[int]] = {}  # by memory: the greatest end of the tensors up to each
        for memory, begin, end in sorted(map(_bytes_of, values)):
            ends = self._ends.setdefault(memory, [])
            self._begins.setdefault(memory, []).append(begin)
            ends.append(max([end, *ends[-1:]]))

    def overlaps(self, value: _core.PteTensor) -> bool:
        memory, begin, end = _bytes_of(value)
        before = bisect_left(self._begins.get(memory, ()), end)
        return before > 0 and self._ends[memory][before - 1] > begin


def _bytes_of(value: _core.PteTensor) -> tuple[int, int, int]:
    """Returns the memory of a tensor, and its first byte and its end there."""
    assert value.allocation is not None
    begin = value.allocation.offset
    return value.allocation.memory, begin, begin + value.byte_size


def _state_name(value: _core.PteTensor, index: int) -> str:
    name = value.extra.name if value.extra is not None else ""
    return name or f"state_{index}"


def _add_inputs(
    shared: MethodFacts, reader: InstructionReader, tree: Tree | None, recorded: SidecarMethod | None
) -> list[InputLeaf]:
    indices = shared.inputs
    paths = _input_paths(tree, len(indices))
    leaves = []
    for path, index in zip(paths, indices, strict=True):
        value = shared.values[index]
        if not isinstance(value, _core.PteTensor):
            leaves.append(InputLeaf(path, None, value))
            continue
        port = None if recorded is None else recorded.inputs[reader.values.input_count]
        named = path
        if port is not None:
            path, named = port.path, port.name
        if value.dynamism:
            shared.diagnostics.note(
                "dynamic-shape", f"input '{path}' may be smaller; it is read with its greatest extents", path
            )
        name = "".join(c if c.isalnum() else "_" for c in named).strip("_")
        ref = _input(shared, reader, index, name, path, port)
        leaves.append(InputLeaf(path, reader.values.input_count))
        reader.values.input_count += 1
        reader.values.env[index] = ref
        reader.values.memory.write(index, ref, value)
    return leaves


def _input(
    shared: MethodFacts, reader: InstructionReader, index: int, name: str, path: str, port: Port | None
) -> Ref:
    """Adds an input, with logical axes; returns the tensor that the instructions read."""
    code, shape = reader.values.type_of(index)
    if port is None or not port.physical:
        order = _order(shared, index)
        return Ref(reader.writer.builder.add_input(name, code, shape, path, order), code, shape)
    logical, order = replace(port, shape=shape).logical_shape, port.dim_order
    given = Ref(reader.writer.builder.add_input(name, code, logical, path, order), code, logical)
    reader.writer.begin(-1, ("input", ""))
    return reader.values.permuted(given, order)


def _order(shared: MethodFacts, index: int) -> tuple[int, ...] | None:
    """Returns the dim order of a tensor; None for row-major."""
    value = shared.values[index]
    return tuple(value.dim_order) if is_permuted(value) else None


def _add_output(
    reader: InstructionReader,
    ref: Ref,
    path: str,
    order: tuple[int, ...] | None,
    port: Port | None,
    source: int | None = None,
) -> None:
    """Adds an output, with logical axes. `source` is the position of the input whose new value it is."""
    if port is not None and port.physical:
        order = port.dim_order
        ref = reader.values.permuted(ref, [order.index(axis) for axis in range(len(order))])
    reader.writer.builder.add_output(ref.id, path, source, order)


def _input_paths(tree: Tree | None, count: int) -> list[str]:
    """Returns a path for each input: ``x0`` is the first argument, ``x0['a']`` is inside it."""
    if tree is None or tree.leaf_count != count or not _is_call(tree):
        return [f"x{i}" for i in range(count)]
    positional = [path for i, each in enumerate(tree.children[0].children) for path in each.paths(f"x{i}")]
    by_name = tree.children[1]
    named = [
        path
        for key, each in zip(by_name.keys, by_name.children, strict=True)
        for path in each.paths(str(key))
    ]
    return positional + named


def _is_call(tree: Tree) -> bool:
    """True for the structure of a call: a tuple of arguments, and a dict of named arguments."""
    return tree.kind == "tuple" and [each.kind for each in tree.children] == ["tuple", "dict"]


def _add_outputs(
    shared: MethodFacts,
    reader: InstructionReader,
    tree: Tree | None,
    inputs: Sequence[InputLeaf],
    recorded: SidecarMethod | None,
) -> list[OutputLeaf]:
    indices = shared.method.outputs
    known = tree is not None and tree.leaf_count == len(indices)
    default = ["out"] if len(indices) == 1 else [f"out[{i}]" for i in range(len(indices))]
    paths = tree.paths("out") if known and tree is not None else default
    reader.writer.begin(-1, ("output", ""))
    leaves = []
    count = 0
    for path, index in zip(paths, indices, strict=True):
        value = shared.values[index]
        if not isinstance(value, _core.PteTensor):
            held = reader.values.value(index)
            if isinstance(held, NoValue):
                raise shared.error(f"output '{path}' is a number that is read from data", unsupported=True)
            leaves.append(OutputLeaf(path, None, held))
            continue
        port = None if recorded is None else recorded.outputs[count]
        path = path if port is None else port.path
        _add_output(reader, reader.values.tensor(index), path, _order(shared, index), port)
        leaves.append(OutputLeaf(path, count))
        count += 1
    users = sum(leaf.index is not None for leaf in inputs)
    for index, ref, position in _mutated(shared, reader, inputs):
        order = _order(shared, index) if position < users else None
        port = recorded.inputs[position] if recorded is not None and position < users else None
        _add_output(reader, ref, f"new_{index}", order, port, position)
    return leaves


def _with_physical_shapes(graph: _core.Graph, recorded: SidecarMethod) -> _core.Graph:
    """Declares which inputs and outputs are arrays of the physical shape."""
    inputs = [(port.dim_order, True) if port.physical else None for port in recorded.inputs]
    outputs = [(port.dim_order, True) if port.physical else None for port in recorded.outputs]
    new_values = [port.mutated_input for port in graph.outputs[len(outputs) :]]
    outputs += [inputs[i] if i is not None and i < len(inputs) else None for i in new_values]
    return _core.with_boundary_orders(graph, input_orders=inputs, output_orders=outputs)


def _mutated(
    shared: MethodFacts, reader: InstructionReader, inputs: Sequence[InputLeaf]
) -> list[tuple[int, Ref, int]]:
    """Returns the states and inputs that have a new value at the end: index, value, position."""
    users = [
        (index, leaf.index)
        for index, leaf in zip(shared.inputs, inputs, strict=True)
        if leaf.index is not None
    ]
    found = [
        (index, reader.values.env[index], position)
        for index, position in users
        if index in reader.values.written
    ]
    for index, position in reader.values.states:
        tensor, is_written = shared.values[index], index in reader.values.written
        held = reader.values.memory.at(tensor)
        if held is None and not is_written and not persists(tensor):
            continue  # never written and without initial value: uninitialized memory
        if held is None or is_written or held.index != index:
            found.append((index, reader.values.tensor(index), position))
    return found


def _signature(
    input_tree: Tree | None,
    inputs: Sequence[InputLeaf],
    output_tree: Tree | None,
    outputs: Sequence[OutputLeaf],
) -> Signature | None:
    leaf = Tree("leaf")
    if input_tree is None or input_tree.leaf_count != len(inputs) or not _is_call(input_tree):
        input_tree = Tree("tuple", (Tree("tuple", (leaf,) * len(inputs)), Tree("dict")))
    if output_tree is None or output_tree.leaf_count != len(outputs):
        output_tree = leaf if len(outputs) == 1 else Tree("tuple", (leaf,) * len(outputs))
    names = tuple(f"x{i}" for i in range(len(input_tree.children[0].children)))
    return Signature(input_tree, output_tree, tuple(inputs), tuple(outputs), names)


def _recorded_signature(recorded: SidecarMethod) -> Signature:
    """Returns the signature of a sidecar. Its leaves have the paths of the inputs and outputs."""
    signature, inputs, outputs = recorded.signature, recorded.inputs, recorded.outputs
    return replace(
        signature,
        input_leaves=tuple(
            leaf if leaf.index is None else replace(leaf, path=inputs[leaf.index].path)
            for leaf in signature.input_leaves
        ),
        output_leaves=tuple(
            leaf if leaf.index is None else replace(leaf, path=outputs[leaf.index].path)
            for leaf in signature.output_leaves
        ),
    )
