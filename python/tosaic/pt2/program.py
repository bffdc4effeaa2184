"""Reads a ``.pt2`` file: `read_pt2`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tosaic import _core
from tosaic.base.diagnostics import Diagnostics
from tosaic.base.options import file_name
from tosaic.base.process import collection_paused
from tosaic.ports.foreign import ForeignOp
from tosaic.ports.signature import Tree
from tosaic.pt2.archive import Archive
from tosaic.pt2.archive_writer import ArchiveWriter, Shared, code_of
from tosaic.pt2.calls import ArchiveReader
from tosaic.pt2.checked import (
    MISUSE,
    WrongJsonError,
    beyond,
    damaged,
    integer,
    listed,
    mapping,
    misused,
    text,
    union,
)
from tosaic.pt2.nodes import nodes_of, released
from tosaic.pt2.sizes import Sizes
from tosaic.pt2.tensors import Weights
from tosaic.pt2.treespecs import tree_of
from tosaic.torch_operators.memory_regions import Region, in_memory
from tosaic.torch_operators.origins import types_in
from tosaic.torch_operators.program_reader import (
    WEIGHTS,
    ImportedProgram,
    InputSpec,
    OutputSpec,
    ProgramReader,
)
from tosaic.torch_operators.value import Ref

_MAJOR = 8
_MODELS = "models/"
_MODEL = "model"
_HINT = "Read it through torch: tosaic.from_exported(torch.export.load(path))"


def read_pt2(
    path: Path, *, bind: Any = None, method: str = "forward", operators: Mapping[str, ForeignOp] | None = None
) -> ImportedProgram:
    """Reads a ``.pt2`` file into a graph at stage ``exported``, like the import of the program in it.

    The weights are views of the mapped file.

    Raises
    ------
    MissingFileError
        There is no such file.
    ReadError
        The system refuses to read the file.
    InvalidGraph
        The file is not an archive of torch, is damaged, or is of another major version of the format.
    UnsupportedOp
        A call has no row of its own, so that torch's decompositions are needed, or the file has something
        else that only torch reads. Such errors begin with ``[pt2]``. Other errors are as in
        `tosaic.from_exported`.
    """
    try:
        with collection_paused():
            return _read(Archive(path), bind, method, operators or {})
    except (_core.InvalidGraph, _core.UnsupportedOp) as error:
        parts = error.parts
        if parts["where"] != "pt2":
            raise
        parts = {key: parts[key] for key in ("expected", "got", "node", "module_path", "source", "hint")}
        if isinstance(error, _core.UnsupportedOp):
            parts["hint"] = parts["hint"] or _HINT
        what = f"'{file_name(path)}': {error.parts['what']}"
        raise _core.make_error(type(error), where="pt2", what=what, **parts) from error


def _read(archive: Archive, bind: Any, method: str, operators: Mapping[str, ForeignOp]) -> ImportedProgram:
    name = _model(archive)
    entry = f"{_MODELS}{name}.json"
    document = _core.Json(archive.bytes_of(entry), entry)
    _require_version(document.part("the version", "schema_version").value())
    diagnostics, sizes = Diagnostics(), Sizes()
    weights = Weights(archive, name, diagnostics)
    module = document.part("graph_module", "graph_module")
    signature = module.part("the signature", "signature")
    inputs, constant_names = _entry(
        "the list of inputs", lambda: _core.pt2_input_specs(signature, InputSpec, _INPUT_KINDS)
    )
    outputs = _entry("the list of outputs", lambda: _output_specs(signature.get("output_specs")))
    trees, arg_names = _entry("the module call graph", lambda: _call_of(module))
    graph = module.part("the graph", "graph")
    nodes, stacks = _entry("the graph", lambda: nodes_of(graph, constant_names))
    shared = Shared(weights, sizes, diagnostics, foreign=operators)
    reader = ArchiveReader(ArchiveWriter(shared, _core.GraphBuilder(method)))
    program = _entry(
        "the signature",
        lambda: _Program(reader, nodes, inputs, outputs, trees, arg_names, diagnostics),
    )
    reader.weights_at = {
        node.name: spec.target
        for node, spec in zip(program.placeholders, program.specs, strict=True)
        if spec.kind in WEIGHTS
    }
    sizes.bind(bind, program.users)
    signature = _entry("the program", program.read)
    released(nodes)
    reader.release()
    return ImportedProgram(
        program.builder.finish(),
        signature,
        tuple(diagnostics.items),
        lambda: _verify(archive),
        partial(types_in, stacks),
    )


class _Program(ProgramReader):
    """The program of an archive."""

    reader: ArchiveReader

    def code_of(self, recorded: Any, what: str) -> int:
        """See `ProgramReader`."""
        return code_of(recorded, what)

    def is_strided(self, recorded: Any) -> bool:
        """See `ProgramReader`."""
        return bool(recorded.is_strided)

    def region_of(self, target: str) -> Region | None:
        """See `ProgramReader`."""
        try:
            stored = self.reader.writer.shared.weights.stored(target)
        except (_core.UnsupportedOp, _core.InvalidGraph):
            return None  # the error is raised when the weight is read
        meta = stored.meta
        return in_memory(stored.entry, meta.dtype, meta.dtype.size, meta.shape, meta.stride(), meta.offset)

    def read_weight(self, node: Any, spec: InputSpec, is_state: bool) -> None:
        """See `ProgramReader`."""
        reader, weights = self.reader, self.reader.writer.shared.weights
        stored = weights.stored(spec.target)
        if stored.meta.is_complex() and not is_state:
            reader.env[node] = reader.writer.complex_constant(stored, spec.kind)
        elif is_state:
            constant = weights.snapshot(stored, spec.kind)
            reader.env[node] = self.add_state(node, spec, stored.code, constant)
        else:
            constant = weights.constant(stored, spec.kind)
            value = self.builder.add_constant(constant)
            reader.env[node] = Ref(value, stored.code, stored.meta.shape, value)

    def read_constants(self, nodes: list[Any], specs: list[InputSpec]) -> None:
        """See `ProgramReader`."""
        reader, weights = self.reader, self.reader.writer.shared.weights
        while nodes:
            count = weights.add_views(self.builder, reader.env, nodes, specs)
            nodes, specs = nodes[count:], specs[count:]
            if nodes:
                self.read_weight(nodes[0], specs[0], False)
                nodes, specs = nodes[1:], specs[1:]


def _verify(archive: Archive) -> None:
    changed = archive.changed()
    if changed:
        raise damaged(changed)


def _entry(what: str, read: Callable[[], Any]) -> Any:
    """Returns the result of `read`; exceptions that damaged values raise become errors of the entry."""
    try:
        return read()
    except MISUSE as error:
        if isinstance(error, _core.Error):
            raise
        raise misused(f"{what} is damaged", error) from error


def _model(archive: Archive) -> str:
    """Returns the program's name in the archive. `torch.export.save` writes one program, named ``model``."""
    if f"{_MODELS}{_MODEL}.json" in archive:
        return _MODEL
    if "serialized_exported_program.json" in archive:
        raise beyond("it was written by an older version of torch")
    raise damaged("an archive without an exported program", expected=f"{_MODELS}{_MODEL}.json")


def _require_version(found: Any) -> None:
    major, minor = _entry("the version", lambda: (integer(found["major"]), integer(found["minor"])))
    if major != _MAJOR:
        raise damaged(
            "the program is of another major version of the format",
            expected=f"{_MAJOR}.x",
            got=f"{major}.{minor}",
        )


_INPUT_KINDS = {
    "user_input": "user_input",
    "constant_input": "user_input",
    "parameter": "parameter",
    "buffer": "buffer",
    "tensor_constant": "lifted",
    "custom_obj": "InputKind.CUSTOM_OBJ",
    "token": "InputKind.TOKEN",
}


_OUTPUT_TARGETS = {
    "user_output": "",
    "loss_output": "",
    "buffer_mutation": "buffer_name",
    "parameter_mutation": "parameter_name",
    "user_input_mutation": "user_input_name",
    "gradient_to_parameter": "parameter_name",
    "gradient_to_user_input": "user_input_name",
    "token": "",
}


def _output_specs(recorded: Any) -> list[OutputSpec]:
    specs = []
    for each in listed(recorded):
        kind, held = union(each)
        if kind not in _OUTPUT_TARGETS:
            raise WrongJsonError("a kind of output", kind)
        key = _OUTPUT_TARGETS[kind]
        specs.append(OutputSpec(kind, text(held[key]) if key else ""))
    return specs


def _call_of(module: _core.Json) -> tuple[tuple[Tree | None, Tree | None], tuple[str, ...]]:
    """Returns the structures of (args, kwargs) and of the result, and the names of the parameters."""
    fields = module.get("treespec_namedtuple_fields")
    tuples: dict[str, Sequence[str]] = {
        name: listed(each["field_names"]) for name, each in mapping(fields or {}).items()
    }
    calls = module.items("module_call_graph")
    for entry in calls if isinstance(calls, _core.JsonItems) else listed(calls):
        if text(entry["fqn"]) == "" and entry.get("signature") is not None:
            signature = mapping(entry["signature"])
            trees = tree_of(signature["in_spec"], tuples), tree_of(signature["out_spec"], tuples)
            return trees, tuple(map(text, signature.get("forward_arg_names") or ()))
    return (None, None), ()
