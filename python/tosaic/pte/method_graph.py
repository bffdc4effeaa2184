"""A method of a ``.pte`` file as a graph with a signature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tosaic import _core
from tosaic.diagnostics import Diagnostics
from tosaic.program import Program
from tosaic.pte.containers import tree_of
from tosaic.pte.delegate_calls import DelegateNode
from tosaic.pte.facts import MethodFacts, is_permuted
from tosaic.pte.instructions import InstructionReader
from tosaic.pte_sidecar import SidecarMethod
from tosaic.signature import InputLeaf, OutputLeaf, Signature, Tree
from tosaic.torch_operators.value import NoValue, Ref

__all__ = ["MethodGraph", "read_method"]


@dataclass
class MethodGraph:
    """What reading a method made.

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
        TOSA programs that run in the place of payloads. The key is the index of the delegate.
    recorded : SidecarMethod, optional
        What the sidecar of the file says of the method: names, paths and the nested signature.

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
    output_tree = tree_of(method.output_containers)
    outputs = _add_outputs(shared, reader, output_tree, inputs, recorded)
    signature = (
        _signature(input_tree, inputs, output_tree, outputs)
        if recorded is None
        else _recorded_signature(recorded)
    )
    return MethodGraph(builder.finish(), signature, shared.diagnostics, shared.delegate_nodes)


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
        named = path
        if recorded is not None:
            port = recorded.inputs[reader.input_count]
            path, named = port.path, port.name
        if value.dynamism:
            shared.diagnostics.note(
                "dynamic-shape", f"input '{path}' may be smaller; it is read with its greatest extents", path
            )
        code, shape = reader.type_of(index)
        name = "".join(c if c.isalnum() else "_" for c in named).strip("_")
        order = tuple(value.dim_order) if is_permuted(value) else None
        ref = Ref(reader.builder.add_input(name, code, shape, path, order), code, shape)
        leaves.append(InputLeaf(path, reader.input_count))
        reader.input_count += 1
        reader.env[index] = ref
        reader.memory.write(index, ref, value)
    return leaves


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
    """True for the structure of a call: a tuple of arguments, and a dict of those with names."""
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
    reader.begin(-1, ("output", ""))
    leaves = []
    count = 0
    for path, index in zip(paths, indices, strict=True):
        value = shared.values[index]
        if not isinstance(value, _core.PteTensor):
            held = reader.value(index)
            if isinstance(held, NoValue):
                raise shared.error(f"output '{path}' is a number that is read from data", unsupported=True)
            leaves.append(OutputLeaf(path, None, held))
            continue
        if recorded is not None:
            path = recorded.outputs[count].path
        order = tuple(value.dim_order) if is_permuted(value) else None
        reader.builder.add_output(reader.tensor(index).id, path, None, order)
        leaves.append(OutputLeaf(path, count))
        count += 1
    for index, ref, position in _mutated(shared, reader, inputs):
        value = shared.values[index]
        order = (
            tuple(value.dim_order) if is_permuted(value) and (index, position) not in reader.states else None
        )
        reader.builder.add_output(ref.id, f"new_{index}", position, order)
    return leaves


def _mutated(
    shared: MethodFacts, reader: InstructionReader, inputs: Sequence[InputLeaf]
) -> list[tuple[int, Ref, int]]:
    """Returns the states and inputs that have a new value at the end: index, value, position."""
    users = [
        (index, leaf.index)
        for index, leaf in zip(shared.inputs, inputs, strict=True)
        if leaf.index is not None
    ]
    found = [(index, reader.env[index], position) for index, position in users if index in reader.written]
    for index, position in reader.states:
        if index in reader.written:
            found.append((index, reader.tensor(index), position))
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
