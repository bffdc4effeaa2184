"""The kernels that a runtime has to register, for programs whose host is kernel calls of ExecuTorch.

::

    kernels.py             `KernelList`: kernels with their dtypes, dim orders and users
    listing.py             `kernel_list`: of files and programs
    selected_operators.py  ExecuTorch's file for a selective build

Nothing here imports torch or ExecuTorch.
"""

from __future__ import annotations

from tosaic.base.public_names import names_of_stub

__getattr__, __dir__ = names_of_stub(__name__, __path__[0])
