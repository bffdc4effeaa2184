"""`kernel_list`: the kernels and backends that files and programs call."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any, TypeAlias

from tosaic import _core
from tosaic.base.options import refusal, shown
from tosaic.pte.file import PteFile, load_pte
from tosaic.pte.kernel_names import BackendUse, KernelList, KernelUse
from tosaic.pte.save import methods_of, pte_without_payloads

if TYPE_CHECKING:
    from tosaic.lowering.lowered import Lowered
    from tosaic.partitions.split_lowered import SplitLowered
    from tosaic.program.program import Program

    Source: TypeAlias = (
        str | os.PathLike[str] | bytes | PteFile | Program | Lowered | SplitLowered | Mapping[str, Any] | Any
    )

_WHERE = "kernel_list"
_UNNAMED = "program"


def kernel_list(programs: Source | Sequence[Source], *, names: Sequence[str] | None = None) -> KernelList:
    """Returns the kernels that a runtime has to register for a file or program, or for several.

    These are the kernels of operators on the host. Delegates need a backend instead, which the list also
    has. For several programs, it is the smallest list that covers all of them.

    Parameters
    ----------
    programs : one of the following, or a sequence of them
        - A ``.pte`` file: its path, its bytes, or the PteFile that `load_pte` returns.
        - What `save_pte` writes: a Program, Lowered or SplitLowered, or a mapping of these by method. The
          list covers the kernels of the file that it would write. No file is written, and no tool compiles
          delegates.
        - A program manager of ExecuTorch: the list covers the kernels of its ``.pte`` file. ``to_executorch``
          is called on a copy of one that is still in the edge dialect.
    names : sequence of str, optional
        A name for each program, for the list's uses. Default: the path or name of a file, and
        ``program`` for others.

    Raises
    ------
    InvalidGraph
        There is no program, a value is none of these, or a file is no ``.pte`` file.
    MissingFileError
        There is no such file.
    UnsupportedOp
        A program has no counterpart in a ``.pte`` file; the message has all reasons.

    Examples
    --------
    >>> kernels = tosaic.registration.kernel_list(["detector.pte", "tracker.pte"])  # doctest: +SKIP
    >>> print(kernels)  # doctest: +SKIP
    >>> kernels["aten::add.out"].dtypes  # doctest: +SKIP
    ('float32',)
    """
    sources: list[Any] = list(programs) if isinstance(programs, list | tuple) else [programs]
    if not sources:
        raise refusal(_WHERE, "programs", "at least one program", programs)
    given: list[Any] = [None] * len(sources) if names is None else list(names)
    is_named = len(given) == len(sources) and all(isinstance(name, str) and name for name in given)
    if isinstance(names, str) or (names is not None and not is_named):
        raise refusal(_WHERE, "names", f"a name for each program, {len(sources)} in all", names)
    return KernelList.union(map(_listed, sources, given))


def _listed(source: Any, name: str | None) -> KernelList:
    if isinstance(source, str | os.PathLike):
        return _of_file(load_pte(source, sidecar=False), name or os.fspath(source))
    if isinstance(source, PteFile):
        return _of_file(source, name or source.name or _UNNAMED)
    return _of_file(PteFile(_core.read_pte(_bytes_of(source))), name or _UNNAMED)


def _bytes_of(source: Any) -> bytes:
    """Returns the ``.pte`` file of a program."""
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source)
    if hasattr(source, "to_executorch") and hasattr(source, "methods"):  # an edge program manager
        source = deepcopy(source).to_executorch()
    if isinstance(getattr(source, "buffer", None), bytes | bytearray | memoryview):
        return bytes(source.buffer)
    if not isinstance(source, Mapping) and not hasattr(source, "graph"):
        expected = (
            "the path or bytes of a .pte file, a PteFile, a Program, a Lowered, a SplitLowered, a mapping of "
            "these, or a program manager of ExecuTorch"
        )
        raise refusal(_WHERE, "programs", expected, shown(source))
    return pte_without_payloads(methods_of(source, _WHERE))


def _of_file(file: PteFile, name: str) -> KernelList:
    uses, backends = [], []
    for method in file.methods.values():
        uses += [
            KernelUse(each.operator, each.variant, name, method.name, each.calls)
            for each in method.kernel_calls
        ]
        called = Counter(each.backend for each in method.delegates)
        backends += [BackendUse(backend, name, method.name, count) for backend, count in called.items()]
    return KernelList(tuple(uses), tuple(backends))
