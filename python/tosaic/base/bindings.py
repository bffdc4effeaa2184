"""The table of functions that bind verbs; see `tosaic.base.verbs`. `import tosaic` loads and fills it."""

from __future__ import annotations

from collections.abc import Callable

BINDINGS: dict[str, Callable[[], None]] = {}
"""By name of a verb: the function that returns the verb's implementation."""
