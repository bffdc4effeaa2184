"""Finds and imports the libraries that a ``.pt2`` file names; it reads only JSON, which executes nothing.

A file names operators of other libraries by namespace and name, and classes of arguments by module and name.
Torch can read the file once the libraries that register them are imported::

    torch.ops.quantized_decomposed.quantize_per_tensor.default   torch's own, but imported on request
    executorch.exir.dialects.edge._ops.dim_order_ops._clone_dim_order.default
                                                                 ExecuTorch's edge dialect, from executorch
    transformers.modeling_outputs.BaseModelOutput                a class, from transformers

An operator of the edge dialect means the same as the plain operator of that name. `plain_file` makes a copy
of the file in memory with the plain names, which torch reads.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import io
import json
import os
import sys
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree

from tosaic import _core
from tosaic.base.json_text import parsed_json
from tosaic.base.options import file_name, invalid
from tosaic.base.reading import open_file
from tosaic.base.unpacking import require_room, room
from tosaic.fx.files.edge_operators import MODULES as EXECUTORCH_MODULES
from tosaic.pt2.archive import LEAST_UNPACKED, MOST_TIMES

_PLAIN = "torch.ops."
_EDGE = "executorch.exir.dialects.edge._ops."

# Operator namespace -> modules that register some of its operators. Any other namespace may be a package
# name.
MODULES: dict[str, tuple[str, ...]] = EXECUTORCH_MODULES | {
    "quantized_decomposed": ("torch.ao.quantization.fx._decomposed", "torchao.quantization.pt2e.convert"),
    "torchao": (
        "torchao.ops",
        "torchao.quantization.quant_primitives",
        "torchao.quantization.pt2e.reference_representation_rewrite",
    ),
    "torchvision": ("torchvision",),
    "torchaudio": ("torchaudio",),
    "fbgemm": ("fbgemm_gpu",),
}
# Classes that a library registers only on request: the module and the function to call.
_REGISTRARS = {
    "transformers.cache_utils.DynamicCache": (
        "transformers.integrations.executorch",
        "register_dynamic_cache_export_support",
    )
}
# Packages whose classes occur in files; other classes may be from the user's own modules.
KNOWN_PACKAGES = ("torch_geometric", "torchvision", "transformers")
# Package names by import name, where the two differ.
_PACKAGES = {"fbgemm_gpu": "fbgemm-gpu", "torch_geometric": "torch-geometric"}


@dataclass(frozen=True)
class Archive:
    """What a ``.pt2`` file declares.

    Attributes
    ----------
    targets : tuple of str
        All operators, with the names that they have in the file.
    classes : tuple of str
        Classes of nested arguments and results, as module and name.
    """

    targets: tuple[str, ...]
    classes: tuple[str, ...]

    @property
    def operators(self) -> tuple[str, ...]:
        """Operators of torch and of libraries: ``quantized_decomposed.quantize_per_tensor.default``."""
        plain = (target.removeprefix(_PLAIN).removeprefix(_EDGE) for target in self.targets)
        return tuple(name for name, target in zip(plain, self.targets, strict=True) if name != target)

    @property
    def is_edge(self) -> bool:
        """True if the file is written in ExecuTorch's edge dialect."""
        return any(target.startswith(_EDGE) for target in self.targets)


def read_archive(path: str | os.PathLike[str]) -> Archive:
    """Reads the JSON of each program in a file.

    Raises
    ------
    MissingFileError
        The file does not exist.
    ReadError
        The system refuses to read the file.
    InvalidGraph
        The file is not an archive of torch, is damaged, or has no exported program in it.
    """
    file = Path(path)
    try:
        with open_file("open", file) as opened, zipfile.ZipFile(opened) as archive:
            _require_bounds(archive, os.fstat(opened.fileno()).st_size)
            members = {member: parsed_json(archive.read(member)) for member in _programs(archive)}
    except (_core.Error, MemoryError):
        raise
    except Exception as error:  # zipfile, decompression and JSON all raise their own errors
        raise unreadable(file, f"{type(error).__name__}: {error}") from error
    if not members:
        raise unreadable(file, "an archive without an exported program")
    return declared(*members.values())


def declared(*documents: Any) -> Archive:
    """Returns the declarations of programs, read from their JSON `documents`."""
    return Archive(
        tuple(sorted({target for document in documents for target in _strings(document, "target")})),
        tuple(sorted({name for document in documents for name in _classes(document)})),
    )


def called(document: Any) -> set[str]:
    """Returns the names of all functions of a program: those it calls, and those that are arguments."""
    return {*_strings(document, "target"), *_strings(document, "as_operator")}


def unreadable(path: str | os.PathLike[str], got: str) -> Exception:
    """Returns the error for a file that torch cannot read. It quotes the first line of `got`."""
    return invalid(
        "open",
        f"torch cannot read '{file_name(path)}'",
        expected="a file written by torch.export.save",
        got=got.partition("\n")[0],
    )


def _programs(archive: zipfile.ZipFile) -> list[str]:
    """Returns the members that hold exported programs. Older torch wrote one at the top level."""
    return [
        name
        for name in archive.namelist()
        if name == "serialized_exported_program.json"
        or (name.endswith(".json") and name.split("/")[-2:-1] == ["models"])
    ]


def _require_bounds(archive: zipfile.ZipFile, size: int) -> None:
    """Refuses an archive whose members unpack to far more than its size, as the reader of tosaic does."""
    require_room(archive.infolist(), size + room(size, least=LEAST_UNPACKED, times=MOST_TIMES))


def _strings(value: Any, key: str) -> Iterator[str]:
    """Yields all strings under `key`, anywhere in the document."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            if isinstance(item.get(key), str):
                yield item[key]
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)


def _classes(document: Any) -> Iterator[str]:
    for key in ("in_spec", "out_spec"):
        for text in _strings(document, key):
            try:
                yield from (name for name in _strings(parsed_json(text), "type") if "." in name)
            except ValueError:
                continue  # torch reports what is wrong with this JSON


def load_libraries(archive: Archive, path: str | os.PathLike[str]) -> None:
    """Imports the modules that register the operators and classes of a file, unless they are registered.

    Only these modules are imported, and only of packages that are installed: modules of the tables, a package
    with the name of an operator namespace, and the module of a class if no part of its name is private. No
    other name in a file is ever imported, and no module of the working folder.

    Raises
    ------
    InvalidGraph
        A library is not installed, or none is known. The message says which library to install or to import.
    """
    missing = [name for name in archive.operators if _registered(name) is None]
    for namespace in sorted({name.partition(".")[0] for name in missing}):
        wanted = [name for name in missing if name.startswith(f"{namespace}.")]
        what = f"'{Path(path).name}' calls operators of '{namespace}', such as {wanted[0]}"
        modules = MODULES.get(namespace) or _installed_package(namespace)
        _import_until(lambda names=wanted: None not in map(_registered, names), modules, what)
    for name in archive.classes:
        _load_class(name, f"'{Path(path).name}' has arguments or results of the class {name}")


def _registered(operator: str) -> Any:
    """Returns the operator of that name; None if no library has registered it."""
    found: Any = torch.ops
    for part in operator.split("."):
        found = getattr(found, part, None)
    return found


def _load_class(name: str, what: str) -> None:
    package = name.partition(".")[0]
    if package in sys.stdlib_module_names:
        return
    modules: tuple[str, ...] = ()
    is_public = not any(part.startswith("_") for part in name.split("."))
    if is_public and (package in KNOWN_PACKAGES or _installed_package(package)):
        modules = (name.rpartition(".")[0],)
    registrar, function = _REGISTRARS.get(name, ("", ""))

    def is_done() -> bool:
        if registrar in sys.modules and name not in _pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE:
            getattr(sys.modules[registrar], function)()
        return name in _pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE

    _import_until(is_done, (*modules, registrar) if registrar else modules, what)


def _installed_package(name: str) -> tuple[str, ...]:
    """Returns the package of that name if it is installed; no script in the working directory counts."""
    is_installed = not name.startswith("_") and name in importlib.metadata.packages_distributions()
    return (name,) if is_installed else ()


def _import_until(is_done: Any, modules: Sequence[str], what: str) -> None:
    failure: ImportError | None = None
    for module in modules:
        if is_done():
            return
        top = module.partition(".")[0]
        if top not in sys.modules and not _installed_package(top):
            failure = failure or ModuleNotFoundError(f"No module named '{top}'", name=top)
            continue
        try:
            importlib.import_module(module)
        except ImportError as error:
            failure = failure or error
    if is_done():
        return
    package = modules[0].partition(".")[0] if modules else ""
    if failure is None:
        hint = "Import the library that registers them before the file is opened"
        raise invalid(
            "open",
            what,
            expected="a library that registers them",
            got=f"none in {package} {importlib.metadata.version(package)}" if package else "none",
            hint=hint,
        )
    absent = (failure.name or "").partition(".")[0] or package
    absent = _PACKAGES.get(absent, absent)
    raise invalid(
        "open",
        what,
        expected=f"the package {absent}",
        got=str(failure).partition("\n")[0],
        hint=f"pip install {absent}",
    )


def plain_file(path: str | os.PathLike[str]) -> io.BytesIO:
    """Returns the file with plain names in place of the edge dialect's operator names."""
    made = io.BytesIO()
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as out:
        programs = set(_programs(archive))
        for entry in archive.infolist():
            data = archive.read(entry)
            if entry.filename in programs:
                document = parsed_json(data)
                make_plain(document)
                data = json.dumps(document).encode()
            out.writestr(entry.filename, data)
    made.seek(0)
    return made


def make_plain(document: Any) -> None:
    """Puts plain names in place of the edge dialect's operator names, in the JSON of a program."""
    _rename_targets(document)
    document["verifiers"] = ["TRAINING"]  # the edge dialect's verifier refuses plain operators


def _rename_targets(document: Any) -> None:
    pending = [document]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            target = item.get("target")
            if isinstance(target, str) and target.startswith(_EDGE):
                item["target"] = _PLAIN + target.removeprefix(_EDGE)
                _name_arguments(item)
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)


def _name_arguments(call: dict[str, Any]) -> None:
    """Adds the names of positional arguments, which the edge dialect leaves out and torch's reader needs."""
    operator = _registered(call["target"].removeprefix(_PLAIN))
    for argument, declared in zip(call["inputs"], operator._schema.arguments, strict=False):
        argument["name"] = argument["name"] or declared.name
