"""Keys of `models`: the nodes of a graph that a key selects, and the key that applies to a node."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from tosaic import _core
from tosaic.base.option_values import NodesValue
from tosaic.base.options import invalid, shown
from tosaic.program.overrides import all_nodes

_CONDITIONS = ("name", "fx_name", "module", "target", "kind")  # the most specific one first
_MOST_SHOWN = 12
_CONTROL_FLOW = frozenset({"cond", "while_loop", "tosa.cond_if", "tosa.while_loop"})
_STATE = frozenset({"tosa.variable", "tosa.variable_read", "tosa.variable_write"})


@dataclass(frozen=True)
class Nodes(NodesValue):
    """Nodes of a graph and its regions that fulfil all conditions that are set: a key of ``models=``.

    A string can be used as a key if it has only one meaning: ``"conv"`` is ``Nodes(kind="conv")`` unless a
    node or module has this name, too. ``Nodes()`` and ``"*"`` select all operators.

    Attributes
    ----------
    kind : str, optional
        The operator, as `Node.op` names it: ``conv``, ``tosa.conv2d``. For a foreign operator also its
        target, or ``domain.name``.
    name : str, optional
        Name of the node.
    fx_name : str, optional
        Name of an FX node that the node comes from. A fused node comes from several.
    module : str, optional
        Path of a module: all nodes that come from a call in this module or in a module inside of it.
    target : str, optional
        Torch operator of an FX node that the node comes from: ``aten.conv2d.default`` or ``aten.conv2d``.

    Raises
    ------
    InvalidGraph
        A condition is not a string, or is empty.

    Notes
    -----
    Nodes of variables cannot be selected, since they hold the state. A ``cond`` or ``while_loop`` is selected
    as a whole only by `kind` or `name`. The other conditions select the nodes in its regions.

    Examples
    --------
    >>> import tosaic
    >>> tosaic.Nodes(kind="conv", module="layer1")
    Nodes(kind='conv', module='layer1')
    """

    kind: str | None = None
    name: str | None = None
    fx_name: str | None = None
    module: str | None = None
    target: str | None = None

    def __post_init__(self) -> None:
        value: Any
        for condition, value in self.conditions.items():
            if not isinstance(value, str) or not value:
                raise invalid(
                    "Nodes",
                    f"the condition '{condition}' is wrong",
                    expected="a string that is not empty",
                    got=shown(value),
                )

    @property
    def conditions(self) -> dict[str, str]:
        """The conditions that are set, by name."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def __repr__(self) -> str:
        return f"Nodes({', '.join(f'{name}={value!r}' for name, value in self.conditions.items())})"


def _rank(nodes: Nodes) -> tuple[int, ...]:
    """Returns a sort key: a more specific `Nodes` has a smaller one."""
    found = nodes.conditions
    level = min((_CONDITIONS.index(name) for name in found), default=len(_CONDITIONS))
    depth = nodes.module.count(".") + 1 if nodes.module is not None else 0
    return level, -len(found), -depth


def selected(graph: _core.Graph, models: Mapping[Any, Any]) -> list[tuple[_core.Node, str, Any]]:
    """Returns the nodes of a graph and its regions that have models, each with its key as text and its model.

    Raises
    ------
    InvalidGraph
        A key selects nothing, or has several meanings; or two keys that are equally specific select one node.
    """
    index = NodeIndex(graph)
    best: dict[int, tuple[Nodes, Any, Any]] = {}
    for key, model in models.items():
        nodes, found = index.meaning(key)
        for i in sorted(found):
            rival = best.get(i)
            if rival is None or _rank(nodes) < _rank(rival[0]):
                best[i] = nodes, key, model
            elif _rank(nodes) == _rank(rival[0]) and model is not rival[2]:
                best[i] = nodes, _Rivals(rival[1], key), model
    for i, (_, key, _) in best.items():
        if isinstance(key, _Rivals):
            raise _conflict(index.nodes[i], key)
    return [(index.nodes[i], str(key), model) for i, (_, key, model) in sorted(best.items())]


@dataclass(frozen=True)
class _Rivals:
    """Two keys of equal rank that select one node."""

    first: Any
    second: Any


class NodeIndex:
    """The nodes of a graph and its regions by each condition of a key."""

    def __init__(self, graph: _core.Graph) -> None:
        self.nodes = list(all_nodes(graph))
        self.stage = graph.stage
        self._by: dict[str, dict[str, set[int]]] = {condition: {} for condition in _CONDITIONS}
        for i, node in enumerate(self.nodes):
            for condition, value in _facts(node):
                self._by[condition].setdefault(value, set()).add(i)

    def meaning(self, key: Any) -> tuple[Nodes, set[int]]:
        """Returns the conditions that a key means, and the indices of the nodes that it selects."""
        nodes = self._explicit(key) if isinstance(key, str) else key
        found = self.select(nodes)
        if not found:
            raise self._nothing(key)
        for i in sorted(found):
            if self.nodes[i].op in _STATE:
                raise invalid(
                    "models",
                    f"the key {shown(key)} selects a node that holds the state",
                    expected="a node that computes",
                    got=f"a node '{self.nodes[i].op}'",
                    node=self.nodes[i].name,
                )
        return nodes, found

    def found(self, key: Any) -> list[_core.Node]:
        """Returns the nodes that a key selects, maybe none.

        Raises
        ------
        InvalidGraph
            The key has several meanings.
        """
        nodes = self._only_meaning(key) if isinstance(key, str) else key
        return [] if nodes is None else [self.nodes[i] for i in sorted(self.select(nodes))]

    def select(self, nodes: Nodes) -> set[int]:
        """Returns the indices of the nodes that fulfil all conditions."""
        conditions = nodes.conditions
        found = set(range(len(self.nodes)))
        for condition, value in conditions.items():
            found &= self._by[condition].get(value, set())
        if "kind" in conditions or "name" in conditions:
            return found
        return {i for i in found if self.nodes[i].op not in _CONTROL_FLOW | _STATE}

    def _explicit(self, key: str) -> Nodes:
        found = self._only_meaning(key)
        if found is None:
            raise self._nothing(key)
        return found

    def _only_meaning(self, key: str) -> Nodes | None:
        if key == "*":
            return Nodes()
        meanings = [Nodes(**{condition: key}) for condition in _CONDITIONS if key in self._by[condition]]
        meanings = [nodes for nodes in meanings if self.select(nodes)]
        if not meanings:
            return None
        sets = [self.select(nodes) for nodes in meanings]
        if any(found != sets[0] for found in sets):
            listed = [
                f"{nodes!r} ({len(found)} node{'s' * (len(found) != 1)})"
                for nodes, found in zip(meanings, sets, strict=True)
            ]
            raise invalid(
                "models",
                f"the key '{key}' has several meanings",
                expected="a key with one meaning",
                got=", ".join(listed),
                hint="Use one of these tosaic.Nodes as the key",
            )
        return meanings[0]

    def _nothing(self, key: Any) -> Exception:
        wanted = key if isinstance(key, str) else next(iter(key.conditions.values()), "")
        known = sorted({name for values in self._by.values() for name in values})
        hint = _core.did_you_mean(wanted, [(name, _without_dialect(name)) for name in known])
        if not hint:
            kinds = sorted({node.op for node in self.nodes})
            more = ", ..." if len(kinds) > _MOST_SHOWN else ""
            hint = f"Operators of the graph at stage {self.stage}: {', '.join(kinds[:_MOST_SHOWN])}{more}"
        return invalid(
            "models",
            f"the key {shown(key)} selects no node",
            expected="an operator, a node, an FX node, a module or a torch operator of the graph",
            hint=hint,
        )


def _facts(node: _core.Node) -> Iterator[tuple[str, str]]:
    """Yields the conditions that a node fulfils, each with its value."""
    yield "kind", node.op
    if node.op == "opaque":
        attrs = node.attrs
        yield "kind", str(attrs["target"])
        if attrs["name"]:
            yield "kind", f"{attrs['domain']}.{attrs['name']}"
    if node.op == "tosa.custom":
        yield "kind", f"{node.attrs['domain_name']}.{node.attrs['operator_name']}"
    yield "name", node.name
    for origin in node.origins:
        yield "fx_name", origin.fx_name
        yield from (("module", path) for path in _and_outer(origin.module_path))
        yield "target", origin.target
        if origin.target.count(".") == 2:
            yield "target", origin.target.rpartition(".")[0]


def _and_outer(path: str) -> Iterable[str]:
    """Yields the path of a module and of the modules that contain it."""
    while path:
        yield path
        path = path.rpartition(".")[0]


def _without_dialect(name: str) -> str:
    return name.removeprefix("tosa.") if name.startswith("tosa.") else ""


def _conflict(node: _core.Node, rivals: _Rivals) -> Exception:
    return invalid(
        "models",
        "two keys that are equally specific select one node",
        expected="one key, or keys of which one is more specific",
        got=f"{shown(rivals.first)} and {shown(rivals.second)}",
        node=node.name,
        hint=f"Give the node a key of its own: tosaic.Nodes(name={node.name!r})",
    )
