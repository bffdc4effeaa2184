"""Annotations of PT2E quantizers as plans: read from a graph of torch, changed by rules, written back.

Only `tosaic.fx` imports this package, and only when one of its functions is used: it needs torchao. Without
torchao, the import of any module of this package raises an ImportError that names the extra.
"""

from __future__ import annotations

from tosaic.base.extras import naming_extras

with naming_extras("the flow of PT2E quantizers"):
    import torchao  # noqa: F401
