"""Checks of one random dag or program, by seed. Each returns a text, empty if all is right."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tosaic
from random_graphs.quantized import quantized_program
from tosaic import _core

from partitions.random_dags import NONE, RandomDag, fault_of, least_counts, random_dag

_SMALL, _CLAIMED = 7, 40


def check_least(seed: int) -> str:
    """Are the groups of a small dag as few as trying all finds?"""
    dag = random_dag(random.Random(seed), random.Random(~seed).randint(1, _SMALL))
    any_shape, connected = least_counts(dag)
    levels, proof = dag.dag.level_groups(dag.supported)
    pieces, at_least = dag.dag.connected_groups(dag.supported)
    faults = [
        fault_of(dag, levels.tolist()),
        fault_of(dag, pieces.tolist(), connected=True),
        "" if _count(levels) == any_shape == len(proof) else f"{_count(levels)} levels, {any_shape} suffice",
        "" if _count(pieces) == at_least == connected else f"{_count(pieces)} groups, {connected} suffice",
    ]
    return _text(dag, faults)


def check_claims(seed: int) -> str:
    """Can what up to three claimants take, with random rejections, run one after another?"""
    rng = random.Random(seed)
    dag = random_dag(rng, rng.randint(1, _CLAIMED))
    claims = [
        (
            np.array([rng.random() < 0.6 for _ in range(dag.size)]),
            rng.random() < 0.5,
            None,
            rng.randint(0, 3),
            lambda group, _: [rng.choice(group)] if rng.random() < 0.2 else [],
        )
        for _ in range(rng.randint(1, 3))
    ]
    groups, claimants, at_least, refused = dag.dag.claim(claims)
    faults = [fault_of(dag, groups.tolist())]
    for node, group in enumerate(groups.tolist()):
        before = len(claims) if group == NONE else claimants[group]
        if group != NONE and not claims[before][0][node]:
            faults.append(f"claimant {before} does not support node {node}")
        known = {claimant for refused_node, claimant, _ in refused if refused_node == node}
        missing = {k for k in range(before) if claims[k][0][node]} - known
        if missing:
            faults.append(f"no reason why claimants {missing} lack node {node}")
    for k, (_, connected, *_) in enumerate(claims):
        of_claimant = [g if g != NONE and claimants[g] == k else NONE for g in groups.tolist()]
        if len(set(of_claimant) - {NONE}) < at_least[k]:
            faults.append(f"claimant {k} has fewer groups than the least")
        if connected:
            faults.append(fault_of(dag, of_claimant, connected=True))
    return _text(dag, faults)


def check_split(seed: int) -> str:
    """Does a random program compute the same, to the bit, when its groups run as graphs of their own?"""
    program, args = quantized_program(seed)
    arrays = program.arrays(*args)
    faults = [_fault_of_split(seed, program.graph, arrays)]
    for target in ("TOSA-1.0+INT+int16", "TOSA-1.0+INT+FP+int16"):
        try:
            lowered = tosaic.lower(program, target=target)
        except (tosaic.UnsupportedOp, tosaic.SpecViolation):
            continue
        faults.append(_fault_of_split(seed, lowered.stages["canonical"], arrays))
        break
    return "\n".join(filter(None, faults))


def _fault_of_split(seed: int, graph: _core.Graph, arrays: Sequence[Any]) -> str:
    rng = random.Random(seed)
    claims = [
        (np.array([rng.random() < 0.7 for _ in graph.nodes]), rng.random() < 0.5, None, 0, None)
        for _ in range(2)
    ]
    host, parts = _core.split(graph, _core.Dag.of(graph).claim(claims)[0])
    whole = _core.Session(graph).run(arrays)
    models = {f"group{i}": _model(_core.Session(part)) for i, (part, _, _) in enumerate(parts)}
    apart = _core.Session(host, override_ops=models).run(arrays)
    differing = [
        i
        for i, (a, b) in enumerate(zip(whole, apart, strict=True))
        if np.asarray(a).tobytes() != np.asarray(b).tobytes()
    ]
    return f"seed {seed}, stage {graph.stage}: outputs {differing} differ" if differing else ""


def _model(session: _core.Session) -> Callable[..., Any]:
    def run(*arrays: Any) -> Any:
        outputs = session.run(arrays)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return run


def _count(groups: Any) -> int:
    return int(groups.max(initial=NONE)) + 1


def _text(dag: RandomDag, faults: list[str]) -> str:
    found = [fault for fault in faults if fault]
    return f"{dag}: {found}" if found else ""
