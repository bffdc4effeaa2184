"""`Claimant`: which nodes of a program a target takes, with verdicts and the user's rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tosaic import _core
from tosaic.base.exception_notes import add_note
from tosaic.base.options import invalid, refusal, shown
from tosaic.base.problems import Problem
from tosaic.base.target import Target

_KINDS = ("op", "name", "module", "where")
_CONVERSIONS = ("quantize", "dequantize")


def planned_graph(imported: _core.Graph) -> _core.Graph:
    """Returns the graph that claimants judge, for a program that is not lowered.

    In it, values have qparams, and each float operator reads its own dequantize nodes.
    """
    return _core.with_own_dequantize(_core.before_integers(imported))


@dataclass(frozen=True)
class Reason:
    """One reason why a claimant does not take a node.

    Attributes
    ----------
    rule : str
        The kind of rule that the node breaks, a short name that does not change: ``float``, ``integer``,
        ``state``, ``lowering``, ``operator``, ``dtype``, ``deny``, or the name of a limit, such as
        ``stride`` or ``kernel-height``.
    problem : Problem
        What is wrong, what was expected and found, with the node, module path and source line.
    """

    rule: str
    problem: Problem

    @property
    def message(self) -> str:
        """The reason as one line of text."""
        return self.problem.message


@dataclass(frozen=True)
class Verdict:
    """Whether a claimant takes a node. A verdict is true in a condition if the claimant takes the node.

    Attributes
    ----------
    node : str
        Name of the node in the graph that was judged.
    op : str
        Name of its operator.
    reasons : tuple of Reason
        All reasons against the node, not only the first; empty if the claimant takes it.
    """

    node: str
    op: str
    reasons: tuple[Reason, ...] = ()

    @property
    def supported(self) -> bool:
        """True if the claimant takes the node."""
        return not self.reasons

    def __bool__(self) -> bool:
        return self.supported


@dataclass(frozen=True)
class ClaimantRule:
    """A rule of the user.

    Attributes
    ----------
    kind : {"op", "name", "module", "where"}
        What the rule matches: an operator, a node, a module with everything inside, or nodes for which a
        function returns true.
    value : str
        The name to match; for a function, its name.
    allow : bool
        Whether the rule allows nodes or denies them.
    why : str
        Text for the reason of a denied node.
    where : callable, optional
        The function of kind ``where``.
    """

    kind: str
    value: str
    allow: bool
    why: str = ""
    where: Callable[[_core.Node], bool] | None = None


@dataclass(frozen=True)
class Claimant:
    """A taker of nodes of a program, as data: a target, limits of a device, and rules of the user.

    `named` makes a claimant. Its verdicts are made before a program is lowered, and agree with the lowering:
    claimants with a target take a node if it can be lowered alone, and if the resulting TOSA operators are
    within the limits of the device.

    Attributes
    ----------
    name : str
        The name in reports. Two claimants of one program have different names.
    kind : str
        The name of the built-in claimant, whose limits apply.
    target : str
        The TOSA target for which groups of nodes are lowered; empty for claimants that do not read TOSA.
    arithmetic : str
        The TOSA target in which the claimant's arithmetic is expressed; equal to `target`, if there is one.
        Groups of Cortex-M and Neutron are lowered to it, too, and compute the integers of CMSIS-NN, as on a
        Cortex-M. Nothing was run on a Neutron. Empty for the host.
    semantics : {"tosa", "cmsis-nn"}
        The integer forms of operators; `rounding`, `average_pool` and `softmax` are three of them.
    rounding : {"single_round", "inexact_round", "double_round"}
        How the claimant's rescales round.
    average_pool : {"multiply", "divide"}
        How an average of integers is computed: by TOSA's rounded reciprocal, or by a division that rounds
        half away from zero.
    softmax : {"expansion", "fixed_point"}
        How softmax of integers is computed: as tosaic expands it, or in fixed point as in CMSIS-NN.
    connected : bool
        Whether a group has to be connected.
    least_size : int
        The least number of nodes of a group. Nodes that only move or convert elements do not count.
    preserved : tuple of str
        Composite operators that reach the claimant without being decomposed.
    rules : tuple of ClaimantRule
        Rules of the user. Rules of the most specific kind decide: ``name``, then ``where``, ``module``,
        ``op``.

    Examples
    --------
    >>> import tosaic
    >>> claimant = tosaic.Claimant.named("ethos-u55-128").deny(op="softmax", why="the host is more exact")
    >>> claimant.target
    'TOSA-1.0+INT+int16+int4'
    >>> len(claimant.rules)
    1
    """

    name: str
    kind: str
    target: str = ""
    arithmetic: str = ""
    semantics: Literal["tosa", "cmsis-nn"] = "tosa"
    rounding: str = "single_round"
    average_pool: str = "multiply"
    softmax: str = "expansion"
    connected: bool = True
    least_size: int = 1
    preserved: tuple[str, ...] = ()
    rules: tuple[ClaimantRule, ...] = ()

    @classmethod
    def named(
        cls, name: str, *, alias: str = "", least_size: int | None = None, connected: bool | None = None
    ) -> Claimant:
        """Returns the claimant of a name.

        Parameters
        ----------
        name : str
            A TOSA target such as ``TOSA-1.0+INT``, or one of `names`: ``ethos-u55-128``, ``vgf``,
            ``cortex-m55``, ``neutron``, ``host`` ...
        alias : str
            A name for reports, instead of `name`.
        least_size : int, optional
            The least number of nodes of a group; that of the built-in claimant by default.
        connected : bool, optional
            Whether a group has to be connected; as the built-in claimant by default. Without this, parallel
            branches are one group (horizontal merging).

        Raises
        ------
        InvalidGraph
            There is no claimant of this name. The message lists the names.

        Examples
        --------
        >>> import tosaic
        >>> tosaic.Claimant.named("cortex-m55").rounding
        'double_round'
        """
        from tosaic.devices.engines import EXAMPLES
        from tosaic.devices.registry import core_claimant

        if not isinstance(name, str):
            raise refusal("Claimant", "name", f"a string such as '{EXAMPLES[0]}'", name)
        if not isinstance(alias, str):
            raise refusal("Claimant", "alias", "a string", alias)
        if least_size is not None and (type(least_size) is not int or least_size < 0):
            raise refusal("Claimant", "least_size", "an integer of at least 0", least_size)
        if connected is not None and not isinstance(connected, bool):
            raise refusal("Claimant", "connected", "True or False", connected)
        fields = core_claimant(name).fields
        found = cls(kind=fields["name"], **fields)
        return replace(
            found,
            name=alias or found.name,
            least_size=found.least_size if least_size is None else least_size,
            connected=found.connected if connected is None else connected,
        )

    @property
    def spec(self) -> Target | None:
        """The target for which groups are lowered, as a value; None for claimants that do not read TOSA."""
        return Target.parse(self.target) if self.target else None

    @staticmethod
    def names() -> tuple[str, ...]:
        """Returns the names of the claimants other than TOSA targets.

        Examples
        --------
        >>> import tosaic
        >>> "vgf" in tosaic.Claimant.names()
        True
        """
        from tosaic.devices.registry import claimant_names

        return claimant_names()

    def deny(
        self,
        *,
        op: str | Sequence[str] | None = None,
        name: str | Sequence[str] | None = None,
        module: str | Sequence[str] | None = None,
        where: Callable[[_core.Node], bool] | None = None,
        why: str = "",
    ) -> Claimant:
        """Returns a copy that does not take the nodes that match.

        Exactly one of `op`, `name`, `module` and `where` is given.

        Parameters
        ----------
        op : str or sequence of str, optional
            Name of an operator of tosaic (``conv``, ``softmax``), or the target of a foreign operator. A list
            adds a rule for each entry, and each entry has to match a node of the program.
        name : str or sequence of str, optional
            Name of a node, of one of its results, or of the FX call from which it comes.
        module : str or sequence of str, optional
            Path of a module, such as ``features.3``; its inner modules match, too.
        where : callable, optional
            A function of a node that returns true for nodes that match.
        why : str
            Text for the reason.

        Raises
        ------
        InvalidGraph
            Not exactly one of the four is given, or one of them has a wrong type.

        Examples
        --------
        >>> import tosaic
        >>> claimant = tosaic.Claimant.named("vgf").deny(module="head")
        >>> claimant.rules[0].kind, claimant.rules[0].value
        ('module', 'head')
        """
        return self._with("deny", op, name, module, where, why)

    def only(
        self,
        *,
        op: str | Sequence[str] | None = None,
        name: str | Sequence[str] | None = None,
        module: str | Sequence[str] | None = None,
        where: Callable[[_core.Node], bool] | None = None,
        why: str = "",
    ) -> Claimant:
        """Returns a copy that takes only the nodes that match.

        It still takes a node only if the device supports it. With several rules of `only`, a node has to
        match all. Parameters and errors are as for `deny`. A program in which no node matches an entry is
        refused when the claimant judges it.

        Examples
        --------
        >>> import tosaic
        >>> claimant = tosaic.Claimant.named("vgf").only(op=["conv", "relu"])
        >>> claimant.rules[0].value
        "only(op=['conv', 'relu'])"
        """
        kind, values = _matched("only", op, name, module, where, why)
        others = _Others(kind, values)
        return replace(self, rules=(*self.rules, ClaimantRule("where", others.text, False, why, others)))

    def allow(
        self,
        *,
        op: str | Sequence[str] | None = None,
        name: str | Sequence[str] | None = None,
        module: str | Sequence[str] | None = None,
        where: Callable[[_core.Node], bool] | None = None,
    ) -> Claimant:
        """Returns a copy that takes the nodes that match even if they exceed the limits of the device.

        A rule cannot allow what does not lower to the target. It also makes an exception from a rule of
        `deny` of a less specific kind. Parameters and errors are as for `deny`.

        Examples
        --------
        >>> import tosaic
        >>> claimant = tosaic.Claimant.named("vgf").deny(op="conv").allow(name="conv2d")
        >>> [rule.allow for rule in claimant.rules]
        [False, True]
        """
        return self._with("allow", op, name, module, where, "")

    def _with(self, verb: str, op: Any, name: Any, module: Any, where: Any, why: Any) -> Claimant:
        kind, values = _matched(verb, op, name, module, where, why)
        rules = [
            ClaimantRule(kind, value, verb == "allow", why)
            if kind != "where"
            else ClaimantRule(kind, _name_of(value), verb == "allow", why, value)
            for value in values
        ]
        return replace(self, rules=(*self.rules, *rules))

    def supports(self, program: Any, node: str | None = None) -> tuple[Verdict, ...] | Verdict:
        """Says which nodes of a program this claimant takes and, if not, why.

        Parameters
        ----------
        program : Program, torch.export.ExportedProgram, Graph or path
            A program that is not lowered. A quantized program is judged with its quantization on values: a
            node means "dequantize the operands, compute, quantize the result".
        node : str, optional
            Name of a node, of one of its results, or of the FX call from which it comes.

        Returns
        -------
        tuple of Verdict, or Verdict
            A verdict for each node, in the order of the graph, or the verdict of `node`.

        Raises
        ------
        InvalidGraph
            The program is lowered already, it has no such node, a rule matches no node, a rule names an
            operator that does not exist, or two rules of one kind contradict each other.

        Examples
        --------
        >>> import torch
        >>> import tosaic
        >>> exported = torch.export.export(torch.nn.Softmax(-1), (torch.ones(2, 4),))
        >>> verdict = tosaic.Claimant.named("TOSA-1.0+INT").supports(exported, "softmax")
        >>> verdict.supported, verdict.reasons[0].rule
        (False, 'float')
        """
        from tosaic.opening.sources import program_of

        graph = planned_graph(program_of(program).graph)
        found = self.verdicts(graph)
        return found if node is None else found[_index_of(node, graph)]

    def verdicts(self, graph: _core.Graph, *, whole: bool = True) -> tuple[Verdict, ...]:
        """Returns the verdict of each node of a graph such as `PartitionPlan.graph`.

        Parameters
        ----------
        graph : Graph
        whole : bool
            False for the graph of a region: rules may then match no node of it.

        Raises
        ------
        InvalidGraph
            As `supports`.
        """
        from tosaic.devices.registry import core_claimant

        nodes = graph.nodes
        rules = []
        for rule in self.rules:
            if isinstance(rule.where, _Others):
                if whole:
                    rule.where.require_matches(graph)
                if not any(map(rule.where, nodes)):
                    continue  # the rule matches every node
            rules.append(_rule(rule, nodes))
        return tuple(
            Verdict(each.name, each.op, tuple(Reason(rule, Problem.from_parts(p)) for rule, p in reasons))
            for each, reasons in zip(
                nodes, _core.verdicts(graph, core_claimant(self.kind), rules, whole), strict=True
            )
        )

    def allows(self, graph: _core.Graph) -> list[bool] | None:
        """Returns, by node, whether a rule of `allow` decides about it; None if there is no such rule."""
        if not any(rule.allow for rule in self.rules):
            return None
        nodes = graph.nodes
        return _core.allowed_nodes(graph, [_rule(rule, nodes) for rule in self.rules])

    def scratch_bytes(self, program: Any, node: str | None = None) -> dict[str, int] | int:
        """Returns the bytes of the temporary buffers that the claimant's kernels need for the nodes it takes.

        Cortex-M claimants have kernels: CMSIS-NN's for their CPU. The buffers of a kernel have no
        meaning before and after it runs, so nodes that run one after another share them.

        Parameters
        ----------
        program : Program, torch.export.ExportedProgram, Graph or path
            As in `supports`.
        node : str, optional
            As in `supports`.

        Returns
        -------
        dict of str to int, or int
            By name of each node that the claimant takes, 0 for a kernel without a buffer, or the bytes of
            `node`. Claimants without kernels have an empty dict, and 0 for each node.

        Raises
        ------
        InvalidGraph
            As in `supports`, or the claimant does not take `node`.

        Examples
        --------
        >>> import torch
        >>> import tosaic
        >>> model, x = torch.nn.Conv2d(3, 8, 3).eval(), torch.randn(1, 3, 8, 8)
        >>> quantized = tosaic.quantize(torch.export.export(model, (x,)), [(x,)], progress=False)
        >>> tosaic.Claimant.named("cortex-m4").scratch_bytes(quantized, "conv2d")
        112
        >>> tosaic.Claimant.named("cortex-m55").scratch_bytes(quantized, "conv2d")
        128
        """
        from tosaic.devices.registry import core_claimant
        from tosaic.opening.sources import program_of

        graph = planned_graph(program_of(program).graph)
        sizes = _core.scratch_bytes(graph, core_claimant(self.kind))
        index = None if node is None else _index_of(node, graph)
        if not sizes:
            return {} if index is None else 0
        verdicts = self.verdicts(graph)
        if index is None:
            return {each.node: size for each, size in zip(verdicts, sizes, strict=True) if each}
        if not verdicts[index]:
            raise _not_taken(self.name, verdicts[index], graph.nodes[index])
        return sizes[index]


def _not_taken(claimant: str, verdict: Verdict, node: _core.Node) -> Exception:
    from tosaic.partitions.plan import place_of

    return invalid(
        "scratch_bytes",
        f"{claimant} does not take the node, so it has no kernel for it",
        expected="a node that the claimant takes",
        got=f"'{verdict.op}', which breaks {', '.join(reason.rule for reason in verdict.reasons)}",
        **place_of(node),
    )


def _matched(verb: str, op: Any, name: Any, module: Any, where: Any, why: Any) -> tuple[str, tuple[Any, ...]]:
    """Returns the kind of a rule, and the names or the function that it matches."""
    given = [(k, v) for k, v in zip(_KINDS, (op, name, module, where), strict=True) if v is not None]
    if len(given) != 1:
        raise invalid(
            verb,
            "a rule matches by one thing",
            expected="one of op, name, module and where",
            got=", ".join(kind for kind, _ in given) or "none of them",
        )
    kind, value = given[0]
    if kind == "where" and not callable(value):
        raise refusal(verb, "where", "a function of a node that returns a bool", value)
    is_list = kind != "where" and isinstance(value, list | tuple | set | frozenset)
    values = (
        tuple(sorted(value, key=str) if isinstance(value, set | frozenset) else value)
        if is_list
        else (value,)
    )
    if kind != "where" and not (values and all(isinstance(each, str) and each for each in values)):
        expected = "a list of strings that are not empty" if is_list else "a string that is not empty"
        raise refusal(verb, kind, expected, value)
    if not isinstance(why, str):
        raise refusal(verb, "why", "a string", why)
    return kind, values


def _name_of(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


@dataclass(frozen=True)
class _Others:
    """The nodes that a rule of `Claimant.only` denies: those that match none of its values."""

    kind: str
    values: tuple[Any, ...]

    @property
    def text(self) -> str:
        """The call that made the rule."""
        if self.kind == "where":
            return f"only(where={_name_of(self.values[0])})"
        shown_values = list(self.values) if len(self.values) > 1 else self.values[0]
        return f"only({self.kind}={shown_values!r})"

    def __call__(self, node: _core.Node) -> bool:
        """True for a node that matches no value. Quantize and dequantize nodes are never denied."""
        return node.op not in _CONVERSIONS and not any(self._matches(value, node) for value in self.values)

    def require_matches(self, graph: _core.Graph) -> None:
        """Refuses a value that matches no node of a graph and of its regions."""
        nodes = list(_with_regions(graph.nodes))
        for value in self.values:
            if any(self._matches(value, node) for node in nodes):
                continue
            known = {name for node in nodes for name in self._names(node)}
            raise invalid(
                "claimant",
                f"rule {self.text} matches no node",
                expected=f"a rule that matches a node of graph '{graph.name}'",
                got=_name_of(value) if self.kind == "where" else repr(value),
                hint="" if self.kind == "where" else _core.did_you_mean(value, sorted(known)),
            )

    def _matches(self, value: Any, node: _core.Node) -> bool:
        if self.kind == "where":
            answer = value(node)
            if not isinstance(answer, bool):
                raise refusal("Claimant", "where", f"True or False from '{_name_of(value)}'", answer)
            return answer
        if self.kind == "module":
            return any(path == value or path.startswith(f"{value}.") for path in self._names(node))
        return value in self._names(node)

    def _names(self, node: _core.Node) -> set[str]:
        if self.kind == "op":
            return {node.op, str((node.attrs or {}).get("target", node.op))}
        if self.kind == "module":
            return {str(origin.module_path) for origin in node.origins}
        own = {node.name, *(result.name for result in node.results)}
        return own | {str(origin.fx_name) for origin in node.origins}


def _with_regions(nodes: Iterable[_core.Node]) -> Iterator[_core.Node]:
    for node in nodes:
        yield node
        for region in node.regions:
            yield from _with_regions(region.nodes)


def _rule(rule: ClaimantRule, nodes: Any) -> tuple[str, str, Any, bool, str]:
    def matches(_: _core.Graph, index: int) -> bool:
        assert rule.where is not None
        node = nodes[index]
        try:
            answer = rule.where(node)
        except Exception as error:
            verb = "allow" if rule.allow else "deny"
            rule_text = f"{verb}(where={rule.value})"
            add_note(error, f"in rule {rule_text}, asked about node '{node.name}' ({node.op})")
            raise
        if not isinstance(answer, bool):
            raise refusal("Claimant", "where", f"True or False from '{rule.value}'", answer)
        return answer

    return rule.kind, rule.value, matches if rule.where else None, rule.allow, rule.why


def _index_of(name: Any, graph: _core.Graph) -> int:
    from tosaic.partitions.plan import nodes_named

    found = nodes_named(name, graph)
    if len(found) == 1:
        return found[0].id
    near = [each.name for each in graph.nodes]
    hint = f"The nodes of this call are {', '.join(each.name for each in found)}" if found else ""
    raise invalid(
        "supports",
        "several nodes come from this call" if found else "the program has no such node",
        expected="the name of a node",
        got=shown(name),
        hint=hint or (_core.did_you_mean(name, near) if isinstance(name, str) else ""),
    )
