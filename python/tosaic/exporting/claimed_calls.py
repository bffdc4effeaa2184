"""Quantization by claim: which claimant takes a call decides how the call is quantized.

::

    program --quantize on one sample--> draft --partition--> claims
    program, claims, rules of devices --quantize on all samples--> quantized program

A claimant judges quantized nodes: a float convolution has no integers that it could take. So the claims come
from a draft with the qparams of one sample. They hardly depend on the numbers. Where the claims of the final
program differ, a note names the call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tosaic.partitions.claimant import Claimant
from tosaic.partitions.plan import HOST, PartitionPlan
from tosaic.partitions.propose import propose
from tosaic.recipes.builtin import device_rules, rule_for

_DRAFTS = 2
_CONVERSIONS = ("quantize", "dequantize")
Claims = Mapping[str, frozenset[str]]
"""By call, the claimants that take its nodes."""


def claims_of(plan: PartitionPlan) -> Claims:
    """Returns the claimants of each call of a program, also of calls in regions.

    The nodes that quantize an input do not count: they have the origin of the call that reads it.
    """
    found: dict[str, set[str]] = {}
    for _, each in plan.all_plans():
        for node, group in zip(each.graph.nodes, each.group_of, strict=True):
            if node.op in _CONVERSIONS:
                continue
            claimant = HOST if group is None else plan.group(group).claimant
            for name in {node.name, *(origin.fx_name for origin in node.origins)}:
                found.setdefault(name, set()).add(claimant)
    return {name: frozenset(claimants) for name, claimants in found.items()}


def rules_by_claim(
    claimants: Sequence[Claimant], quantized_with: Callable[[Sequence[Any]], Any]
) -> tuple[tuple[Any, ...], Claims]:
    """Returns the rules of the claimants' devices for the calls that each takes, and the claims.

    Parameters
    ----------
    claimants : sequence of Claimant
        In order of priority.
    quantized_with : callable
        Returns a draft: the program quantized with additional rules.
    """
    bound = list(device_rules(claimants))
    rules = tuple(rule for _, rule in bound)  # some claimants take what their rules have changed only
    claims: Claims = {}
    for _ in range(_DRAFTS if bound else 0):
        draft = quantized_with(rules)
        found = claims_of(propose(draft.graph, claimants, gains=False).plan)
        if found == claims:
            break
        claims = found
        rules = tuple(
            rule_for(rule, [call for call, takers in claims.items() if name in takers])
            for name, rule in bound
        )
    return rules, claims


def changed_claims(claims: Claims, plan: PartitionPlan) -> list[str]:
    """Returns a sentence for each call that another claimant takes than the one that it is quantized for."""
    after = claims_of(plan)
    return [
        f"'{call}' is quantized for {_text(takers)}, and {_text(after[call])} takes it"
        for call, takers in claims.items()
        if call in after and after[call] != takers
    ]


def _text(claimants: frozenset[str]) -> str:
    return " and ".join(sorted(claimants))
