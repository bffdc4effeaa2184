"""ExecuTorch's edge dialect, for programs in it that `tosaic.fx` changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tosaic.executorch.conversions import conversion
from tosaic.fx.dialects import Call, Dialect


class EdgeDialect(Dialect):
    """The dialect of programs that ``to_edge`` makes."""

    def quantized(self, name: str) -> Any:
        """See `Dialect`."""
        from executorch.exir.dialects._ops import ops

        return getattr(ops.edge.quantized_decomposed, name).default

    def conversion(self, program: Any, memory_format: Any, order: Sequence[int]) -> list[Call] | None:
        """See `Dialect`."""
        found = conversion(program, memory_format, order)
        return None if found is None else [(found[0], (), found[1])]
