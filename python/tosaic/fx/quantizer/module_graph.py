"""Imports the graph module that a quantizer annotates: its graph in C++, and the value of each node."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from tosaic import _core
from tosaic.base.diagnostics import Diagnostics
from tosaic.base.process import collection_paused
from tosaic.fx.quantizer.state_writes import states_of, value_of
from tosaic.fx.reading.importer import Importer
from tosaic.fx.reading.shapes import Sizes
from tosaic.fx.reading.torch_writer import Shared, TorchWriter
from tosaic.fx.reading.weights import Weights, dtype_code
from tosaic.fx.training_calls import Products, arguments_in, is_in_training, with_arguments
from tosaic.torch_operators.operator_row import OperatorRow
from tosaic.torch_operators.value import Complex, Ref

# Rows by call target, which do not depend on the module.
_ROWS: dict[Any, OperatorRow | None] = {}


@dataclass(frozen=True)
class ImportedModule:
    """The graph of a module at stage ``exported``.

    Attributes
    ----------
    graph : Graph
    values : list of int
        By node of the module: its value, or -1.
    parts : dict of Node to (int, int)
        The values of the real and the imaginary part of each complex node.
    """

    graph: _core.Graph
    values: list[int]
    parts: dict[Node, tuple[int, int]]


def import_module(model: GraphModule, *, stores: bool = True) -> tuple[_core.Graph, list[int]]:
    """Returns the graph and the values that `read_module` returns."""
    found = read_module(model, stores=stores)
    return found.graph, found.values


def read_module(
    model: GraphModule, *, stores: bool = True, sizes: Mapping[tuple[int, int], int] | None = None
) -> ImportedModule:
    """Imports the graph of a module.

    Calls in training mode are read as in evaluation, like those of the quantized network. Values that
    ``copy_`` stores in a float state are outputs, too. Without `stores` they are not, and a call of ``copy_``
    whose result is not read is left out, since the planner has nothing to round in it. `sizes` has the values
    of symbolic sizes by input and axis; by default, the traced values. Calls of modules (guards) have no
    value.

    Raises
    ------
    UnsupportedOp
        As `tosaic.from_exported`.
    """
    nodes, unread = _in_evaluation(model.graph)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    with collection_paused():
        importer, shared = module_reader(model, placeholders, sizes)
        for node in placeholders:
            value = node.meta.get("val")
            if not isinstance(value, torch.Tensor):
                importer.env[node] = shared.sizes.value(value)
                continue
            code = dtype_code(value.dtype, f"input '{node.name}'")
            shape = shared.sizes.shape(value.shape)
            importer.env[node] = Ref(
                importer.writer.builder.add_input(node.name, code, shape, node.name), code, shape
            )
        # The value of a state depends on the runs before, so the state is not a constant.
        states = {node.name for node in states_of(model)}
        calls = [node for node in nodes if node.op != "call_module" and node not in unread]
        calls = [
            node
            for node in calls
            if not _stores(node, states) or ((stores or node.users) and "val" in node.meta)
        ]
        attributes = {node for node in nodes if node.op == "get_attr"}
        importer.prepare(calls, attributes)
        written = importer.mutated
        for node in nodes:
            if node.name in states or (node in attributes and node in written and _counts(node)):
                importer.env[node] = _state(importer, node, shared)
        importer.read()
        for i, node in enumerate(nodes[-1].all_input_nodes):
            if type(result := importer.env.get(node)) is Ref:
                importer.writer.builder.add_output(result.id, f"out[{i}]")
        stored = [node for node in calls if stores and _stores(node, states)]
        for i, node in enumerate(stored):
            if type(result := importer.env.get(node)) is Ref:
                importer.writer.builder.add_output(result.id, f"stored[{i}]")
    env = importer.env
    values = [found.id if type(found := env.get(node)) is Ref else -1 for node in nodes]
    parts = {
        own: (found.real.id, found.imag.id)
        for own, node in zip(model.graph.nodes, nodes, strict=True)
        if type(found := env.get(node)) is Complex
    }
    return ImportedModule(importer.writer.builder.finish(), values, parts)


def module_reader(
    model: GraphModule, placeholders: Sequence[Node], sizes: Mapping[tuple[int, int], int] | None = None
) -> tuple[Importer, Shared]:
    """Returns a reader of the nodes of a module, by default for the sizes that torch traced it with."""
    diagnostics = Diagnostics(logged=False)
    shared = Shared(Weights(diagnostics), Sizes(), diagnostics, _ROWS)
    shared.sizes.bind(
        [(node.name, node.name, node.meta.get("val")) for node in placeholders],
        {**_traced_sizes(placeholders), **(sizes or {})},
        {},
    )
    return Importer(TorchWriter(shared, _core.GraphBuilder("forward")), model), shared


def _state(importer: Importer, node: Node, shared: Shared) -> Ref:
    value = value_of(node)
    assert value is not None
    code, shape = dtype_code(value.dtype, f"state '{node.name}'"), shared.sizes.shape(value.shape)
    return Ref(importer.writer.builder.add_input(node.name, code, shape, node.name), code, shape)


def _counts(node: Node) -> bool:
    """True for a buffer of integers or bools. Parts of other buffers are written as they are."""
    value = value_of(node)
    return value is not None and not value.is_floating_point() and not value.is_complex()


def _stores(node: Node, states: set[str]) -> bool:
    is_copy = node.op == "call_function" and node.target == torch.ops.aten.copy_.default
    return is_copy and isinstance(node.args[0], Node) and node.args[0].name in states


def _in_evaluation(graph: Graph) -> tuple[list[Node], set[Node]]:
    """Returns the nodes, or copies with equal names of which none is in training mode.

    The set has the calls that only training reads, such as those that draw the noise of a product.
    """
    kept = {node.name: operand.name for node, operand in Products(graph).kept.items()}
    if not kept and not any(is_in_training(node) for node in graph.nodes):
        return list(graph.nodes), set()
    made = Graph()
    made.output(made.graph_copy(graph, {}))
    nodes = {node.name: node for node in made.nodes}
    for node in made.nodes:
        if node.name in kept:
            node.target, node.args, node.kwargs = torch.ops.aten.alias.default, (nodes[kept[node.name]],), {}
        elif is_in_training(node):
            node.args, node.kwargs = with_arguments(node, arguments_in(node, training=False))
    unread: set[Node] = set()
    for before, node in zip(reversed(graph.nodes), reversed(made.nodes), strict=True):
        if before.users and node.op == "call_function" and unread.issuperset(node.users):
            unread.add(node)
    return list(made.nodes), unread


def _traced_sizes(placeholders: Sequence[Any]) -> dict[tuple[int, int], int]:
    sizes = {}
    for at, node in enumerate(placeholders):
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            sizes[at, -1] = int(value.node.hint)
        elif isinstance(value, torch.Tensor):
            for axis, size in enumerate(value.shape):
                if isinstance(size, torch.SymInt):
                    sizes[at, axis] = int(size.node.hint)
    return sizes
