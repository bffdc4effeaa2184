"""tosaic: from torch.export to verified TOSA.

`import tosaic` loads only the table of verbs: each public name is loaded on first use. Only numpy is
required. Only `tosaic.fx` and `tosaic.executorch` import torch, and only when they are used.
"""

from __future__ import annotations

from tosaic import verbs  # noqa: F401 - binds what methods of classes call

TYPE_CHECKING = False  # that of `typing`, which takes longer to load than the rest

if TYPE_CHECKING:
    from typing import Any


def __getattr__(name: str) -> Any:
    from tosaic.base.public_names import public_name

    found = public_name("tosaic", __path__[0], name)
    if name != "__all__":
        globals()[name] = found
    return found


def __dir__() -> list[str]:
    from tosaic.base.public_names import public_names

    return sorted(public_names("tosaic", __path__[0]))
