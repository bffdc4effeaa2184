"""Remarks on accepted facts that an import or a lowering found: data for reports, and lines in the log."""

from __future__ import annotations

import logging
from dataclasses import dataclass

_log = logging.getLogger("tosaic.fx")


@dataclass(frozen=True)
class Diagnostic:
    """One remark of an import or of a lowering.

    Attributes
    ----------
    rule : str
        ``copied-weight``, ``ambiguous-order``, ``opaque``, ``description``, ``unseen-update`` or
        ``training``; for a ``.tosa`` file ``repeated-zero-point``; for a ``.pt2`` file ``torch-loader``; of a
        lowering ``grown-weight`` or ``two-layouts``.
    message : str
        The fact, and why it matters.
    name : str
        The input, constant or FX node of the remark.
    """

    rule: str
    message: str
    name: str


class Diagnostics:
    """Collects the remarks in order.

    Parameters
    ----------
    logged : bool
        Whether each remark is logged, too.
    """

    def __init__(self, *, logged: bool = True) -> None:
        self.items: list[Diagnostic] = []
        self._logged = logged

    def note(self, rule: str, message: str, name: str) -> None:
        """Adds a remark."""
        self.items.append(Diagnostic(rule, message, name))
        if self._logged:
            _log.log(logging.WARNING if rule == "training" else logging.INFO, "%s: %s", rule, message)
