"""The public functions of the package: read, lower, check and compare programs."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, overload

from tosaic import _core
from tosaic.base.defaults import THRESHOLD_DB
from tosaic.base.options import checked, invalid, refusal, unsupported
from tosaic.base.problems import CheckResult, Problem
from tosaic.base.target import Target
from tosaic.base.threads import batch_threads
from tosaic.base.writing import make_folder, write_text
from tosaic.lowering.lowered import Lowered
from tosaic.lowering.pipeline import Pipeline
from tosaic.opening.sources import from_exported, open_program, program_of, require_use
from tosaic.ports.boundary_orders import Form, boundary_orders
from tosaic.ports.lower_io import io_forms

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tosaic.base.quantization import QParams
    from tosaic.lowering.layout import Objective
    from tosaic.partitions.claimant import Claimant
    from tosaic.partitions.plan import PartitionPlan
    from tosaic.partitions.split_lowered import SplitLowered
    from tosaic.ports.foreign import ForeignOp
    from tosaic.program.comparison import Comparison
    from tosaic.program.program import Program

__all__ = ["check", "compare", "from_exported", "lower", "open_program", "partition"]

_LOG = logging.getLogger(__name__)


@overload
def lower(
    program: Any,
    *,
    target: str | None = ...,
    pipeline: Pipeline | None = ...,
    unsupported: Literal["error"] = ...,
    bind: Any = ...,
    dump: str | os.PathLike[str] | None = ...,
    verify: bool = ...,
    io: Mapping[str, str | Mapping[str | int, str | QParams]] | None = ...,
    orders: Mapping[str, Form | Mapping[str | int, Form]] | None = ...,
    objective: Objective = ...,
    operators: Sequence[ForeignOp] = ...,
    trust: bool = ...,
) -> Lowered: ...
@overload
def lower(
    program: Any,
    *,
    target: str | None = ...,
    unsupported: Literal["split"],
    bind: Any = ...,
    dump: str | os.PathLike[str] | None = ...,
    verify: bool = ...,
    io: Mapping[str, str | Mapping[str | int, str | QParams]] | None = ...,
    orders: Mapping[str, Form | Mapping[str | int, Form]] | None = ...,
    objective: Objective = ...,
    operators: Sequence[ForeignOp] = ...,
    trust: bool = ...,
    claimants: Sequence[str | Claimant] | None = ...,
    pipelines: Mapping[str, Pipeline] | None = ...,
) -> SplitLowered: ...
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
    io: Mapping[str, str | Mapping[str | int, str | QParams]] | None = None,
    orders: Mapping[str, Form | Mapping[str | int, Form]] | None = None,
    objective: Objective = "bytes",
    operators: Sequence[ForeignOp] = (),
    trust: bool = False,
    claimants: Sequence[str | Claimant] | None = None,
    pipelines: Mapping[str, Pipeline] | None = None,
) -> Lowered | SplitLowered:
    """Lowers a program to one TOSA graph, or to several graphs for the parts that targets support.

    The result owns its constants: this call copies them, so a later change to the module does not affect the
    result. Only `Lowered.source`, the program that was passed in, may still be a view of torch's memory. The
    call releases the GIL: a thread that frees or writes weights during the call races with it.

    Parameters
    ----------
    program : Program, torch.export.ExportedProgram, Graph or path
    target : str, optional
        Version, profiles and extensions. ``"TOSA-1.0+FP"`` by default.
    pipeline : Pipeline, optional
        The passes to run, instead of ``Pipeline.default(target)``. A pipeline has a target; a different
        `target` in addition is refused.
    unsupported : {"error", "split"}
        What to do about operators that the target does not support. ``"error"`` raises an `UnsupportedOp`
        that names all of them. ``"split"`` lowers the parts of the program that the target, or one of the
        `claimants`, supports. The rest stays on the host; the result is a `SplitLowered`.
    bind : optional
        Sizes of symbolic dimensions, as in `from_exported`. Accepted only if `program` is an exported program
        or a ``.pt2`` file.
    dump : path, optional
        Folder for graph dumps. The graph is written there as text after each pass that changed it. With
        ``unsupported="split"``, the names of the files contain the name of the group.
    verify : bool
        Verify the graph before the first pass and after each pass that changed it.
    io : mapping, optional
        The forms of the float inputs and outputs of a quantized program, such as ``{"inputs": "int8",
        "outputs": "float32"}``, or by path, name or index: ``{"inputs": {"image": "float32", "grid":
        "int16"}, "outputs": {0: "int8"}}``. With ``"float32"`` they are floats, and the graph quantizes and
        dequantizes them itself. With ``"int8"``, ``"uint8"``, ``"int16"`` or ``"int32"`` they are integers,
        and the caller's arrays hold these integers. A `QParams` means integers with these qparams. An input
        or output without an entry has floats if the target has profile FP. For other targets it is integers
        in the graph, but the caller's arrays are floats: `Lowered.run` converts them with the qparams that
        `Lowered.io` shows. The notes say more about ``"uint8"`` and qparams.
    orders : mapping, optional
        Memory orders of the arrays at inputs and outputs, such as ``{"inputs": "nhwc"}`` or ``{"inputs":
        {"x": "channels_last", 1: "nhwc"}, "outputs": "contiguous"}``. The value for a side is one order for
        all tensors of rank 3 to 5, or a mapping from path, name or index to an order. The notes list the
        orders.
    objective : {"bytes", "count"} or callable
        What the layout plan minimises: the bytes that are transposed, the number of transposes, or the sum of
        the caller's costs of the transposes. A cost function is called with a
        `tosaic.lowering.Candidate` (name, shape, dtype, bytes), once for each value, and returns an
        integer, 0 or more: the cost of transposing the value, whatever the two orders are. Among plans of
        equal cost, the plan with the
        fewest transposes is chosen (for ``"count"``, the plan with the fewest bytes).
    operators : sequence of ForeignOp
        Descriptions of operators that tosaic does not have, as in `from_exported`. Accepted only if `program`
        is an exported program or a path.
    trust : bool
        Whether torch may run code that a ``.pt2`` file has, as in `open_program`.
    claimants : sequence of str or Claimant, optional
        The takers of nodes, in order of priority: names such as ``"ethos-u55-128"``, targets such
        as ``"TOSA-1.0+INT"``, or `Claimant`. Only with ``unsupported="split"``, and instead of `target`.
    pipelines : mapping of str to Pipeline, optional
        By name of a claimant, the passes that lower its groups, instead of the default ones. Only with
        ``unsupported="split"``, and instead of `pipeline`. A pipeline has the target of its claimant.

    Returns
    -------
    Lowered or SplitLowered
        A `SplitLowered` if `unsupported` is ``"split"``. Then `io` is applied as by
        `tosaic.extract_io_quant` before the program is split, so inputs and outputs without an entry are
        floats.

    Raises
    ------
    InvalidGraph
        An option has a value that is not accepted, `io` or `orders` name an input or output that does not
        exist, `objective` returns something that is not a cost, the order of the pipeline has a fault, or one
        of its passes returns a broken graph.
    QuantMismatch
        `io` asks for a dtype that an input or output is not quantized to. The message names it.
    UnsupportedOp
        Operators have no lowering. ``problems`` of the exception lists all of them with their reasons.
    SpecViolation
        The lowered graph breaks rules of the target, such as the limits of its level. ``problems`` of the
        exception lists all violations.

    Notes
    -----
    An order in `orders` is one of:

    - ``"traced"``: the order of the example inputs and of the outputs at export.
    - ``"contiguous"``: arrays have the logical shape and row-major strides.
    - ``"channels_last"``: arrays have the logical shape and channels-last strides.
    - ``"nhwc"``: arrays have the physical shape (channels are the last axis) and row-major strides.
    - a dim order, such as ``(0, 2, 3, 1)``: the logical axes, outermost first. Arrays have the logical shape.

    Below rank 3, ``"channels_last"`` and ``"nhwc"`` mean row-major. States have no entry, and an order for
    all inputs does not concern them. An input or output without an entry is as traced, with one exception: an
    output is row-major if its traced order comes from a view and is not the order of a memory format. The new
    value of an input that the program writes always has the order of that input. `Lowered.run` refuses arrays
    that have another memory order than the declared one.

    In `io`, ``"uint8"`` for an input or output that is quantized to int8 means the same scale, and a zero
    point that is greater by 128. TOSA has no dtype uint8: the file has int8 tensors, whose bits a RESCALE
    with `input_unsigned` reads, or one with `output_unsigned` writes. A program that is quantized to uint8
    computes with int8 in TOSA, so ``"int8"`` for such a port means a zero point that is less by 128. If an
    input has the caller's qparams, integer rescales convert it to each of the qparams with which the program
    quantizes it. An output is converted from the qparams with which the program dequantizes it.
    """
    from tosaic.lowering.layout import objective_of

    require_use("lower", bind, program, operators=operators)
    if unsupported == "split":
        return _lower_split(
            program_of(program, bind=bind, operators=operators, trust=trust),
            [target or Pipeline.default().target] if claimants is None else claimants,
            refused={"target": None if claimants is None else target, "pipeline": pipeline},
            boundary={"io": io, "orders": orders},
            objective=objective_of(objective),
            verify=verify,
            on_change=None if dump is None else _dump_to(dump),
            pipelines=pipelines,
        )
    for option, value in (("claimants", claimants), ("pipelines", pipelines)):
        if value is not None:
            raise refusal("lower", option, "None, unless unsupported='split'", value)
    passes = _pipeline_of("lower", target, pipeline)
    target = passes.target if target is None else target
    source = program_of(program, bind=bind, operators=operators, trust=trust)
    if pipeline is None:
        _require_integers("lower", source.graph, target)
    source.overrides.warn_of_loss("the lowered program")
    start = time.perf_counter()
    source.verify_weights()
    on_change = None if dump is None else _dump_to(dump)
    declared = boundary_orders(source.graph, orders, views_as_traced=False)
    asked: Any = objective_of(objective)
    forms = io_forms(source.graph, io, has_floats=Target.parse(target).has_floats)
    try:
        lowered = _core.lower(
            forms.graph,
            pipeline=passes.core,
            verify_each=verify,
            on_change=on_change,
            objective=asked,
            input_orders=declared["inputs"],
            output_orders=declared["outputs"],
            inputs=forms.forms.get("inputs"),
            outputs=forms.forms.get("outputs"),
            threads=batch_threads(),
            file=True,
        )
    except (_core.UnsupportedOp, _core.SpecViolation) as error:
        # setattr, since mypy knows no attribute `problems` of the error classes of the extension module.
        problems = tuple(Problem.from_parts(parts) for parts in error.each)
        setattr(error, "problems", problems)  # noqa: B010
        raise
    forms.require(lowered.tosa)
    for lost in _lost_numbers(source.graph, lowered.tosa):
        _LOG.warning("%s", lost)
    is_quantized = any(node.op == "quantize" for node in lowered.exported.nodes)
    if is_quantized and not Target.parse(target).has_integers:
        _LOG.warning(
            "this program is quantized, and %s computes it in floats, as torch does: "
            "lower it for TOSA-1.0+INT to have integer arithmetic",
            target,
        )
    seconds = time.perf_counter() - start
    return Lowered(lowered, source, target=target, seconds=seconds, objective=asked)


@checked
def check(
    program: Any,
    *,
    target: str | None = None,
    pipeline: Pipeline | None = None,
    bind: Any = None,
    operators: Sequence[ForeignOp] = (),
    trust: bool = False,
) -> CheckResult:
    """Lists the reasons why a program would not lower, without writing anything.

    Parameters
    ----------
    program : Program, torch.export.ExportedProgram, Graph or path
    target, pipeline : optional
        As `lower` takes them.
    bind : optional
        Sizes of symbolic dimensions, as in `from_exported`. Accepted only if `program` is an exported program
        or a ``.pt2`` file.
    operators : sequence of ForeignOp
        As `lower` takes them.
    trust : bool
        Whether torch may run code that a ``.pt2`` file has, as in `open_program`.

    Returns
    -------
    CheckResult
        All reasons as data. The result is true in a condition if there is no reason.

    Raises
    ------
    InvalidGraph
        The target is not understood, the program is malformed, or the order of the pipeline has a fault.
    """
    require_use("check", bind, program, operators=operators)
    passes = _pipeline_of("check", target, pipeline)
    target = passes.target if target is None else target
    try:
        source = program_of(program, bind=bind, operators=operators, trust=trust)
    except _core.UnsupportedOp as error:
        return CheckResult(target, (Problem.from_parts(error.parts),), 0)
    try:
        if pipeline is None:
            _require_integers("check", source.graph, target)
    except _core.UnsupportedOp as error:
        return CheckResult(target, (Problem.from_parts(error.parts),), len(source.graph))
    problems, tosa = _try_to_lower(source.graph, passes)
    lowered = [tosa] if tosa and any(node.op == "dequantize" for node in source.graph.nodes) else []
    return CheckResult(target, problems, len(source.graph), _lost_numbers(source.graph, *lowered))


def _lost_numbers(graph: _core.Graph, *tosa: _core.Graph) -> tuple[str, ...]:
    """Returns what is to be said about biases and operands whose numbers the integers lose."""
    from tosaic.calibration.collapsed_operands import collapsed_operands
    from tosaic.calibration.saturated_biases import saturated_biases

    return tuple(map(str, (*saturated_biases(graph), *collapsed_operands(graph, *tosa))))


@checked
def compare(
    a: Any,
    b: Any,
    samples: Any,
    *,
    threshold_db: float = THRESHOLD_DB,
    local: bool = True,
    bind: Any = None,
    operators: Sequence[ForeignOp] = (),
    trust: bool = False,
    models: Mapping[Any, Callable[..., Any]] | Callable[..., Any] | None = None,
) -> Comparison:
    """Runs two programs on the same inputs and compares them node by node.

    Parameters
    ----------
    a : torch.export.ExportedProgram, Program, Lowered, Graph or path
        The reference. An exported program or a ``.pt2`` file runs in torch eager, and the result of each node
        is recorded. Other references run on tosaic's executor.
    b : Program, Lowered, Graph, torch.export.ExportedProgram or path
        The program to judge. It runs on tosaic's executor.
    samples : tuple, dict, array, path of an npz or npy file, or an iterable of them
        A tuple holds positional arguments, a dict keyword arguments or arrays by input name or path. Arrays
        have the shapes and dtypes of the exported program; they are permuted and quantized as the inputs of
        either side need it. Arrays with an additional first axis, or with a multiple of the program's extent
        on the first axis, are stacks of samples, as in `tosaic.quantize`. All states have their initial
        values before each sample. Over several samples the worst of each figure is reported.
    threshold_db : float
        The least signal to noise ratio of an output of floats, in dB. If the reference has quantize or
        rescale nodes, its outputs are judged by their local errors instead: see `Comparison.ok`. If b is
        quantized and a is not, all outputs are judged by their ratios alone.
    local : bool
        Separate the error that a node makes itself (the local error) from the error that it inherits from
        earlier nodes, and judge nodes by their local errors. For this, each node of a runs again on the
        values of b, with tosaic's kernels. If torch is the reference, both errors are measured against
        tosaic's own run of the exported graph. If False, outputs are judged by the threshold, and no nodes.
    bind : optional
        Sizes of symbolic dimensions, as in `from_exported`, for the sides that are exported programs or
        ``.pt2`` files.
    operators : sequence of ForeignOp
        Descriptions of operators that tosaic does not have, for the sides that are exported programs or
        paths. Without `operators`, an exported program is compared with the descriptions of the other side.
    trust : bool
        Whether torch may run code that a ``.pt2`` file has, as in `open_program`. torch's loader reads
        the reference that torch runs.
    models : mapping or callable, optional
        Models of operators of b, as in `Program.prepare`. Only b runs them: the local error of a modelled
        node is the deviation of its model from tosaic's kernels. a and b may be the same program.

    Returns
    -------
    Comparison
        True in a condition if b computes the same as a, as `Comparison.ok` defines it.

    Raises
    ------
    InvalidGraph
        The programs have different inputs or outputs, the samples do not fit them, or `bind` has sizes
        although neither program has symbolic dimensions. Or a key of `models` selects no node of b, or a
        model raises an exception.
    LayoutMismatch
        A model returned another dtype or shape than its node has.
    QuantMismatch
        An input or output is an integer in a ``.tosa`` file and a float in the reference, and the reference
        does not say which floats the integers represent.

    Notes
    -----
    A quantized program may be compared with the float program that it was made from. Values are compared
    by the numbers that integers represent, and errors show the loss by quantization: the local error of a
    node comes from its own rounding and from its weights. See `Comparison.against_floats`.

    A ``.tosa`` file does not record the memory order of its inputs and outputs. The order of an input may be
    the one that a declares, the traced one, row-major or channels-last. Each order is first tried for all
    inputs together, then mixtures of orders are tried, at most 24 attempts in total. The first attempt that
    is right for all samples is used; if none is right, the best one is reported. The order of each output is
    searched for among the same candidates.

    Functions of `Program.with_overrides` apply to their own side. A function for a foreign operator also
    applies to the other side, unless that side has its own function.
    """
    from tosaic.comparing.compare_programs import compare_programs

    require_use("compare", bind, a, b, operators=operators)
    return compare_programs(
        a,
        b,
        samples,
        threshold_db=threshold_db,
        local=local,
        bind=bind,
        operators=operators,
        models=models,
        trust=trust,
    )


def _lower_split(
    source: Program,
    claimants: Any,
    *,
    refused: Mapping[str, Any],
    boundary: Mapping[str, Any],
    **options: Any,
) -> SplitLowered:
    from tosaic.fx.io.partition_boundary import with_boundary
    from tosaic.partitions.propose import require_claimants, require_pipelines
    from tosaic.partitions.split_lowered import lower_split

    for option, value in refused.items():
        if value is not None:
            split = "None with unsupported='split'"
            expected = "None if 'claimants' are given" if option == "target" else split
            raise refusal("lower", option, expected, value, hint=_INSTEAD[option])
    takers = require_claimants("lower", claimants)
    require_pipelines("lower", options["pipelines"] or {}, takers)
    return lower_split(with_boundary(source, **boundary), takers, source=source, **options)


_INSTEAD = {
    "target": "Each claimant has its own target",
    "pipeline": "Each claimant has its own pipeline: pipelines={name: pipeline}",
}


@checked
def partition(
    program: Any,
    claimants: Sequence[str | Claimant],
    *,
    connected: bool = True,
    bind: Any = None,
    operators: Sequence[ForeignOp] = (),
    trust: bool = False,
) -> PartitionPlan:
    """Plans which claimant takes which nodes of a program, with reasons.

    The claimants choose in order. Each gets as few groups as possible, given the groups of those before it.
    A node that no claimant takes stays on the host. The plan has all reasons of all claimants against it.

    Parameters
    ----------
    program : Program, torch.export.ExportedProgram, Graph or path
    claimants : sequence of str or Claimant
        Names such as ``"ethos-u55-128"``, targets such as ``"TOSA-1.0+INT"``, or `Claimant`.
    connected : bool
        If False, a group may have nodes that are not connected, which needs fewer groups.
    bind, operators
        As in `from_exported`.
    trust : bool
        Whether torch may run code that a ``.pt2`` file has, as in `open_program`.

    Returns
    -------
    PartitionPlan

    Raises
    ------
    InvalidGraph
        `claimants` is empty, names a claimant twice or one that does not exist, or a rule of a claimant
        matches nothing; or the program is at a stage after quantization.

    Examples
    --------
    >>> plan = tosaic.partition(exported, ["TOSA-1.0+INT", "TOSA-1.0+FP"])  # doctest: +SKIP
    >>> plan.why("softmax")  # doctest: +SKIP
    """
    from tosaic.partitions.propose import propose, require_claimants

    require_use("partition", bind, program, operators=operators)
    chosen = require_claimants("partition", claimants)
    source = program_of(program, bind=bind, operators=operators, trust=trust).snapshot()
    return propose(source.graph, chosen, connected=connected).plan


def _pipeline_of(where: str, target: str | None, pipeline: Any) -> Pipeline:
    """Returns the given pipeline, or the default pipeline of the target."""
    if pipeline is None:
        return Pipeline.default(target)
    if not isinstance(pipeline, Pipeline):
        raise refusal(where, "pipeline", "a tosaic.Pipeline, or None", pipeline)
    if target is not None and Pipeline.default(target).target != pipeline.target:
        raise invalid(
            where,
            "the pipeline is for another target",
            expected=pipeline.target,
            got=target,
            hint="Leave 'target' out, or make the pipeline with Pipeline.default(target)",
        )
    return pipeline


def _require_integers(where: str, graph: _core.Graph, target: str) -> None:
    """Refuses a program at stage quantized, whose values are integers, for a target without integers."""
    if graph.stage == "quantized" and not Target.parse(target).has_integers:
        raise unsupported(
            where,
            "the program is quantized, and the target has no integer arithmetic",
            expected="a target with profile INT, such as TOSA-1.0+INT",
            got=target,
            hint="To compute the rounded numbers with floats, lower what "
            "QuantizedProgram.to_exported() returns",
        )


def _try_to_lower(graph: _core.Graph, passes: Pipeline) -> tuple[tuple[Problem, ...], _core.Graph | None]:
    """Returns all reasons why a graph does not fit a target, and the graph of TOSA if there are none.

    An error that stops the search for reasons is returned as a reason, too.
    """
    tosa = None
    try:
        found, tosa = _core.try_to_lower(graph, pipeline=passes.core)
    except (_core.UnsupportedOp, _core.SpecViolation) as error:
        found = [error.parts]
    return tuple(Problem.from_parts(parts) for parts in found), tosa


def _dump_to(folder: str | os.PathLike[str]) -> Callable[[str, _core.Graph], None]:
    """Makes the folder, and a callback that writes each changed graph to it as ``NN-<pass>.txt``."""
    target = make_folder(folder)
    count = 0

    def write(name: str, graph: _core.Graph) -> None:
        nonlocal count
        write_text(target / f"{count:02d}-{name}.txt", graph.text())
        count += 1

    return write
