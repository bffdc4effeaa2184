"""Torch's side of a comparison: reads `.pt2` files, runs exported programs and traces each node."""

from __future__ import annotations

import logging
import operator
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch.export.graph_signature import InputKind, OutputKind

from tosaic import _core
from tosaic.base.arrays import as_array
from tosaic.base.options import invalid
from tosaic.base.reading import open_file
from tosaic.fx.files.libraries import (
    called,
    declared,
    load_libraries,
    make_plain,
    plain_file,
    read_archive,
    unreadable,
)
from tosaic.fx.files.stranger_files import cleared
from tosaic.fx.running.equal_elements import first_of_equal
from tosaic.fx.running.written import tensor_of


@dataclass(frozen=True)
class EagerRun:
    """The results of a torch run.

    Attributes
    ----------
    outputs : list of numpy.ndarray
        The tensors among the user's outputs, in order.
    trace : dict of (str, int) to numpy.ndarray
        Results by FX name and result index, in the order of execution.
    written : dict of int to numpy.ndarray
        New values of the user inputs that the program writes, by position among the leaves.
    mutations : dict of str to numpy.ndarray
        New values of buffers, by name.
    skipped : dict of str to str
        FX nodes whose result is not in `trace`, because its dtype has no counterpart, with this reason.
    """

    outputs: list[np.ndarray[Any, Any]]
    trace: dict[tuple[str, int], np.ndarray[Any, Any]]
    written: dict[int, np.ndarray[Any, Any]]
    mutations: dict[str, np.ndarray[Any, Any]]
    skipped: dict[str, str]


def load_exported(path: str | os.PathLike[str], *, trust: bool = False) -> torch.export.ExportedProgram:
    """Reads a ``.pt2`` file, after importing the libraries that register its operators and classes.

    Parameters
    ----------
    path : path
    trust : bool
        Whether torch may run code that the file has. If not, the program has the example inputs of the file
        only if they are plain data.

    Raises
    ------
    MissingFileError
        The file does not exist.
    ReadError
        The system refuses to read the file.
    InvalidGraph
        Torch cannot read the file, a library that it names is not installed, or the file has something that
        could run code, and is not trusted.
    """
    return _load_trusted(path) if trust else _load_cleared(Path(path))


def _load_cleared(path: Path) -> torch.export.ExportedProgram:
    def prepared(document: Any) -> Any:
        archive = declared(document)
        load_libraries(archive, path)
        if archive.is_edge:
            make_plain(document)
        return document, called(document)

    try:
        copy = cleared(path, prepared)
    except _core.Error as error:
        if error.parts["where"] != "pt2":
            raise
        found = ": expected ".join(filter(None, (error.parts["what"], error.parts["expected"])))
        raise unreadable(path, found) from error
    program = _loaded(path, copy.file)
    program._example_inputs = copy.example_inputs
    return program


def _load_trusted(path: str | os.PathLike[str]) -> torch.export.ExportedProgram:
    archive = read_archive(path)
    load_libraries(archive, path)
    with open_file("open", path) as file:
        return _loaded(path, plain_file(path) if archive.is_edge else _readable(path, file))


def _loaded(path: str | os.PathLike[str], file: Any) -> torch.export.ExportedProgram:
    logged = _Logged()
    with logged:
        try:
            return torch.export.load(file)
        except MemoryError:
            raise
        except Exception as error:  # torch passes on any error of its readers
            reason = logged.reason or error
    text = first_line(str(reason))
    raise unreadable(path, f"{type(reason).__name__}: {text}") from reason


def _readable(path: str | os.PathLike[str], file: IO[bytes]) -> Any:
    """Returns the path, or the open file if the path is not valid UTF-8, which torch refuses."""
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError:
        return file
    return path


def first_line(text: str) -> str:
    """Returns the first line of a message that is not blank, or nothing."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


class _Logged(logging.Filter):
    """Suppresses the stack traces that torch logs while it reads, and stores the first error among them."""

    def __init__(self) -> None:
        super().__init__()
        self.reason: BaseException | None = None
        self._log = logging.getLogger("torch.export")

    def __enter__(self) -> None:
        self._log.addFilter(self)

    def __exit__(self, *_: object) -> None:
        self._log.removeFilter(self)

    def filter(self, record: logging.LogRecord) -> bool:
        """False for a record with a stack trace."""
        if not record.exc_info or record.exc_info[1] is None:
            return True
        self.reason = self.reason or record.exc_info[1]
        while self.reason.__cause__ is not None:  # torch's outer errors only quote the trace of their cause
            self.reason = self.reason.__cause__
        return False


def run_eager(
    ep: torch.export.ExportedProgram, leaves: Sequence[Any], *, trace: bool = True, rounding: bool = True
) -> EagerRun:
    """Runs an exported program node by node, as torch does. Buffers start with the program's values.

    The program itself does not change. Its tensors that share memory share it in the run too.

    Parameters
    ----------
    ep : torch.export.ExportedProgram
    leaves : sequence
        The leaves of the arguments in order, including constants; numpy arrays become tensors.
    trace : bool
        Whether to return the result of each node.
    rounding : bool
        Whether quantize nodes round. If not, floats pass through quantize and dequantize unchanged.

    Raises
    ------
    InvalidGraph
        The program does not take these inputs, or an operator fails.
    """
    copies = _Copies(_writes(ep.graph_module))
    tracer = (_Tracer if rounding else _Unrounded)(ep.graph_module, trace, copies)
    try:
        given = [_as_tensor(leaf) for leaf in leaves]
        versions = [leaf._version if isinstance(leaf, torch.Tensor) else 0 for leaf in given]
        flat = iter(given)
        values = [_input_value(ep, spec, flat, copies) for spec in ep.graph_signature.input_specs]
        with torch.no_grad():
            results = tracer.run(*values)
    except MemoryError:
        raise
    except Exception as error:  # operators raise errors of any type
        raise invalid(
            "torch",
            "torch cannot run the exported program on these inputs",
            got=f"{type(error).__name__}: {str(error).partition(chr(10))[0]}",
        ) from error
    outputs = [
        as_array(result).copy()
        for spec, result in zip(ep.graph_signature.output_specs, results, strict=True)
        if spec.kind is OutputKind.USER_OUTPUT and isinstance(result, torch.Tensor)
    ]
    mutations = {
        str(spec.target): as_array(result).copy()
        for spec, result in zip(ep.graph_signature.output_specs, results, strict=True)
        if spec.kind is OutputKind.BUFFER_MUTATION and isinstance(result, torch.Tensor)
    }
    written = _written(ep, given, versions, results)
    return EagerRun(outputs, tracer.results, written, mutations, tracer.skipped)


def _written(
    ep: torch.export.ExportedProgram, given: Sequence[Any], versions: Sequence[int], results: Sequence[Any]
) -> dict[int, np.ndarray[Any, Any]]:
    """Returns the new values of inputs that the program writes, by position among the leaves.

    Functional programs return the new values; other programs write them in place.
    """
    written = {
        at: as_array(leaf).copy()
        for at, (leaf, version) in enumerate(zip(given, versions, strict=True))
        if isinstance(leaf, torch.Tensor) and leaf._version != version
    }
    names = [
        getattr(spec.arg, "name", "")
        for spec in ep.graph_signature.input_specs
        if spec.kind is InputKind.USER_INPUT
    ]
    for spec, result in zip(ep.graph_signature.output_specs, results, strict=True):
        if spec.kind is OutputKind.USER_INPUT_MUTATION:
            written[names.index(spec.target)] = as_array(result).copy()
    return written


def _writes(module: torch.fx.GraphModule) -> bool:
    """True if a call in this graph, or in a nested graph, may write to an operand."""
    return any(
        isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
        for each in module.modules()
        if isinstance(each, torch.fx.GraphModule)
        for node in each.graph.nodes
        if node.op == "call_function"
    )


class _Copies:
    """Copies of the program's tensors. Each storage is copied once, so that views still share memory."""

    def __init__(self, copies_all: bool) -> None:
        self._copies_all = copies_all
        self._storages: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def of(self, value: Any, is_state: bool = False) -> Any:
        """Returns a copy of a tensor that the program may write; other values as they are."""
        if not isinstance(value, torch.Tensor) or not (is_state or self._copies_all):
            return value
        is_plain = type(value) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
        if not is_plain or value.layout is not torch.strided or value.is_conj() or value.is_neg():
            return value.clone()
        storage = value.untyped_storage()
        if storage._cdata not in self._storages:
            # A reference to the original storage keeps its address from being reused.
            self._storages[storage._cdata] = storage, storage.clone()  # type: ignore[no-untyped-call]
        _, copied = self._storages[storage._cdata]
        made = torch.empty(0, dtype=value.dtype, device=value.device)
        return made.set_(copied, value.storage_offset(), value.shape, value.stride())


class _Tracer(torch.fx.Interpreter):
    """Copies each result, because later nodes may write to it."""

    def __init__(self, module: torch.fx.GraphModule, records: bool, copies: _Copies) -> None:
        super().__init__(module)
        self._records = records
        self._copies = copies
        self.results: dict[tuple[str, int], np.ndarray[Any, Any]] = {}
        self.skipped: dict[str, str] = {}

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Returns a copy of a tensor that the module holds, if the program writes."""
        return self._copies.of(super().get_attr(target, args, kwargs))

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        """Calls an operator; a sort or a selection takes equal elements in order of their positions."""
        return super().call_function(first_of_equal(target), args, kwargs)

    def run_node(self, n: torch.fx.Node) -> Any:
        result = super().run_node(n)
        if self._records and n.op == "call_function" and n.target is not operator.getitem:
            results = result if isinstance(result, list | tuple) else [result]
            for index, item in enumerate(results):
                if isinstance(item, torch.Tensor):
                    self._note(n.name, index, item)
        return result

    def _note(self, name: str, index: int, tensor: torch.Tensor) -> None:
        if tensor.is_complex():
            self.skipped[name] = f"{str(tensor.dtype).removeprefix('torch.')} is two values in the graph"
            return
        try:
            self.results[name, index] = as_array(tensor).copy()
        except _core.LayoutMismatch:
            self.skipped[name] = f"{str(tensor.dtype).removeprefix('torch.')} has no counterpart"


class _Unrounded(_Tracer):
    """Passes floats through quantize and dequantize unchanged."""

    def run_node(self, n: torch.fx.Node) -> Any:
        if n.op == "call_function" and getattr(n.target, "namespace", "") == "quantized_decomposed":
            operand: Any = self.fetch_args_kwargs_from_env(n)[0][0]
            kind = str(n.target).rpartition("::")[2].removeprefix("quantized_decomposed.")
            if kind.startswith("quantize"):
                return operand
            if (
                kind.startswith("dequantize")
                and isinstance(operand, torch.Tensor)
                and operand.is_floating_point()
            ):
                return operand
        return super().run_node(n)


def _as_tensor(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray):
        # A copy, because torch needs writable memory and the program may write to its inputs.
        return tensor_of(leaf.copy(order="K"))
    return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf


def _input_value(ep: torch.export.ExportedProgram, spec: Any, flat: Iterator[Any], copies: _Copies) -> Any:
    if spec.kind is InputKind.USER_INPUT:
        return next(flat)
    if spec.target in ep.state_dict:
        value = ep.state_dict[spec.target]
    else:
        value = ep.constants.get(spec.target)
    return copies.of(value, spec.kind is InputKind.BUFFER)
