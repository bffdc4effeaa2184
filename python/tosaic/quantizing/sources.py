"""Reads what `quantize` and `sensitivity` get: the program, samples and an executor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from tosaic import _core
from tosaic.annotation.config import QConfig
from tosaic.base.exported import is_exported_program
from tosaic.base.file_kinds import PT2
from tosaic.base.options import refusal
from tosaic.opening.sources import load_exported, program_of
from tosaic.program.overrides import all_nodes

if TYPE_CHECKING:
    from tosaic.ports.foreign import ForeignOp
    from tosaic.program.program import Program

_ATTENTION = frozenset(("sdpa", "softmax"))


def planned_source(
    program: Any, config: QConfig, bind: Any, operators: Sequence[ForeignOp], trust: bool
) -> tuple[Program, Any]:
    """Returns the program that a configuration is planned for, and its exported program, if there is one.

    Attentions are replaced by their parts, unless the configuration computes them with 32 bits.
    """
    exported = exported_of(program)
    source = program_of(program, bind=bind, operators=operators, trust=trust)
    if config.takes_attentions_apart() and any(node.op in _ATTENTION for node in all_nodes(source.graph)):
        apart = _with_attention_parts(exported, trust)
        if apart is not None and apart is not exported:
            return program_of(apart, bind=bind, operators=operators, trust=trust), apart
    return source, exported


def exported_of(program: Any) -> Any:
    """Returns `program` if it is an exported program, the path of a file that has one, or None."""
    if is_exported_program(program):
        from tosaic.fx.reading.explicit_dtypes import with_explicit_dtypes

        return with_explicit_dtypes(program)
    is_path = isinstance(program, str) or hasattr(program, "__fspath__")
    return program if is_path and PT2.holds(program) else None


def _with_attention_parts(exported: Any, trust: bool) -> Any:
    """Returns an exported program with attentions replaced by their parts; None if torch cannot read it."""
    if exported is None:
        return None
    try:
        from tosaic.fx.attention_parts import with_attention_parts

        found = exported if is_exported_program(exported) else load_exported(exported, trust=trust)
    except (ImportError, _core.InvalidGraph):
        return None
    return with_attention_parts(found)


def require_executor(where: str, executor: Any) -> None:
    """Raises InvalidGraph unless the object is an executor or None."""
    if executor is not None and not callable(getattr(executor, "submit", None)):
        raise refusal(where, "executor", "a concurrent.futures.Executor, or None", executor)


def graph_arrays(samples: Any, source: Program) -> Iterator[list[Any]]:
    """Yields, for each run, one array for each graph input that the caller passes."""
    from tosaic.calibration.streams import sample_arrays

    for arrays in sample_arrays(samples, source):
        yield source.graph_arrays(arrays)


def held_samples(samples: Any, source: Program) -> list[tuple[Any, ...]]:
    """Returns the arrays of each run, in memory, so that samples can be run several times."""
    from tosaic.calibration.streams import sample_arrays

    return [tuple(np.array(each) for each in arrays) for arrays in sample_arrays(samples, source)]


class Counted:
    """An iterator that counts what it yields."""

    def __init__(self, items: Iterator[list[Any]]) -> None:
        self._items = items
        self.count = 0

    def __iter__(self) -> Counted:
        return self

    def __next__(self) -> list[Any]:
        found = next(self._items)
        self.count += 1
        return found
