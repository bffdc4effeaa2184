"""The JSON graph as nodes with the attributes of ``torch.fx.Node``, which `NodeReader` reads.

A call with several results is one entry of the file, with the names of all results. As in torch, it becomes a
node and a ``getitem`` node for each result.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from tosaic.pt2.checked import (
    MISUSE,
    WrongJsonError,
    beyond,
    boolean,
    integer,
    listed,
    mapping,
    misused,
    number,
    text,
    union,
)
from tosaic.pt2.schemas import row_of
from tosaic.pt2.values import (
    DTYPES,
    LAYOUTS,
    MEMORY_FORMATS,
    Device,
    Named,
    Symbolic,
    TensorMeta,
    tensor_meta,
)

__all__ = ["NestedGraph", "Node", "NodeMaker", "module_stack", "released"]

_PREFIXES = ("torch.ops.", "executorch.exir.dialects.edge._ops.")
_POSITIONAL, _KEYWORD = 1, 2
_DEEPEST = 50
_NUMBERS = {
    "as_sym_int": ("sym_int_values", "as_int", integer, "int"),
    "as_sym_bool": ("sym_bool_values", "as_bool", boolean, "bool"),
    "as_sym_float": ("sym_float_values", "as_float", number, "float"),
}


class Node:
    """A node with the attributes of a ``torch.fx.Node``."""

    __slots__ = ("all_input_nodes", "args", "kwargs", "meta", "name", "op", "target", "users")

    def __init__(
        self, op: str, name: str, target: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> None:
        self.op = op
        self.name = name
        self.target = target
        self.args = args
        self.kwargs = kwargs or {}
        self.meta: dict[str, Any] = {}
        self.users: dict[Node, None] = {}
        self.all_input_nodes: list[Node] = []


def released(nodes: Sequence[Node]) -> None:
    """Takes nodes apart that are no longer needed: they refer to each other in cycles."""
    for node in nodes:
        node.args, node.kwargs, node.meta, node.users, node.all_input_nodes = (), {}, {}, {}, []


class _InputMeta(dict[str, Any]):
    """What is recorded of an input: its type is read when it is asked for, as that of weights hardly is."""

    def __init__(self, read: Callable[[], TensorMeta]) -> None:
        super().__init__()
        self._read = read

    def get(self, key: str, default: Any = None) -> Any:
        """Returns what is recorded under a key."""
        if key == "val" and not dict.__contains__(self, key):
            self[key] = self._read()
        return dict.get(self, key, default)

    def __getitem__(self, key: str) -> Any:
        if key == "val":
            return self.get(key)
        return dict.__getitem__(self, key)

    def __contains__(self, key: object) -> bool:
        return key == "val" or dict.__contains__(self, key)


class NestedGraph:
    """A graph that is an argument of a higher-order operator. Like a module of torch, it has a ``graph``."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes

    @property
    def graph(self) -> NestedGraph:
        """The graph itself."""
        return self


def module_stack(recorded: str, known: dict[str, dict[str, tuple[str, str]]]) -> dict[str, tuple[str, str]]:
    """Returns the modules around a node, outermost first: path and type by key."""
    found = known.get(recorded)
    if found is None:
        found = known[recorded] = {}
        for entry in recorded.split(";"):
            key, path, kind = _split(entry)
            found[key] = (path, kind)
    return found


def _split(entry: str) -> list[str]:
    """Splits at commas that are outside of brackets."""
    if entry.count(",") == 2:
        return entry.split(",")
    parts, depth, start = [], 0, 0
    for i, letter in enumerate(entry):
        if letter in "[(":
            depth += 1
        elif letter in ")]":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(entry[start:i])
            start = i + 1
    return [*parts, entry[start:]]


class NodeMaker:
    """Makes the nodes of a graph.

    Parameters
    ----------
    graph : dict
        The JSON of the graph.
    resolve : callable
        Returns a number for a `Symbolic` whose symbols are bound, and the `Symbolic` for others.
    constant_names : sequence of str
        For each input of the graph that is a constant, its name.
    stacks : dict
        The module stacks that are known, by their text.
    depth : int
        How deep the graph is nested.
    """

    def __init__(
        self,
        graph: Any,
        resolve: Callable[[Symbolic], Any],
        constant_names: Sequence[str] = (),
        stacks: dict[str, dict[str, tuple[str, str]]] | None = None,
        depth: int = 0,
    ) -> None:
        if depth > _DEEPEST:
            raise WrongJsonError(f"at most {_DEEPEST} nested graphs", depth)
        self._graph = mapping(graph)
        self._resolve = resolve
        self._stacks = {} if stacks is None else stacks
        self._depth = depth
        self._by_name: dict[str, Node] = {}
        self._tensors = mapping(self._graph["tensor_values"])
        self._constant_names = constant_names
        self.nodes: list[Node] = []

    def make(self) -> list[Node]:
        """Makes all nodes: placeholders, calls, and the output.

        Raises
        ------
        InvalidGraph
            The graph is damaged; the message names the entry.
        """
        self.make_inputs()
        for i, entry in enumerate(listed(self._graph["nodes"])):
            try:
                self._call(mapping(entry))
            except MISUSE as error:
                raise misused(f"node {i} of the graph is damaged", error) from error
        try:
            results = [self._argument(each) for each in listed(self._graph["outputs"])]
            is_single = boolean(self._graph.get("is_single_tensor_return", False))
            output = Node("output", "output", "output", (results[0] if is_single else tuple(results),))
        except MISUSE as error:
            raise misused("the output of the graph is damaged", error) from error
        self._add(output)
        return self.nodes

    def make_inputs(self) -> None:
        """Makes the placeholders, unless they are there already."""
        if self.nodes:
            return
        for i, entry in enumerate(listed(self._graph["inputs"])):
            try:
                self._placeholder(i, *union(entry))
            except MISUSE as error:
                raise misused(f"input {i} of the graph is damaged", error) from error

    # ---- nodes ----

    def _add(self, node: Node) -> None:
        inputs = node.all_input_nodes
        for value in (*node.args, *node.kwargs.values()):
            if type(value) is Node:
                inputs.append(value)
            elif type(value) is list or type(value) is tuple:
                inputs += _nodes_in(value)
            elif type(value) is dict:
                inputs += _nodes_in(list(value.values()))
        if len(inputs) > 1:
            inputs[:] = dict.fromkeys(inputs)
        for each in inputs:
            each.users[node] = None
        self.nodes.append(node)

    def _register(self, name: Any, node: Node, val: Any) -> None:
        node.name = text(name)
        node.meta["val"] = val
        self._name(name, node)

    def _name(self, name: str, node: Node) -> None:
        if name in self._by_name:
            raise WrongJsonError("names that occur once", name)
        self._by_name[name] = node

    def _placeholder(self, i: int, tag: str, value: Any) -> None:
        if tag == "as_tensor":
            name = text(value["name"])
            if name not in self._tensors:
                raise WrongJsonError("the type of a tensor", name)
            node = Node("placeholder", name, name)
            node.meta = _InputMeta(lambda: self._tensor_of_input(i, name))
            self._name(name, node)
        elif tag == "as_custom_obj":
            node = Node("placeholder", "", "")
            self._register(value["name"], node, None)
        elif tag in _NUMBERS:
            node = Node("placeholder", "", "")
            self._register(value["as_name"], node, self._number(tag, value["as_name"]))
        else:
            name = self._constant_names[i] if i < len(self._constant_names) else ""
            node = Node("placeholder", name or f"arg{i}", "")
            node.meta["val"] = self._plain(tag, value)
        node.target = node.name
        self._add(node)

    def _call(self, entry: dict[str, Any]) -> None:
        target = _target(text(entry["target"]))
        metadata = mapping(entry["metadata"])
        meta: dict[str, Any] = {"nn_module_stack": {}}
        if "stack_trace" in metadata:
            meta["stack_trace"] = text(metadata["stack_trace"])
        if "nn_module_stack" in metadata:
            meta["nn_module_stack"] = module_stack(text(metadata["nn_module_stack"]), self._stacks)
        args, kwargs = self._arguments(target, listed(entry["inputs"]))
        node = Node("call_function", text(entry.get("name") or ""), target, args, kwargs)
        node.meta.update(meta)
        self._add(node)
        self._results(node, entry, listed(entry["outputs"]), meta)
        if not node.name:
            raise beyond("a node has no name, as in files of older versions of torch")

    def _arguments(self, target: str, entries: list[Any]) -> tuple[list[Any], dict[str, Any]]:
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        names = None
        for entry in entries:
            kind, value = entry.get("kind"), self._argument(entry["arg"])
            if kind == _POSITIONAL:
                args.append(value)
                continue
            name = entry["name"]
            if name == "":
                args.append(value)
            elif kind == _KEYWORD:
                kwargs[text(name)] = value
            elif kind is None:  # written before torch recorded the kind
                if names is None:
                    names = row_of(target).names if target.count(".") >= 2 else ()
                if len(args) < len(names) and names[len(args)] == name and not kwargs:
                    args.append(value)
                else:
                    kwargs[text(name)] = value
            else:
                raise WrongJsonError("a kind of argument", kind)
        return args, kwargs

    def _results(self, node: Node, entry: dict[str, Any], outputs: list[Any], meta: dict[str, Any]) -> None:
        if not outputs:
            return
        if len(outputs) > 1:
            node.meta["val"] = self._items(node, outputs, meta)
            return
        tag, value = union(outputs[0])
        is_tuple = node.target.startswith("higher_order.") and not entry.get(
            "is_hop_single_tensor_return", True
        )
        if tag == "as_none":
            node.meta["val"] = None
        elif tag == "as_tensors":
            tagged = [{"as_tensor": each} for each in listed(value)]
            node.meta["val"] = self._items(node, tagged, meta)
        elif is_tuple:
            node.meta["val"] = self._items(node, outputs, meta)
        elif tag == "as_tensor":
            self._register(value["name"], node, self._tensor(value["name"]))
        elif tag in _NUMBERS:
            self._register(value["as_name"], node, self._number(tag, value["as_name"]))
        else:
            raise WrongJsonError("a result", tag)

    def _items(self, node: Node, outputs: list[Any], meta: dict[str, Any]) -> tuple[Any, ...]:
        """Makes a getitem node for each result; returns what is recorded of the results."""
        recorded: list[Any] = []
        for i, output in enumerate(outputs):
            tag, value = union(output)
            item = Node("call_function", f"{node.name}.{i}", operator.getitem, (node, i))
            item.meta.update(meta)
            self._add(item)
            if tag == "as_tensor":
                self._register(value["name"], item, self._tensor(value["name"]))
            elif tag in _NUMBERS:
                self._register(value["as_name"], item, self._number(tag, value["as_name"]))
            elif tag == "as_tensors":
                tagged = [{"as_tensor": each} for each in listed(value)]
                item.meta["val"] = list(self._items(item, tagged, meta))
            elif tag == "as_none":
                item.meta["val"] = None
            else:
                raise WrongJsonError("a result", tag)
            recorded.append(item.meta["val"])
        return tuple(recorded)

    # ---- values ----

    def _tensor(self, name: Any) -> TensorMeta:
        found = tensor_meta(self._tensors[text(name)])
        if found.is_symbolic:
            return TensorMeta(
                found.dtype,
                tuple(map(self._resolved, found.shape)),
                tuple(map(self._resolved, found.stride())),
                found.offset,
                found.device,
                found.layout,
            )
        return found

    def _tensor_of_input(self, i: int, name: str) -> TensorMeta:
        try:
            return self._tensor(name)
        except MISUSE as error:
            raise misused(f"input {i} of the graph is damaged", error) from error

    def _resolved(self, value: Any) -> Any:
        return self._resolve(value) if type(value) is Symbolic else value

    def _number(self, tag: str, name: Any) -> Any:
        values, own, read, kind = _NUMBERS[tag]
        found, held = union(mapping(self._graph[values])[text(name)])
        if found == own:
            return read(held)
        if found != "as_expr":
            raise WrongJsonError(f"{own} or as_expr", found)
        return self._resolve(Symbolic(text(mapping(held)["expr_str"]), kind))

    def _named(self, name: Any) -> Node:
        return self._by_name[text(name)]

    def _numeric(self, entry: Any) -> Any:
        tag, value = union(entry)
        if tag == "as_name":
            return self._named(value)
        return self._plain(tag, value)

    def _optional(self, entry: Any) -> Node | None:
        tag, value = union(entry)
        return None if tag == "as_none" else self._named(value["name"])

    def _argument(self, entry: Any) -> Any:
        tag, value = union(entry)
        if tag == "as_tensor":
            return self._by_name[value["name"]]
        if tag in _PLAIN:
            return _PLAIN[tag](value)
        if tag == "as_tensors":
            return [self._named(each["name"]) for each in listed(value)]
        if tag in _NUMBERS:
            return self._numeric(value)
        if tag in ("as_sym_ints", "as_sym_bools", "as_sym_floats"):
            return [self._numeric(each) for each in listed(value)]
        if tag == "as_optional_tensors":
            return [self._optional(each) for each in listed(value)]
        if tag == "as_optional_tensor":
            return self._optional(value)
        if tag == "as_nested_tensors":
            return [[self._named(each["name"]) for each in listed(inner)] for inner in listed(value)]
        if tag == "as_string_to_argument":
            return {text(key): self._argument(each) for key, each in mapping(value).items()}
        if tag == "as_graph":
            return self._nested(value)
        if tag == "as_custom_obj":
            return self._named(value["name"])
        return self._plain(tag, value)

    def _nested(self, value: Any) -> Node:
        """Makes the node of an attribute that is a graph."""
        maker = NodeMaker(value["graph"], self._resolve, (), self._stacks, self._depth + 1)
        node = Node("get_attr", text(value["name"]), text(value["name"]))
        node.meta["val"] = NestedGraph(maker.make())
        self._add(node)
        return node

    @classmethod
    def constant(cls, entry: Any) -> Any:
        """Returns the value of a constant input."""
        return cls._plain(*union(entry))

    @staticmethod
    def _plain(tag: str, value: Any) -> Any:
        read = _PLAIN.get(tag)
        if read is None:
            raise WrongJsonError("an argument", tag)
        return read(value)


@cache
def _target(name: str) -> str:
    """Returns the name of an operator without the prefix that says who has it."""
    for prefix in _PREFIXES:
        if name.startswith(prefix):
            name = name.removeprefix(prefix)
            if name.startswith("higher_order."):
                return name
            if name.count(".") < 2:
                raise WrongJsonError("namespace, name and overload of an operator", name)
            return name
    if name.startswith("#"):
        raise beyond(f"the operator '{name}' is of an extension of torch's format")
    return name


def _nodes_in(values: Any) -> list[Node]:
    found: list[Node] = []
    for value in values:
        if type(value) is Node:
            found.append(value)
        elif type(value) is list:
            found += _nodes_in(value)
    return found


def _list_of(read: Callable[[Any], Any]) -> Callable[[Any], list[Any]]:
    return lambda value: [read(each) for each in listed(value)]


def _none(value: Any) -> None:
    boolean(value)


def _device(value: Any) -> Device:
    index = mapping(value).get("index")
    return Device(text(value["type"]), None if index is None else integer(index))


_PLAIN: dict[str, Callable[[Any], Any]] = {
    "as_none": _none,
    "as_int": integer,
    "as_ints": _list_of(integer),
    "as_float": number,
    "as_floats": _list_of(number),
    "as_bool": boolean,
    "as_bools": _list_of(boolean),
    "as_string": text,
    "as_strings": _list_of(text),
    "as_complex": lambda value: complex(number(value["real"]), number(value["imag"])),
    "as_scalar_type": lambda value: DTYPES[integer(value)],
    "as_memory_format": lambda value: MEMORY_FORMATS[integer(value)],
    "as_layout": lambda value: LAYOUTS[integer(value)],
    "as_device": _device,
    "as_int_lists": _list_of(_list_of(integer)),
    "as_float_lists": _list_of(_list_of(number)),
    "as_operator": lambda value: Named(text(value)),
}
