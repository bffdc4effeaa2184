"""Recognizes exported programs of torch without torch."""

from __future__ import annotations

from typing import Any


def is_exported_program(source: Any) -> bool:
    """True for an exported program of torch. Only attributes are looked at, so torch need not be loaded."""
    return hasattr(source, "graph_module") and hasattr(source, "graph_signature")
