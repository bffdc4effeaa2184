"""Functions of the caller that a program runs instead of some of its operators."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from tosaic import _core
from tosaic.base.options import invalid, shown
from tosaic.base.threads import run_threads
from tosaic.base.visible import one_line
from tosaic.ports.foreign import ForeignOp, functions_of

_LOG = logging.getLogger(__name__)


class Overrides:
    """Override functions by the name of a node or operator. Copies of a program share one object.

    Attributes
    ----------
    own : dict of str to callable
        Functions of `Program.with_overrides`.
    foreign : tuple of ForeignOp
        Descriptions of foreign operators, whose kernels are functions too.
    """

    def __init__(
        self, own: Mapping[str, Callable[..., Any]] | None = None, foreign: Iterable[ForeignOp] = ()
    ) -> None:
        self.own = dict(own or {})
        self.foreign = tuple(foreign)

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """All functions; functions of the caller take precedence over functions of descriptions."""
        return {**functions_of(self.foreign), **self.own}

    def functions_for(self, graph: _core.Graph) -> dict[str, Callable[..., Any]]:
        """Returns the functions for a graph; from descriptions, only for its foreign operators."""
        if not self.foreign:
            return dict(self.own)
        return {**of_foreign_nodes(graph, functions_of(self.foreign)), **self.own}

    def session(self, graph: _core.Graph) -> _core.Session:
        """Returns a session of a graph, which runs the functions for it."""
        nodes, operators = split_functions(self.functions_for(graph), graph)
        return _core.Session(graph, override_nodes=nodes, override_ops=operators, threads=run_threads())

    def __deepcopy__(self, _: dict[int, Any]) -> Overrides:
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Pickles all functions.

        Raises
        ------
        InvalidGraph
            A function cannot be pickled; the message names its override.
        """
        for name, function in self.own.items():
            require_pickled(f"the override of '{name}'", function, "with_overrides")
        for operator in self.foreign:
            for part in ("kernel", "quantized", "types"):
                what = f"the function '{part}' of the description of '{operator.target}'"
                require_pickled(what, getattr(operator, part), "with_operators")
        return {"own": self.own, "foreign": self.foreign}

    def warn_of_loss(self, what: str) -> None:
        """Logs a warning that `what`, which is made from the graph alone, lacks the caller's functions."""
        if self.own:
            names = ", ".join(f"'{one_line(name)}'" for name in self.own)
            _LOG.warning(
                "%s has the operators of the graph, without the functions that override %s", what, names
            )


def of_foreign_nodes(
    graph: _core.Graph, functions: Mapping[str, Callable[..., Any]]
) -> dict[str, Callable[..., Any]]:
    """Returns the functions for foreign nodes of the graph, by name of the node or foreign operator."""
    names: set[str] = set()
    for node in all_nodes(graph):
        if node.op == "opaque":
            names |= {node.name, str(node.attrs["target"])}
        elif node.op == "tosa.custom":
            names.add(f"{node.attrs['domain_name']}.{node.attrs['operator_name']}")
    return {name: function for name, function in functions.items() if name in names}


def all_nodes(graph: _core.Graph) -> Iterator[_core.Node]:
    """Yields the nodes of a graph and of its regions."""
    for node in graph.nodes:
        yield node
        for region in node.regions:
            yield from all_nodes(region)


def split_functions(
    functions: Mapping[str, Callable[..., Any]], graph: _core.Graph
) -> tuple[dict[str, Callable[..., Any]], dict[str, Callable[..., Any]]]:
    """Returns override functions of nodes of the graph, and override functions of operators."""
    names = {node.name for node in all_nodes(graph)}
    return (
        {name: function for name, function in functions.items() if name in names},
        {name: function for name, function in functions.items() if name not in names},
    )


def require_pickled(what: str, function: Any, method: str) -> None:
    """Raises InvalidGraph if a function of a program cannot be pickled."""
    try:
        pickle.dumps(function)
    except MemoryError:
        raise
    except Exception as error:  # an object may raise anything
        raise invalid(
            "pickle",
            f"{what} cannot be pickled",
            expected="a function at the top level of a module, or an object that pickle takes",
            got=shown(function),
            hint=f"Pickle the program without it, and call {method} where it is unpickled",
        ) from error
