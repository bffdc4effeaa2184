"""Who takes nodes of a program: `Claimant`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tosaic import _core
from tosaic.problems import Problem


@dataclass(frozen=True)
class Verdict:
    reasons: tuple[tuple[str, Problem], ...]


@dataclass(frozen=True)
class Claimant:
    name: str
    target: str
    connected: bool = True
    least_size: int = 1

    @classmethod
    def named(cls, name: str) -> Claimant:
        from tosaic.pipeline import Pipeline
        return cls(name, Pipeline.default(name).target)

    def verdicts(self, graph: _core.Graph) -> list[Verdict]:
        found = []
        for node in graph.nodes:
            flags = np.full(len(graph.nodes), -1)
            flags[node.id] = 0
            part = _core.split(graph, flags)[1][0][0]
            reasons = [("lowering", Problem.from_parts(p)) for p in _core.problems(part, pipeline=self.target)]
            floats = any(v is not None and v.kind != "constant" and v.dtype == "f32" for v in (*node.operands, *node.results))
            if floats and "FP" not in self.target.split("+"):
                reasons.append(("float", Problem(what="floats", node=node.name)))
            found.append(Verdict(tuple(reasons)))
        return found
