"""Random programs with one to three claimants and random rules of the user, by seed.

Six kinds of programs take turns. Programs of torch have up to 60 calls from the whole operator table.
Programs of `layouts.graphs` have at most 12 nodes, whose dim orders conflict, and are made in a millisecond.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import tosaic
from layouts.graphs import random_graph
from random_graphs.generate import generate
from random_graphs.quantized import quantized_program
from tosaic import _core

__all__ = ["DEVICES", "KINDS", "RandomProgram", "decides", "kind_of", "random_program"]

Array = np.ndarray[Any, Any]

FULL = "TOSA-1.0+INT+FP+int16"
TARGETS = ("TOSA-1.0+INT", "TOSA-1.0+FP", "TOSA-1.0+INT+FP", "TOSA-1.0+INT+int16", FULL)
DEVICES = ("ethos-u55-128", "ethos-u85-256", "vgf", "cortex-m55", "neutron", "host")
_SPECIFIC = ("name", "where", "module", "op")
_TURNS = 20
"""The number of seeds after which the kinds of programs begin again."""


@dataclass(frozen=True)
class RandomProgram:
    """A program with arguments and claimants.

    Attributes
    ----------
    seed : int
    kind : str
        One of `KINDS`.
    program : Program
    args : tuple
        Arguments of a run.
    claimants : tuple of Claimant
    connected : bool
        The option of `tosaic.partition` of this name.
    """

    seed: int
    kind: str
    program: tosaic.Program
    args: tuple[Any, ...]
    claimants: tuple[tosaic.Claimant, ...]
    connected: bool

    @property
    def is_quantized(self) -> bool:
        """Whether the program has integers that represent numbers."""
        return "quantized" in self.kind or self.kind == "hostile"

    def claimant(self, name: str) -> tosaic.Claimant:
        """The claimant of a name."""
        return next(each for each in self.claimants if each.name == name)


_NOT_QUANTIZED = ("nothing of the program is quantized", "lead in a circle")
"""Refusals of `tosaic.quantize`."""

Made = tuple[tosaic.Program, tuple[Any, ...]]


def _of_torch(seed: int) -> Made:
    program = generate(seed)
    args = program.arguments()
    return tosaic.from_exported(torch.export.export(program.module(), args)), args


def _of_layouts(seed: int) -> Made:
    graph = random_graph(seed)
    rng = np.random.default_rng(seed)
    return tosaic.program.from_graph(graph), tuple(_laid_out(port, rng) for port in graph.inputs)


def _laid_out(port: Any, rng: np.random.Generator) -> Array:
    drawn = np.transpose(rng.standard_normal(port.shape).astype(np.float32), port.dim_order)
    return np.asarray(drawn, order="C").transpose(np.argsort(port.dim_order))


def _quantized(made: Callable[[int], Made]) -> Callable[[int], Made]:
    """Returns a maker of the same programs, quantized by `tosaic.quantize` if it can quantize anything."""

    def make(seed: int) -> Made:
        program, args = made(seed)
        try:
            return tosaic.quantize(program, [args], progress=False), args
        except tosaic.InvalidGraph as error:
            if not any(known in str(error) for known in _NOT_QUANTIZED):
                raise
            return program, args

    return make


KINDS: dict[str, tuple[int, Callable[[int], Made]]] = {
    "quantized everywhere": (1, quantized_program),
    "hostile": (1, lambda seed: quantized_program(seed, hostile=True)),
    "torch": (2, _of_torch),
    "torch, quantized": (4, _quantized(_of_torch)),
    "layouts": (5, _of_layouts),
    "layouts, quantized": (7, _quantized(_of_layouts)),
}
"""By name: the number of seeds of 20, and what makes the program of a seed."""

_ORDER = random.Random(0).sample([kind for kind, (share, _) in KINDS.items() for _ in range(share)], _TURNS)


def kind_of(seed: int) -> str:
    """Returns the kind of the program of a seed."""
    return _ORDER[seed % _TURNS]


def random_program(seed: int) -> RandomProgram:
    """Returns the program of a seed, with its claimants."""
    kind = kind_of(seed)
    program, args = KINDS[kind][1](seed)
    graph = tosaic.partition(program, ["host"]).graph
    rng = random.Random(seed)
    count = rng.randint(1, 3)
    claimants = tuple(_claimant(rng, i, graph) for i in range(count))
    if rng.random() < 0.4:  # the last one takes what the others leave, often with the same arithmetic
        target = rng.choice([FULL, *(each.arithmetic for each in claimants if "INT" in each.target)])
        claimants = (*claimants[:2], tosaic.Claimant.named(target, alias="rest", least_size=0))
    return RandomProgram(seed, kind, program, args, claimants, rng.random() < 0.6)


def _claimant(rng: random.Random, index: int, graph: _core.Graph) -> tosaic.Claimant:
    name = rng.choice(TARGETS) if rng.random() < 0.6 else rng.choice(DEVICES)
    least = rng.choice((None, None, 0, 1, 2, 4))
    claimant = tosaic.Claimant.named(name, alias=f"{name}#{index}", least_size=least)
    claimant = replace(claimant, connected=rng.random() < 0.5)
    for kind in rng.sample(_SPECIFIC, rng.randint(0, 3)):
        claimant = _with_rules(rng, kind, claimant, list(graph.nodes))
    return claimant


def _with_rules(
    rng: random.Random, kind: str, claimant: tosaic.Claimant, nodes: list[_core.Node]
) -> tosaic.Claimant:
    """Adds rules of one kind, which all deny or all allow, so that they do not contradict each other."""
    verb = claimant.deny if rng.random() < 0.8 else claimant.allow
    values: Iterable[Any]
    if kind == "where":
        share, salt = rng.choice((0.1, 0.3, 0.6)), rng.random()

        def drawn(node: _core.Node) -> bool:
            return random.Random(f"{salt} {node.name}").random() < share

        values = [drawn] if any(map(drawn, nodes)) else []
    else:
        known = {
            "name": sorted({node.name for node in nodes}),
            "op": sorted({node.op for node in nodes} - {"opaque"}),
            "module": sorted({origin.module_path for node in nodes for origin in node.origins} - {""}),
        }[kind]
        values = rng.sample(known, min(len(known), rng.choice((1, 1, 2, 3))))
    for value in values:
        claimant = verb(**{kind: value})
        verb = claimant.allow if claimant.rules[-1].allow else claimant.deny
    return claimant


def calls_of_nodes(nodes: Collection[_core.Node]) -> dict[str, list[Any]]:
    """Returns the calls that each node comes from, by the name of the node.

    A dequantize node has none if other nodes are what is left of its calls, and nodes read it: it was made
    for these readers.
    """
    others = {origin.fx_name for node in nodes if node.op != "dequantize" for origin in node.origins}
    read = {value.id for node in nodes for value in node.operands if value is not None}
    return {
        node.name: []
        if node.op == "dequantize"
        and node.results[0].id in read
        and all(origin.fx_name in others for origin in node.origins)
        else list(node.origins)
        for node in nodes
    }


def decides(claimant: tosaic.Claimant, node: _core.Node, calls: Collection[Any]) -> bool | None:
    """Whether the rules allow or deny a node, by the most specific kind that matches it. None: none does.

    `calls` are the origins that count for the node.
    """
    for kind in _SPECIFIC:
        for rule in claimant.rules:
            if rule.kind == kind and _matches(rule, node, calls):
                return rule.allow
    return None


def _matches(rule: tosaic.partitions.ClaimantRule, node: _core.Node, calls: Collection[Any]) -> bool:
    if rule.where is not None:
        return rule.where(node)
    if rule.kind == "op":
        return rule.value == node.op
    if rule.kind == "module":
        paths = [origin.module_path for origin in calls]
        return any(path == rule.value or path.startswith(rule.value + ".") for path in paths)
    names = [origin.fx_name for origin in calls]
    return rule.value in (node.name, *(result.name for result in node.results), *names)
