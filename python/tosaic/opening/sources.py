"""Makes programs of what users pass: exported programs of torch, graphs and files."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tosaic import _core
from tosaic.base.exported import is_exported_program
from tosaic.base.extras import naming_extras
from tosaic.base.file_kinds import PT2, PTE, TOSA, FileKind
from tosaic.base.options import checked, file_name, file_path, invalid, is_mapping
from tosaic.base.reading import read_bytes
from tosaic.base.visible import visible
from tosaic.ports.foreign import operators_by_target
from tosaic.program.overrides import all_nodes
from tosaic.program.program import HasProgram, Program

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tosaic.base.diagnostics import Diagnostic
    from tosaic.ports.foreign import ForeignOp
    from tosaic.torch_operators.program_reader import ImportedProgram


_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class OpenOptions:
    """The options of `open_program`. A reader ignores options that do not apply to its kind of file."""

    bind: Any = None
    operators: Sequence[ForeignOp] = ()
    trust: bool = False


@checked
def from_exported(
    ep: Any, *, bind: Any = None, method: str = "forward", operators: Sequence[ForeignOp] = ()
) -> Program:
    """Reads an exported program of torch into a tosaic program.

    Parameters
    ----------
    ep : torch.export.ExportedProgram
        May be decomposed or not, strict or not, in training or inference form, in plain ATen or in
        ExecuTorch's edge dialect. ExecuTorch's program manager, which has a method ``exported_program()``, is
        accepted too.
    bind : mapping or example inputs, optional
        Sizes of symbolic dimensions. Either a mapping from input (path, name or index) and axis to size, such
        as ``{"x": {0: 1}}``, or example inputs: a tuple of positional arguments, ``(args, kwargs)``, or a
        dict of arrays by input name.
    method : str
        Name of the graph.
    operators : sequence of ForeignOp
        Descriptions of operators that tosaic does not have. Calls of these operators are imported, run,
        lowered and compared as the descriptions say.

    Returns
    -------
    Program
        A program at stage ``exported``. Its weights are views of torch's memory, and they keep that memory
        alive. Only weights that are complex or not dense, and buffers that the program writes, are copied.
        The first run, comparison, save or copy of the program, or `Program.snapshot`, copies all weights.
        After that, changes of the module do not affect the program. Before that, a use of a weight raises
        `InvalidGraph` if the weight's memory was replaced, resized or freed, or if torch has counted an
        in-place change of the weight. `lower` copies the weights of the lowered program, but not the weights
        of this one.

    Raises
    ------
    UnsupportedOp
        A symbolic dimension has no size, the program mutates memory that another live value shares, or a
        weight has an unsupported dtype or is not in CPU memory.
    InvalidGraph
        `ep` is not an exported program, it is inconsistent, or its shapes contradict the sizes in `bind`.

    Examples
    --------
    >>> program = tosaic.from_exported(torch.export.export(model, (x,)))  # doctest: +SKIP
    """
    start = time.perf_counter()
    described = operators_by_target("from_exported", operators)
    program = _program_of_import(_imported(_exported_program(ep), bind, method, described), described)
    program.import_seconds = time.perf_counter() - start
    return program


def _imported(ep: Any, bind: Any, method: str, described: Mapping[str, ForeignOp]) -> ImportedProgram:
    from tosaic.fx.reading.importing import import_program

    return import_program(ep, bind=bind, method=method, operators=described)


def _program_of_import(
    imported: ImportedProgram, described: Mapping[str, ForeignOp], *notes: Diagnostic
) -> Program:
    return Program.of_import(
        imported.graph,
        imported.signature,
        diagnostics=(*notes, *imported.diagnostics, *_without_calls(imported.graph, described)),
        verify=imported.verify,
        operators=[*described.values(), *imported.by_torch],
        module_types=imported.module_types,
    )


def _without_calls(graph: _core.Graph, described: Mapping[str, ForeignOp]) -> list[Diagnostic]:
    """Makes remarks on descriptions that match no call, if a foreign call of the graph has no description.

    The target of such a description is probably misspelt, so the remarks are logged as warnings, too.
    """
    from tosaic.base.diagnostics import Diagnostic

    if not described:
        return []
    called = foreign_targets(graph)
    unknown = ", ".join(f"'{target}'" for target in sorted(called - described.keys()))
    notes = [
        Diagnostic(
            "description",
            f"the description of '{target}' matches no call; calls without a description: {unknown}",
            "",
        )
        for target in described
        if unknown and target not in called
    ]
    for note in notes:
        _LOG.warning("%s", visible(note.message))
    return notes


def foreign_targets(graph: _core.Graph) -> set[str]:
    """Returns the targets of the foreign operators of a graph and its regions."""
    return {str(node.attrs["target"]) for node in all_nodes(graph) if node.op == "opaque"}


@checked
def program_of(
    source: Any, *, bind: Any = None, operators: Sequence[ForeignOp] = (), trust: bool = False
) -> Program:
    """Returns `source` as a `Program`.

    `source` is a `Program`, an object with a program (`as_program`), a `Graph`, an exported program of torch
    or a path. The program of a `Lowered` is its stage ``tosa``, that of a `SplitLowered` its host, and that
    of a `PteFile` its method ``forward`` or its only method. `bind` is ignored if `source` cannot have
    symbolic dimensions. `operators` are for an exported program or a file, and ignored otherwise. `trust` is
    for a path, as in `open_program`.

    Raises
    ------
    InvalidGraph
        `source` is none of these.
    """
    if isinstance(source, HasProgram) and not isinstance(source, type):
        return source.as_program()
    if isinstance(source, _core.Graph):
        return Program(source)
    if isinstance(source, str | os.PathLike):
        return _open(source, bind, operators, trust)
    return from_exported(source, bind=bind, operators=operators)


def require_use(where: str, bind: Any, *sources: Any, operators: Any = ()) -> None:
    """Raises InvalidGraph if `bind` or `operators` are given, but apply to none of the sources.

    Symbolic dimensions are in exported programs and ``.pt2`` files; descriptions of operators apply to
    exported programs and files.
    """
    operators_by_target(where, operators)
    if operators and not any(
        isinstance(source, str | os.PathLike) or _takes_sizes(source) for source in sources
    ):
        raise invalid(
            where,
            "'operators' describe nothing: a program has the descriptions that it was imported with",
            expected="a torch.export.ExportedProgram or a path",
            got=" and ".join(type(source).__name__ for source in sources),
            hint="Give the descriptions to tosaic.from_exported, or to Program.with_operators",
        )
    if bind is None or (is_mapping(bind) and not bind) or any(map(_takes_sizes, sources)):
        return
    given = " and ".join(source if isinstance(source, str) else type(source).__name__ for source in sources)
    raise invalid(
        where,
        "'bind' has nothing to bind",
        expected="a torch.export.ExportedProgram or a .pt2 file, whose dimensions may be symbolic",
        got=given,
        hint="Give the sizes to tosaic.from_exported, or where the file is made",
    )


def _takes_sizes(source: Any) -> bool:
    if isinstance(source, str | os.PathLike):
        return any(kind.has_symbols and kind.holds(source) for kind in READERS)
    return not isinstance(source, HasProgram | _core.Graph)


@checked
def open_program(
    path: str | os.PathLike[str],
    *,
    bind: Any = None,
    operators: Sequence[ForeignOp] = (),
    trust: bool = False,
) -> Program:
    """Reads a program from a ``.pt2``, ``.tosa`` or ``.pte`` file, graph text, or `Program.save`'s archive.

    For a ``.pte`` file, the program is the method ``forward``, or the only one; `tosaic.load_pte` has all.

    A ``.pt2`` file is read without torch: its weights are views of the mapped file. The libraries whose
    operators it calls need not be installed. If tosaic cannot read a call itself, it needs torch's
    decompositions: then torch's own loader reads the file if torch is installed, imports these libraries, and
    a diagnostic says so. The loader gets a copy of the file that runs no code. A file that needs code, such
    as a custom object, is refused unless you trust it.

    Parameters
    ----------
    path : path
    bind : optional
        Sizes of symbolic dimensions, as in `from_exported`. Accepted only for a ``.pt2`` file.
    operators : sequence of ForeignOp
        Descriptions of operators that tosaic does not have. A ``.pt2`` file is imported with them
        (`from_exported`); a program of another file gets their kernels (`Program.with_operators`).
    trust : bool
        Whether torch's loader gets the file itself, which may then run code: its pickles, its custom objects,
        and Python in its sizes, names and checks. Only for files whose author you trust.

    Raises
    ------
    MissingFileError
        There is no such file. The error is a ``FileNotFoundError`` too.
    ReadError
        The system refuses to read the file.
    InvalidGraph
        The file has none of these formats, is damaged, needs a library that is not installed, or has
        something that could run code and is not trusted; or `bind` has sizes for a file that is not a
        ``.pt2`` file.
    UnsupportedOp
        A call of a ``.pt2`` file needs torch's decompositions, and torch is not installed; or the program
        cannot be imported (`from_exported`).
    """
    require_use("open", bind, path, operators=operators)
    return _open(path, bind, operators, trust)


def _open(path: str | os.PathLike[str], bind: Any, operators: Sequence[ForeignOp], trust: bool) -> Program:
    start = time.perf_counter()
    file = file_path("open", path)
    read = next((reader for kind, reader in READERS.items() if kind.holds(file)), _read_other)
    program = read(file, OpenOptions(bind, operators, trust))
    program.import_seconds = time.perf_counter() - start
    return program


def _read_pt2(file: Path, options: OpenOptions) -> Program:
    """Reads a ``.pt2`` file with tosaic's reader, or with torch if that is needed and torch is installed."""
    from tosaic.pt2.program import read_pt2

    described = operators_by_target("open", options.operators)
    try:
        return _program_of_import(read_pt2(file, bind=options.bind, operators=described), described)
    except _core.UnsupportedOp as error:
        if error.parts["where"] != "pt2":
            raise
        beyond = error
    try:
        exported = load_exported(file, trust=options.trust)
    except ImportError:
        raise beyond from None
    return _program_of_import(
        _imported(exported, options.bind, "forward", described), described, _by_torch(beyond)
    )


def _by_torch(beyond: Any) -> Diagnostic:
    """Returns the remark that torch's loader read a file, and why."""
    from tosaic.base.diagnostics import Diagnostic

    parts = beyond.parts
    place = ", ".join(filter(None, (parts["node"] and f"node '{parts['node']}'", parts["source"])))
    text = f"torch's loader read the file: {parts['what']}" + (f" ({place})" if place else "")
    _LOG.info("%s", visible(text))
    return Diagnostic("torch-loader", text, parts["node"])


def _read_tosa(file: Path, options: OpenOptions) -> Program:
    from tosaic.lowering.tosa_file import load_tosa

    return _described(load_tosa(file), options)


def _read_pte(file: Path, options: OpenOptions) -> Program:
    from tosaic.pte.file import load_pte

    return _described(load_pte(file).program, options)


def _described(program: Program, options: OpenOptions) -> Program:
    return program.with_operators(options.operators) if options.operators else program


def _read_other(file: Path, options: OpenOptions) -> Program:
    """Reads an archive, or graph text."""
    from tosaic.program.archive import is_archive, load

    if is_archive(file):
        return _described(load(file), options)
    data = read_bytes("open", file)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise invalid(
            "open",
            f"'{file_name(file)}' is not a program",
            expected="a .pt2, .tosa or .pte file, graph text, or an archive written by Program.save",
            got="other bytes",
        ) from error
    return _described(Program(_core.Graph.parse(text)), options)


Reader = Callable[[Path, OpenOptions], Program]
"""Reads a program from a file."""

READERS: dict[FileKind, Reader] = {PT2: _read_pt2, TOSA: _read_tosa, PTE: _read_pte}
"""The readers by kind of file."""


@checked
def load_exported(path: str | os.PathLike[str], *, trust: bool = False) -> Any:
    """Reads a ``.pt2`` file with torch. `trust` is as in `open_program`.

    Raises
    ------
    MissingFileError
        There is no such file.
    ReadError
        The system refuses to read the file.
    InvalidGraph
        torch cannot read the file, a library that the file needs is not installed, or the file has something
        that could run code and is not trusted.
    ImportError
        torch is not installed.
    """
    with naming_extras(f"'{file_name(path)}'"):
        from tosaic.fx.running.eager import load_exported as load_with_torch

    return load_with_torch(file_path("open", path), trust=trust)


def _exported_program(source: Any) -> Any:
    """Returns an exported program, or the exported program of an ExecuTorch program manager.

    Raises
    ------
    InvalidGraph
        `source` is neither.
    """
    if not is_exported_program(source) and callable(getattr(source, "exported_program", None)):
        source = source.exported_program()
    if not is_exported_program(source):
        raise invalid(
            "import",
            "this is not a program",
            expected="a torch.export.ExportedProgram, tosaic.Program, tosaic.program.Graph or path",
            got=type(source).__name__,
            hint="Export the module first: torch.export.export(module, example_inputs)",
        )
    return source
