"""Converts a graph of torch to a `CallGraph`: the names, operands and slots that plans and rules work on.

GraphModule                                      CallGraph
%x : placeholder                                 Call("x", "placeholder", dtype="f32", shape=(1, 3, 8, 8))
%conv2d : aten.conv2d.default(%x, %w)            Call("conv2d", "call", "aten.conv2d.default",
                                                      (Operand("args[0]", "x", "input"), ...))
return (conv2d, conv2d)                          outputs out[0] and out[1], both conv2d
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torchao.quantization.pt2e.fake_quantize import FakeQuantizeBase
from torchao.quantization.pt2e.observer import ObserverBase

from tosaic import _core
from tosaic.annotation.call_graph import Call, CallGraph, CallKind, GraphPort, Operand
from tosaic.base.dtypes import OF_TORCH
from tosaic.base.options import invalid
from tosaic.fx.reading.treespec import convert_treespec
from tosaic.torch_operators.call_trees import input_paths
from tosaic.torch_operators.origins import Where, file_name, module_path, source_of, type_name

_KINDS: dict[str, CallKind] = {"placeholder": "placeholder", "get_attr": "get_attr", "output": "output"}


def check_model(model: Any, where: str) -> GraphModule:
    """Returns the model.

    Raises
    ------
    InvalidGraph
        It is not a GraphModule, such as a module that was not exported, or it has observers already.
    """
    if isinstance(model, GraphModule):
        _refuse_prepared(model, where)
        return model
    raise invalid(
        where,
        "not a graph of torch",
        expected="the GraphModule that torch.export.export(module, args).module() returns",
        got=type(model).__name__,
    )


def _refuse_prepared(model: GraphModule, where: str) -> None:
    for node in model.graph.nodes:
        if node.op != "call_module":
            continue
        observer = attribute_at(model, str(node.target))
        if isinstance(observer, ObserverBase | FakeQuantizeBase):
            raise Where.of(
                node.args[0] if node.args and isinstance(node.args[0], Node) else node, where
            ).error(
                _core.InvalidGraph,
                "the graph is prepared already",
                expected="a graph without observers",
                got=f"{type(observer).__name__} {str(node.target)!r}",
                hint="Export the module again",
            )


def call_graph(model: GraphModule) -> CallGraph:
    """Returns the nodes of a graph module as plain data.

    Parameters
    ----------
    model : torch.fx.GraphModule
        As `torch.export.export(...).module()` returns it, or a body of control flow.

    Returns
    -------
    CallGraph
        Inputs and outputs have the paths by which a caller knows them (``batch['m']``, ``out[1]``) if the
        module records the structure of its arguments, else the names of the nodes and ``out[i]``.
    """
    nodes = list(model.graph.nodes)
    calls = [_call(model, node) for node in nodes]
    return CallGraph(calls, inputs=_inputs(model, nodes), outputs=_outputs(model, nodes))


def bodies_of(model: GraphModule) -> dict[str, GraphModule]:
    """Returns the graphs that calls of control flow run (branches of ``cond``, bodies of loops), by path.

    A body inside another body has the path ``while_loop_body_graph_0.true_graph_0``.
    """
    found: dict[str, GraphModule] = {}
    for node in model.graph.nodes:
        if node.op == "get_attr" and str(node.target) not in found:
            body = attribute_at(model, str(node.target))
            if isinstance(body, GraphModule):
                found[str(node.target)] = body
                found.update({f"{node.target}.{path}": inner for path, inner in bodies_of(body).items()})
    return found


# ---- nodes ----


def _call(model: GraphModule, node: Node) -> Call:
    meta = node.meta
    file, line = source_of(meta.get("stack_trace") or "")
    dtype, shape = _type_of(model, node)
    modules = (meta.get("nn_module_stack") or {}).values()
    return Call(
        node.name,
        _KINDS.get(node.op, "call"),
        _target_text(node.target),
        tuple(_operands(node)),
        tuple((module_path(path), type_name(kind)) for path, kind in modules),
        f"{file_name(file)}:{line}" if file else "",
        dtype,
        shape,
        tuple(user.name for user in node.users),
    )


def _target_text(target: Any) -> str:
    if isinstance(target, str) or hasattr(target, "_schema"):
        return str(target)
    return str(getattr(target, "__name__", target))


def _operands(node: Node) -> Iterator[Operand]:
    arguments = getattr(getattr(node.target, "_schema", None), "arguments", ())
    names = [argument.name for argument in arguments if not argument.kwarg_only]
    for i, arg in enumerate(node.args):
        name = names[i] if i < len(names) else ""
        for path, producer in _places(arg, f"args[{i}]"):
            yield Operand(path, producer.name, name)
    for key, arg in node.kwargs.items():
        for path, producer in _places(arg, f"kwargs.{key}"):
            yield Operand(path, producer.name, key)


def _places(arg: Any, path: str) -> Iterator[tuple[str, Node]]:
    """Yields each node inside an argument with its path."""
    if isinstance(arg, Node):
        yield path, arg
    elif isinstance(arg, list | tuple):
        for i, item in enumerate(arg):
            yield from _places(item, f"{path}[{i}]")
    elif isinstance(arg, dict):
        for key, item in arg.items():
            yield from _places(item, f"{path}[{key!r}]")
    elif isinstance(arg, slice):
        for name in ("start", "stop", "step"):
            yield from _places(getattr(arg, name), f"{path}.{name}")


def _type_of(model: GraphModule, node: Node) -> tuple[str, tuple[int, ...] | None]:
    value = node.meta.get("val")
    if value is None and node.op == "get_attr":
        value = attribute_at(model, str(node.target))
    if not isinstance(value, torch.Tensor):
        return "", None
    name = str(value.dtype).removeprefix("torch.")
    extents: tuple[Any, ...] = tuple(value.shape)
    sizes = tuple(size if isinstance(size, int) else -1 for size in extents)
    return OF_TORCH.get(name, name), sizes


def attribute_at(model: torch.nn.Module, target: str) -> Any:
    """Returns the attribute at a path; None if there is none."""
    found: Any = model
    for name in target.split("."):
        found = getattr(found, name, None)
    return found


# ---- the caller's inputs and outputs ----


def _inputs(model: GraphModule, nodes: Sequence[Node]) -> list[GraphPort]:
    names = [node.name for node in nodes if node.op == "placeholder"]
    info = getattr(model.graph._codegen, "pytree_info", None)
    paths = names
    if info is not None and info.in_spec is not None:
        tree = convert_treespec(info.in_spec)
        if tree.leaf_count == len(names) and len(tree.children) == 2:
            paths = input_paths(tree, info.orig_args, names)
    return [GraphPort(path, name) for path, name in zip(paths, names, strict=True)]


def _outputs(model: GraphModule, nodes: Sequence[Node]) -> list[GraphPort]:
    results = [node.args[0] for node in nodes if node.op == "output"]
    leaves = [leaf for result in results for leaf in _leaves(result)]
    single = len(results) == 1 and not isinstance(results[0], list | tuple | dict)
    paths = ["out"] if single else [f"out[{i}]" for i in range(len(leaves))]
    info = getattr(model.graph._codegen, "pytree_info", None)
    if info is not None and info.out_spec is not None:
        tree = convert_treespec(info.out_spec)
        if tree.leaf_count == len(leaves):
            paths = tree.paths("out")
    return [
        GraphPort(path, leaf.name if isinstance(leaf, Node) else None)
        for path, leaf in zip(paths, leaves, strict=True)
    ]


def _leaves(result: Any) -> Iterator[Any]:
    if isinstance(result, list | tuple):
        for item in result:
            yield from _leaves(item)
    elif isinstance(result, dict):
        for item in result.values():
            yield from _leaves(item)
    else:
        yield result
