"""Functions of the caller that a program runs instead of some of its operators."""

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
    """Override functions by the name of a node or operator. Copies of a program share one object.

    Attributes
    ----------
    functions : dict of str to callable
    """

    def __init__(self, functions: Mapping[str, Callable[..., Any]] | None = None) -> None:
        self.functions = dict(functions or {})

    def __deepcopy__(self, _: dict[int, Any]) -> Overrides:
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Pickles all functions.

        Raises
        ------
        InvalidGraph
            A function cannot be pickled; the message names its override.
        """
        for name, function in self.functions.items():
            try:
                pickle.dumps(function)
            except Exception as error:  # an object may raise anything
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
        """Logs a warning that `what`, which is made from the graph alone, does not have the functions."""
        if self.functions:
            names = ", ".join(f"'{name}'" for name in self.functions)
            _LOG.warning(
                "%s has the operators of the graph, without the functions that override %s", what, names
            )
