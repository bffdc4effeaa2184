"""Verbs: declared functions whose implementation is in a higher folder, which may import the caller's class.

::

    Lowered.save ── calls ──▶ verb save_pte ◀── binds ── tosaic.verbs ── imports ──▶ tosaic.pte.save
         ▲                                                                                 │
         └─────────────────────────────────── imports ─────────────────────────────────────┘

If a higher folder prints, writes or compares the objects of a class, the class cannot import that folder. It
declares a verb and calls it. The module `tosaic.verbs`, above all folders, binds the verb to a function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

from tosaic.base.bindings import BINDINGS

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Verb(Generic[_P, _R]):
    """A function of a higher folder, bound when it is first called.

    It decorates its declaration: a function without a body, which has the name, the parameters and the type
    of the result.
    """

    def __init__(self, declaration: Callable[_P, _R]) -> None:
        self.name = declaration.__name__
        self.__doc__ = declaration.__doc__
        self._function: Callable[_P, _R] | None = None

    def bind(self, function: Callable[_P, _R]) -> None:
        """Sets the function that the verb calls."""
        self._function = function

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        """Calls the function."""
        if self._function is None:
            BINDINGS[self.name]()
        assert self._function is not None, self.name
        return self._function(*args, **kwargs)
