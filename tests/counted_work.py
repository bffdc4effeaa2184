"""Counts the work of calls, for tests of how it grows: `Work`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from tosaic import _core

__all__ = ["Work"]


class Work:
    """Counts the instructions of Python, and the entries of the lists that the core makes for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        for owner, names in ((_core.Graph, ("inputs", "outputs")), (_core.AnnotationPlan, ("slots",))):
            for name in names:
                monkeypatch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, made: Any) -> Any:
        def listed(owner: Any) -> Any:
            found = made.__get__(owner, type(owner))
            found = found() if callable(found) else found
            self.count += len(found)
            return found

        return property(listed) if isinstance(made, property) else listed

    def _trace(self, frame: Any, event: str, _: Any) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self.count += event == "opcode"
        return self._trace

    def of(self, call: Callable[[], Any]) -> tuple[int, Any]:
        before, traced = self.count, sys.gettrace()
        sys.settrace(self._trace)
        try:
            made = call()
        finally:
            sys.settrace(traced)
        return self.count - before, made
