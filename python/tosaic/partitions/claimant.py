"""Who takes nodes of a program: `Claimant`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tosaic import _core
from tosaic.options import shown
from tosaic.problems import Problem

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Claimant", "Verdict"]


@dataclass(frozen=True)
class Verdict:
    """Whether a claimant takes a node. It is true in a condition if the claimant does.

    Attributes
    ----------
    node : str
        Name of the node.
    reasons : tuple of (str, Problem)
        All reasons why the claimant does not take it: the rule, and what it expects and found.
    """

    node: str
    reasons: tuple[tuple[str, Problem], ...] = ()

    @property
    def supported(self) -> bool:
        """True if there are no reasons against it."""
        return not self.reasons

    def __bool__(self) -> bool:
        return self.supported


@dataclass(frozen=True)
class Claimant:
    """Who takes nodes of a program: a target with its limits, and the rules of the user.

    `Claimant.named` makes it. `deny` and `allow` return changed copies.

    Attributes
    ----------
    name : str
        Such as ``"ethos-u55-128"``; reports show it.
    kind : str
        The name of the built-in claimant whose limits apply.
    target : str
        The TOSA target for which groups are lowered; empty if they are not lowered to TOSA.
    connected : bool
        Whether all nodes of a group have to be connected.
    least_size : int
        The least number of nodes of a group that compute.
    rules : tuple
        The rules of the user, in the order in which they were added.
    """

    name: str
    kind: str
    target: str
    connected: bool = True
    least_size: int = 1
    rules: tuple[tuple[str, str, Any, bool, str], ...] = field(default=())

    @classmethod
    def named(cls, name: str, *, alias: str = "", least_size: int | None = None) -> Claimant:
        """Returns a built-in claimant.

        Parameters
        ----------
        name : str
            A TOSA target such as ``"TOSA-1.0+INT"``, or one of `Claimant.names`.
        alias : str
            A name for reports, in the place of `name`. Two claimants of one program have different names.
        least_size : int, optional
            The least number of nodes of a group that compute; that of the built-in claimant by default.

        Raises
        ------
        InvalidGraph
            There is no such claimant. The message lists the known names.

        Examples
        --------
        >>> import tosaic
        >>> tosaic.Claimant.named("TOSA-1.0+INT").target
        'TOSA-1.0+INT'
        """
        if not isinstance(name, str):
            raise _core.make_error(
                _core.InvalidGraph,
                where="claimant",
                what="a claimant is named by a text",
                expected="a TOSA target, or one of " + ", ".join(map(repr, _core.claimant_names())),
                got=shown(name),
            )
        fields = _core.claimant(name)
        size = fields["least_size"] if least_size is None else least_size
        return cls(alias or name, name, fields["target"], fields["connected"], size)

    @staticmethod
    def names() -> tuple[str, ...]:
        """The names of the built-in claimants, besides TOSA's targets."""
        return tuple(_core.claimant_names())

    def deny(
        self,
        *,
        op: str | None = None,
        name: str | None = None,
        module: str | None = None,
        where: Callable[[_core.Node], bool] | None = None,
        why: str = "",
    ) -> Claimant:
        """Returns this claimant without the nodes that a rule matches.

        Parameters
        ----------
        op : str, optional
            The name of an operator (``"softmax"``), or the target of a foreign one.
        name : str, optional
            The name of a node, of one of its results, or of torch's call.
        module : str, optional
            The path of a module; inner modules match, too.
        where : callable, optional
            Called with each node; the rule matches if it returns True.
        why : str
            For the reports.

        Notes
        -----
        A rule that matches no node raises InvalidGraph when the claimant judges a program. Of the rules that
        match a node, the most specific kind counts: name, then `where`, then module, then operator.

        Raises
        ------
        InvalidGraph
            Not exactly one of `op`, `name`, `module` and `where` was passed.
        """
        return self._with(op, name, module, where, False, why)

    def allow(
        self,
        *,
        op: str | None = None,
        name: str | None = None,
        module: str | None = None,
        where: Callable[[_core.Node], bool] | None = None,
    ) -> Claimant:
        """Returns this claimant with the nodes that a rule matches, whatever the limits of the device are.

        A rule cannot allow what does not lower to the target, or floats on a target of integers. Parameters and
        errors are those of `deny`.
        """
        return self._with(op, name, module, where, True, "")

    def _with(self, op: Any, name: Any, module: Any, where: Any, allow: bool, why: str) -> Claimant:
        passed = {
            kind: value
            for kind, value in {"op": op, "name": name, "module": module, "where": where}.items()
            if value is not None
        }
        if len(passed) != 1:
            raise _core.make_error(
                _core.InvalidGraph,
                where="claimant",
                what="a rule matches by one thing",
                expected="one of 'op', 'name', 'module' and 'where'",
                got=", ".join(map(repr, passed)) or "none of them",
            )
        ((kind, value),) = passed.items()
        if (kind == "where") != callable(value) or (kind != "where" and not isinstance(value, str)):
            raise _core.make_error(
                _core.InvalidGraph,
                where="claimant",
                what=f"unknown value of '{kind}'",
                expected="a function of a node" if kind == "where" else "a text",
                got=shown(value),
            )
        text = getattr(value, "__name__", "where") if kind == "where" else value
        function = value if kind == "where" else None
        return replace(self, rules=(*self.rules, (kind, text, function, allow, why)))

    def verdicts(self, graph: _core.Graph) -> list[Verdict]:
        """Returns a verdict for each node of a graph.

        Parameters
        ----------
        graph : Graph
            A graph at stage ``exported`` or ``quantized``, as `PartitionPlan.graph`.

        Raises
        ------
        InvalidGraph
            The graph is at another stage, a rule matches no node, an operator does not exist, or two rules
            contradict each other.
        """
        rules = [
            (kind, text, None if function is None else _by_index(function), allow, why)
            for kind, text, function, allow, why in self.rules
        ]
        found = _core.verdicts(graph, self.kind, rules)
        return [
            Verdict(node.name, tuple((rule, Problem.from_parts(parts)) for rule, parts in reasons))
            for node, reasons in zip(graph.nodes, found, strict=True)
        ]


def _by_index(function: Callable[[_core.Node], bool]) -> Callable[[_core.Graph, int], bool]:
    return lambda graph, index: bool(function(graph.nodes[index]))
