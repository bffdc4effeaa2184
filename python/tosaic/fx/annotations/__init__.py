"""Annotations of PT2E quantizers as plans: read from a graph of torch, changed by rules, written back.

Only `tosaic.fx` imports this package, and only when one of its functions is used: it needs torchao. Without
torchao, the import of any module of this package raises an ImportError that names the extra.
"""

from __future__ import annotations

try:
    import torchao  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"PT2E quantizers need {error.name}: pip install 'tosaic[torch]'", name=error.name
    ) from error
