"""The bridge to torch: only this folder imports torch, and only when one of its functions is called.

`from_exported` reads a ``torch.export.ExportedProgram`` into a `Graph` and a `Signature`; the signature needs
no torch afterwards. `apply_layout` writes a layout plan into a copy of such a program.
"""

from __future__ import annotations

from tosaic.base.public_names import names_of_stub

__getattr__, __dir__ = names_of_stub(__name__, __path__[0])
