"""Functions of the caller that a program runs in the place of some of its operators."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable, Mapping
from typing import Any

from tosaic import _core
from tosaic.options import shown

__all__ = ["Overrides"]

_LOG = logging.getLogger(__name__)


class Overrides:
    """Functions by the names of nodes and operators; copies of a program share them.

    Attributes
    ----------
    functions : dict of str to callable
    """

    def __init__(self, functions: Mapping[str, Callable[..., Any]] | None = None) -> None:
        self.functions = dict(functions or {})

    def __deepcopy__(self, _: dict[int, Any]) -> Overrides:
        return self

    def __getstate__(self) -> dict[str, Any]:
        """All functions, if each can be pickled.

        Raises
        ------
        InvalidGraph
            One cannot; the message names it.
        """
        for name, function in self.functions.items():
            try:
                pickle.dumps(function)
            except Exception as error:  # as many kinds as there are objects
                raise _core.make_error(
                    _core.InvalidGraph,
                    where="pickle",
                    what=f"the override of '{name}' cannot be pickled",
                    expected="a function at the top level of a module, or an object that pickle takes",
                    got=shown(function),
                    hint="Pickle the program without it, and call with_overrides where it is unpickled",
                ) from error
        return {"functions": self.functions}

    def warn_of_loss(self, what: str) -> None:
        """Logs that what is made of a program has its graph alone."""
        if self.functions:
            names = ", ".join(f"'{name}'" for name in self.functions)
            _LOG.warning(
                "%s has the operators of the graph, without the functions that override %s", what, names
            )
