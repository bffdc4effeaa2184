"""The functions of the package: read, lower, check, compare."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tosaic import _core
from tosaic.border_orders import Form, border_orders
from tosaic.layout import objective_of
from tosaic.options import IO_DTYPES, THRESHOLD_DB, checked, file_name, file_path, is_mapping, refusal
from tosaic.pipeline import Pipeline
from tosaic.program import CheckResult, Lowered, Problem, Program, dump_to
from tosaic.reading import read_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tosaic.comparison import Comparison
    from tosaic.layout import Objective

__all__ = [
    "check",
    "compare",
    "from_exported",
    "from_graph",
    "lower",
    "open_program",
    "program_of",
    "require_use",
]

_LOG = logging.getLogger(__name__)


@checked
def from_exported(ep: Any, *, bind: Any = None, method: str = "forward") -> Program:
    """Reads what `torch.export` produced.

    Parameters
    ----------
    ep : torch.export.ExportedProgram
        Decomposed or not, strict or not, training or inference form, ExecuTorch edge dialect or plain ATen.
    bind : mapping or example inputs, optional
        Sizes of symbolic dimensions: ``{"x": {0: 1}}`` by input (path, name, index) and axis, or example
        inputs.
    method : str
        Name of the graph.

    Returns
    -------
    Program
        Stage ``exported``. Weights are not copied: they are views of torch's memory, which they keep alive. A
        weight is refused by name once its memory is another, was resized or freed, or torch has counted a
        change in place. What the program is first used for, or `Program.snapshot`, copies all of them, and
        `lower` what it holds: from then on the module may change.

    Raises
    ------
    UnsupportedOp
        A dimension is left unbound, or the program mutates memory that another live value shares.
    InvalidGraph
        The program contradicts itself or the sizes it is bound to.

    Examples
    --------
    >>> program = tosaic.from_exported(torch.export.export(model, (x,)))  # doctest: +SKIP
    """
    from tosaic import fx

    imported = fx.from_exported(_exported_program(ep), bind=bind, method=method)
    return Program._of_import(
        imported.graph, imported.signature, tuple(imported.diagnostics), imported.verify
    )


@checked
def from_graph(graph: _core.Graph) -> Program:
    """A program from a graph alone: inputs by position or name, several outputs as a tuple."""
    return Program(graph)


@checked
def lower(
    program: Any,
    *,
    target: str | None = None,
    pipeline: Pipeline | None = None,
    unsupported: Literal["error", "split"] = "error",
    bind: Any = None,
    dump: str | os.PathLike[str] | None = None,
    verify: bool = True,
    io: Mapping[str, str] | None = None,
    orders: Mapping[str, Form | Mapping[str | int, Form]] | None = None,
    objective: Objective = "bytes",
) -> Lowered:
    """Lowers a program to one TOSA graph.

    What comes back is independent of torch's memory: its constants are those of this moment, whatever becomes
    of the module. Only `Lowered.source`, the program as it was given, may still be a view. The GIL is
    released meanwhile: a thread that frees or writes weights during the call races with it.

    Parameters
    ----------
    program : Program, torch.export.ExportedProgram, Graph or path
    target : str, optional
        Version, profiles and extensions. ``"TOSA-1.0+FP"`` by default.
    pipeline : Pipeline, optional
        The passes to run, in the place of ``Pipeline.default(target)``. It has a target: another one beside it
        is refused.
    unsupported : {"error", "split"}
        What to do about operators outside the target: refuse the program with all of them named. Splitting it
        is not available in this version.
    bind : optional
        As `from_exported` takes it; refused for a program whose sizes are bound already.
    dump : path, optional
        Folder to write each graph to that a pass changed.
    verify : bool
        Verify the graph between all passes.
    io : mapping, optional
        What floats at the border of a quantized program are, ``{"inputs": "int8", "outputs": "float32"}``:
        floats that the program itself quantizes and dequantizes, or integers of that dtype, which arrays then
        carry. Without it they are floats for a target with profile FP; for others the program has integers,
        and `Lowered.run` converts the arrays, by the parameters that `Lowered.io` shows.
    orders : mapping, optional
        How arrays lie at the border: ``{"inputs": "nhwc"}``, ``{"inputs": {"x": "channels_last", 1: "nhwc"},
        "outputs": "contiguous"}``. A form is given for all tensors of rank 3 to 5, or by path, name or index:
        ``"traced"``, as the example had it; ``"contiguous"``; ``"channels_last"``, the logical shape with the
        strides of that order; ``"nhwc"``, the physical shape, row-major; or a dim order, logical axes
        outermost first. What is not named is as traced, but for outputs whose order is that of a view and of
        no memory format: these are contiguous. `Lowered.run` refuses arrays that lie otherwise.
    objective : {"bytes", "count"} or callable
        What the layout plan makes least: the bytes that are transposed, the number of transposes, or the sum
        of what a function gives for each transposed value. It is called with a `tosaic.layout.Candidate`
        (name, shape, dtype, bytes), once for each value, and returns an integer, 0 or more. A value has one
        cost, whichever orders it is brought from and to. Plans of equal cost: the fewest transposes.

    Raises
    ------
    InvalidGraph
        An option has no such value, `objective` gives a cost that is none, the order of the pipeline has a
        fault, or one of its passes returns a broken graph.
    QuantMismatch
        A border is to be of a dtype that it was not quantized to.
    UnsupportedOp
        Operators have no lowering. ``problems`` of the exception lists all of them with their reasons.
    SpecViolation
        The lowered graph breaks rules of the target, such as those of its level; ``problems`` as above.
    """
    if unsupported == "split":
        raise _core.make_error(
            _core.UnsupportedOp,
            where="lower",
            what="splitting a program between targets is not available in this version",
            expected="unsupported='error'",
            got="unsupported='split'",
            hint="tosaic.check lists what keeps the program from the target",
        )
    require_use("lower", bind, program)
    passes = _pipeline_of("lower", target, pipeline)
    target = passes.target if target is None else target
    source = program_of(program, bind=bind)
    source._overrides.warn_of_loss("the lowered program")
    start = time.perf_counter()
    source.verify_weights()
    on_change = None if dump is None else dump_to(dump)
    declared = border_orders(source.graph, orders, views_as_traced=False)
    asked: Any = objective_of(objective)
    try:
        lowered = _core.lower(
            source.graph,
            pipeline=passes._core,
            verify_each=verify,
            on_change=on_change,
            objective=asked,
            input_orders=declared["inputs"],
            output_orders=declared["outputs"],
            **_border_forms(io),
        )
    except (_core.UnsupportedOp, _core.SpecViolation) as error:
        # The core's errors are classes of the extension, which mypy knows no attribute `problems` of.
        problems = tuple(Problem.from_parts(parts) for parts in error.each)
        setattr(error, "problems", problems)  # noqa: B010
        raise
    _require_io(lowered.tosa, io)
    if "INT" not in target.split("+") and any(node.op == "quantize" for node in lowered.exported.nodes):
        _LOG.warning(
            "this program is quantized, and %s computes it in floats, with the same results: "
            "lower it for TOSA-1.0+INT to have integer arithmetic",
            target,
        )
    seconds = time.perf_counter() - start
    return Lowered(lowered, source, target=target, seconds=seconds, objective=asked)


def _border_forms(io: Mapping[str, str] | None) -> dict[str, str]:
    """The core's word for what was asked of inputs and outputs."""
    return {side: "float" if dtype == "float32" else "integer" for side, dtype in (io or {}).items()}


def _require_io(graph: _core.Graph, io: Mapping[str, str] | None) -> None:
    """Every float of the border became what was asked for."""
    for side, ports in (("inputs", graph.inputs), ("outputs", graph.outputs)):
        wanted = IO_DTYPES.get((io or {}).get(side, ""))
        for port in ports if wanted else ():
            found = port.value.dtype
            if port.kind == "user" and found != wanted and (found == "f32" or port.qparams is not None):
                raise _core.make_error(
                    _core.QuantMismatch,
                    where="lower",
                    what=f"'{port.path}' of the {side} cannot be {(io or {})[side]}",
                    expected=f"a border that is quantized once, to {wanted}",
                    got=found,
                    node=port.value.name,
                )


@checked
def check(
    program: Any, *, target: str | None = None, pipeline: Pipeline | None = None, bind: Any = None
) -> CheckResult:
    """Says what would not lower, and why, before trying.

    Parameters
    ----------
    program : Program, torch.export.ExportedProgram, Graph or path
    target, pipeline : optional
        As `lower` takes them.
    bind : optional
        As `from_exported` takes it; refused for a program whose sizes are bound already.

    Returns
    -------
    CheckResult
        All reasons as data; true if there is none.

    Raises
    ------
    InvalidGraph
        The target is not understood, the program is malformed, or the order of the pipeline has a fault.
    """
    require_use("check", bind, program)
    passes = _pipeline_of("check", target, pipeline)
    target = passes.target if target is None else target
    try:
        source = program_of(program, bind=bind)
    except _core.UnsupportedOp as error:
        return CheckResult(target, (Problem.from_parts(error.parts),), 0)
    return CheckResult(target, _problems(source.graph, passes), len(source.graph))


@checked
def compare(
    a: Any,
    b: Any,
    samples: Any,
    *,
    threshold_db: float = THRESHOLD_DB,
    local: bool = True,
    bind: Any = None,
) -> Comparison:
    """Runs two programs on the same inputs and compares them node by node.

    Parameters
    ----------
    a : torch.export.ExportedProgram, Program, Lowered, Graph or path
        The reference. An exported program runs in torch eager, each node traced.
    b : Program, Lowered, Graph, torch.export.ExportedProgram or path
        Runs on tosaic's executor.
    samples : tuple, dict, array, path of an npz or npy file, or an iterable of them
        A tuple holds positional arguments, a dict keyword arguments or arrays by input name. They have the
        form of the exported program, and are brought to that of either border: permuted, quantized. Each is
        run from the initial values of all states. Over several samples the worst figures are kept.
    threshold_db : float
        The least signal to noise ratio of an output of floats, in dB. Outputs of a reference that quantizes
        on the way are held to their local errors instead: see `Comparison.ok`.
    local : bool
        Tell the error that a node makes from the one it inherits, and judge the former. This runs each node
        of a again on the values of b, with tosaic's kernels. Where torch is the reference, both errors are
        measured against tosaic's own run of the exported graph. Without it, outputs are held to the
        threshold alone.
    bind : optional
        As `from_exported` takes it, for the sides that are torch's or ``.pt2`` files.

    Returns
    -------
    Comparison
        True if b computes what a does.

    Notes
    -----
    A `.tosa` file does not say how its inputs lie. They may lie as a declares it, as they were traced,
    row-major or channels-last: one of these for all inputs first, then mixed, and the first that is right for
    all samples is taken; so it is with outputs.

    Functions of `Program.with_overrides` are used on their own side; what one side gives for a foreign
    operator serves the other as well, where that has none.
    """
    from tosaic.compare_programs import compare_programs

    require_use("compare", bind, a, b)
    return compare_programs(a, b, samples, threshold_db=threshold_db, local=local, bind=bind)


def program_of(source: Any, *, bind: Any = None) -> Program:
    """A program from anything that stands for one: itself, its lowered form, a graph, torch's, or a path.

    What has no symbolic dimensions leaves `bind` alone.

    Raises
    ------
    InvalidGraph
        It is nothing of these.
    """
    if isinstance(source, Program):
        return source
    if isinstance(source, Lowered):
        return source.at("tosa")
    if isinstance(source, _core.Graph):
        return Program(source)
    if isinstance(source, str | os.PathLike):
        return _open(source, bind)
    return from_exported(source, bind=bind)


def require_use(where: str, bind: Any, *sources: Any) -> None:
    """Refuses sizes for dimensions where nothing has any left."""
    if bind is None or (is_mapping(bind) and not bind) or any(map(_takes_sizes, sources)):
        return
    given = " and ".join(source if isinstance(source, str) else type(source).__name__ for source in sources)
    raise _core.make_error(
        _core.InvalidGraph,
        where=where,
        what="'bind' has nothing to bind",
        expected="a torch.export.ExportedProgram or a .pt2 file, whose dimensions may be symbolic",
        got=given,
        hint="Give the sizes to tosaic.from_exported, or where the file is made",
    )


def _takes_sizes(source: Any) -> bool:
    if isinstance(source, str | os.PathLike):
        return Path(source).suffix == ".pt2"
    return not isinstance(source, Program | Lowered | _core.Graph)


@checked
def open_program(path: str | os.PathLike[str], *, bind: Any = None) -> Program:
    """Reads a program from a file: ``.pt2``, ``.tosa``, graph text, or an archive that `Program.save` wrote.

    A ``.pt2`` file may call operators of other libraries, such as those of ExecuTorch's quantizer and edge
    dialect, and have their classes as arguments: the libraries are imported where they are installed. Files
    of `torch.export.save` hold pickled data: read none that you do not trust.

    Raises
    ------
    MissingFileError
        There is no such file; it is a ``FileNotFoundError``, too.
    ReadError
        The system refuses to read it.
    InvalidGraph
        The file is none of these, damaged, has no dimensions that `bind` could give sizes, or needs a library
        that is not installed.
    """
    require_use("open", bind, path)
    return _open(path, bind)


def _open(path: str | os.PathLike[str], bind: Any) -> Program:
    from tosaic.archive import is_archive, load
    from tosaic.tosa_file import load_tosa

    file = file_path("open", path)
    if file.suffix == ".pt2":
        return from_exported(load_exported(file), bind=bind)
    if file.suffix == ".tosa":
        return load_tosa(file)
    if is_archive(file):
        return load(file)
    data = read_bytes("open", file)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _core.make_error(
            _core.InvalidGraph,
            where="open",
            what=f"'{file_name(file)}' is not a program",
            expected="a .pt2 or .tosa file, graph text, or an archive written by Program.save",
            got="other bytes",
        ) from error
    return Program(_core.Graph.parse(text))


@checked
def load_exported(path: str | os.PathLike[str]) -> Any:
    """Reads a ``.pt2`` file with torch.

    Raises
    ------
    MissingFileError
        There is no such file.
    ReadError
        The system refuses to read it.
    InvalidGraph
        torch cannot read it.
    ImportError
        torch is not installed.
    """
    try:
        from tosaic.fx.eager import load_exported as load_with_torch
    except ImportError as error:
        raise ImportError(f"'{file_name(path)}' needs {error.name}: pip install 'tosaic[torch]'") from error

    return load_with_torch(file_path("open", path))


def is_exported_program(source: Any) -> bool:
    """True for torch's ExportedProgram; torch need not be loaded."""
    return hasattr(source, "graph_module") and hasattr(source, "graph_signature")


def _exported_program(source: Any) -> Any:
    """The program itself, or the one that an ExecuTorch program manager holds."""
    if not is_exported_program(source) and callable(getattr(source, "exported_program", None)):
        source = source.exported_program()
    if not is_exported_program(source):
        raise _core.make_error(
            _core.InvalidGraph,
            where="import",
            what="this is not a program",
            expected="a torch.export.ExportedProgram, tosaic.Program, tosaic.Graph or path",
            got=type(source).__name__,
            hint="Export the module first: torch.export.export(module, example_inputs)",
        )
    return source


def _pipeline_of(where: str, target: str | None, pipeline: Any) -> Pipeline:
    """The pipeline that was asked for, or the default one of the target."""
    if pipeline is None:
        return Pipeline.default(target)
    if not isinstance(pipeline, Pipeline):
        raise refusal(where, "pipeline", "a tosaic.Pipeline, or None", pipeline)
    if target is not None and Pipeline.default(target).target != pipeline.target:
        raise _core.make_error(
            _core.InvalidGraph,
            where=where,
            what="the pipeline is for another target",
            expected=pipeline.target,
            got=target,
            hint="Leave 'target' out, or make the pipeline with Pipeline.default(target)",
        )
    return pipeline


def _problems(graph: _core.Graph, passes: Pipeline) -> tuple[Problem, ...]:
    """Everything that keeps a graph from a target, including what stops the search for it."""
    try:
        found = _core.problems(graph, pipeline=passes._core)
    except (_core.UnsupportedOp, _core.SpecViolation) as error:
        found = [error.parts]
    return tuple(Problem.from_parts(parts) for parts in found)
