"""The kernels that a runtime has to register, for programs whose host is kernel calls of ExecuTorch.

::

    kernels.py             `KernelList`: kernels with their dtypes, dim orders and users
    listing.py             `kernel_list`: of files and programs
    selected_operators.py  ExecuTorch's file for a selective build

Nothing here imports torch or ExecuTorch.
"""
