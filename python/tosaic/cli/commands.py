"""What each command does. Modules that a command needs are imported when it runs."""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tosaic.cli.calibration import default_target, quantized_file, refuse_calibration_options
from tosaic.cli.entries import bindings, io_sides, orders, refused_option, with_sources
from tosaic.cli.errors import ABOUT_FOREIGN, FAILED, OK, USAGE, fail
from tosaic.cli.exporting import export, list_recipes
from tosaic.cli.output import say

if TYPE_CHECKING:
    from tosaic.base.reportable import Reportable
    from tosaic.profiling.lowering import LoweringProfile
    from tosaic.profiling.profile import Profile
    from tosaic.report import Report

__all__ = ["COMMANDS"]


def _show(report: Report, args: argparse.Namespace) -> None:
    say((report.json if args.json else report.text) + "\n")


def _lower(args: argparse.Namespace) -> int:
    from tosaic.api.calls import lower, open_program
    from tosaic.report.quantized import with_calibration

    out = _output(args, ".tosa")
    _check_profile(args, out)
    program: Any = args.file
    bind = bindings(args.bind)
    if args.calibrate:
        (program, seconds), bind = quantized_file(args, args.calibrate), None
    else:
        refuse_calibration_options(args)
        if any(place not in ("inputs", "outputs") for place, _ in args.io):  # names are those of the program
            program, bind = open_program(args.file, bind=bind, trust=args.trust), None
    lowered = lower(
        program,
        target=default_target(args) if args.target is None else args.target,
        bind=bind,
        trust=args.trust,
        dump=args.dump,
        io=io_sides(args.io, program),
        orders=orders(args.orders),
        objective=args.objective,
    )
    lowered.save(out, locations=not args.no_locations, sidecar=args.sidecar)
    report = lowered.report()
    if args.calibrate:
        report = with_calibration(report, program, seconds)
    if args.report:
        report.save(args.report)
    if args.profile is None:
        _show(report, args)
    else:
        _show_with_profile(report, lowered.profile, args)
    if not args.json:
        say(f"\nwrote {out}\n")
    return OK


def _check_profile(args: argparse.Namespace, out: str) -> None:
    """Checks the file of ``--profile`` before the work that takes time.

    Raises
    ------
    InvalidGraph
        It is the file of ``--output``.
    WriteError
        It cannot be written.
    """
    from tosaic.base.writing import check_place

    if not args.profile:
        return
    if Path(args.profile).resolve() == Path(out).resolve():
        raise refused_option("--profile", "the file is that of --output, too", "the name of another file")
    check_place(args.profile)


def _show_with_profile(report: Report, profile: Profile | LoweringProfile, args: argparse.Namespace) -> None:
    """Prints a report and a profile, which is written if ``--profile`` names a file."""
    measured = profile.report()
    if args.profile:
        profile.save(args.profile)
    if args.json:
        _show(replace(report, data={**report.data, "profile": measured.data}), args)
        return
    say(f"{report.text}\n\n{measured.text}\n" + (f"\nwrote {args.profile}\n" if args.profile else ""))


def _quantize(args: argparse.Namespace) -> int:
    from tosaic.report.quantized import describe_quantized

    out = _output(args, ".tosaic")
    if Path(out).suffix == ".tosa":
        expected = "another suffix, such as .tosaic; lower --calibrate writes .tosa files"
        raise refused_option("--output", "a quantized program is saved as an archive", expected)
    program, seconds = quantized_file(args, args.samples)
    program.save(out)
    report = describe_quantized(program, seconds=seconds)
    if args.report:
        report.save(args.report)
    report = replace(report, data={"output": out, **report.data})
    _show(report, args)
    if not args.json:
        say(f"\nwrote {out}\n")
    return OK


def _sensitivity(args: argparse.Namespace) -> int:
    from tosaic.api.calls import open_program
    from tosaic.base.writing import check_place
    from tosaic.quantizing.sensitivity import sensitivity

    for place in (args.plot, args.report):
        if place:
            check_place(place)
    found = sensitivity(
        open_program(args.file, bind=bindings(args.bind), trust=args.trust),
        list(args.samples),
        wanted_db=args.wanted_db,
        levels=args.levels.split(","),
    )
    report = found.report()
    if args.plot:
        found.plot(args.plot)
    if args.report:
        report.save(args.report)
    _show(report, args)
    is_met = args.wanted_db is None or any(mix.db >= args.wanted_db for mix in found.curve)
    return OK if is_met else FAILED


def _output(args: argparse.Namespace, suffix: str) -> str:
    """Returns the path of the file to write. It is checked before the work that takes time.

    Raises
    ------
    InvalidGraph
        The file to read is a folder; or the option is missing, and the default would replace that file.
    WriteError
        The folder is missing, or the file may not be written.
    """
    from tosaic.base.options import file_path
    from tosaic.base.writing import check_place

    file_path("open", args.file)  # a folder has no suffix to replace
    out = args.output or str(Path(args.file).with_suffix(suffix))
    if not args.output and Path(out) == Path(args.file):
        raise refused_option("--output", "the file to write is the one to read", "the name of another file")
    check_place(out)
    return out


def _check(args: argparse.Namespace) -> int:
    from tosaic.api.calls import check

    result = check(args.file, target=args.target, bind=bindings(args.bind), trust=args.trust)
    _show(result.report(), args)
    if not args.json and any("foreign" in problem.what for problem in result.problems):
        say(f"\n{ABOUT_FOREIGN}\n")
    return OK if result.ok else FAILED


def _partition(args: argparse.Namespace) -> int:
    from tosaic.api.calls import open_program, partition
    from tosaic.partitions.propose import require_claimants
    from tosaic.partitions.split_lowered import lower_split
    from tosaic.report.numbers import count

    program = open_program(args.file, bind=bindings(args.bind), trust=args.trust)
    names = [name for each in args.claimants for name in each.split(",") if name]
    claimants = require_claimants("partition", names)
    connected = not args.disconnected
    split = None
    if args.output or args.memory or args.csv:
        split = lower_split(program, claimants, source=program, connected=connected)
    plan = partition(program, claimants, connected=connected)
    shown: Reportable = plan if split is None or not args.memory else split.plan_memory()
    if args.report:
        shown.report().save(args.report)
    for node in args.why or ():
        _show(plan.why(node).report(), args)
    if not args.why:
        _show(shown.report(), args)
    if split is not None and args.csv:
        split.plan_memory().to_csv(args.csv)
    if split is not None and args.output:
        files = split.save(args.output)
        if not args.json:
            say(f"\nwrote {count(len(files), 'file')} to {args.output}\n")
    return OK


def _inspect(args: argparse.Namespace) -> int:
    from tosaic.api.calls import lower
    from tosaic.base.defaults import TARGET
    from tosaic.opening.sources import program_of, require_use
    from tosaic.pte.file import PteFile, load_pte
    from tosaic.quantizing.explanation import explain_quantization
    from tosaic.report import describe_graph
    from tosaic.report.memory import describe_pte_memory

    (source,) = with_sources(args.source, args.file)
    if Path(args.file).suffix == ".pte" and not (args.dot or args.quantization or args.layout):
        file = source if isinstance(source, PteFile) else load_pte(args.file)
        # what the file says, also if its program does not run here
        report = describe_pte_memory(file) if args.memory else file.report()
        say((report.json if args.json else report.full_text if args.text else report.text) + "\n")
        if args.csv:
            file.method().memory_plan.to_csv(args.csv)
        return OK
    bind = bindings(args.bind)
    require_use("open", bind, args.file)
    program = program_of(source, bind=bind, trust=args.trust)
    if args.csv:
        program.plan_memory().to_csv(args.csv)
    if args.dot:
        dot = program.graph.dot()
        say((json.dumps({"dot": dot}) if args.json else dot) + "\n")
        return OK
    if args.quantization:
        target = {} if args.target is None else {"target": args.target}
        _show(explain_quantization(program, **target).report(), args)
        return OK
    planned = args.layout and program.stage != "tosa"
    report = describe_graph(
        program,
        layout=lower(program, target=args.target or TARGET).layout if planned else None,
        dim_orders=args.layout and not planned,
        with_memory=args.memory,
    )
    say((report.json if args.json else report.full_text if args.text else report.text) + "\n")
    return OK


def _kernels(args: argparse.Namespace) -> int:
    from tosaic.base.writing import check_place
    from tosaic.registration.listing import kernel_list

    for place in (args.output, args.report):
        if place:
            check_place(place)
    if args.all_dtypes and not args.output:
        raise refused_option("--all-dtypes", "no list is written", "--output with the name of a file")
    kernels = kernel_list(args.files)
    if args.output:
        kernels.save(args.output, dtypes=not args.all_dtypes)
    report = kernels.report()
    if args.report:
        report.save(args.report)
    _show(report, args)
    if args.output and not args.json:
        say(f"\nwrote {args.output}\n")
    return OK


def _run(args: argparse.Namespace) -> int:
    import numpy as np

    from tosaic.base.threads import run_threads
    from tosaic.base.writing import write_arrays, write_bytes
    from tosaic.opening.sources import program_of, require_use
    from tosaic.program.samples import read_samples
    from tosaic.program.stacked_calls import laid_out
    from tosaic.report import Report, Section, Table

    _check_profile(args, args.output)
    if args.runs is not None and args.profile is None:
        raise refused_option("--runs", "no run is measured", "--profile in addition")
    bind = bindings(args.bind)
    require_use("open", bind, args.file)
    program = program_of(*with_sources(args.source, args.file), bind=bind, trust=args.trust)
    (sample,) = read_samples(args.input, program)
    given = zip(program.arrays(*sample.args, **sample.kwargs), program.inputs, strict=True)
    named = {port.path or port.name: laid_out(array, port) for array, port in given}
    (sample,) = read_samples(named, program)
    profile = None
    if args.profile is None:
        result, mutations = program.run_functional(*sample.args, **sample.kwargs)
    else:
        prepared = program.prepare(threads=run_threads())
        profile = prepared.profile(*sample.args, runs=args.runs or 10, **sample.kwargs)
        result, mutations = profile.result, prepared.mutations
    outputs = {**mutations, **program.flat_outputs(result)}
    rows = tuple((path, str(array.dtype), str(list(array.shape))) for path, array in outputs.items())
    if Path(args.output).suffix == ".npy":
        if len(outputs) != 1:
            message = f"an .npy file holds one array, and there are {len(outputs)} outputs: write an .npz"
            return fail(message, USAGE, kind="usage", as_json=args.json)
        contents = io.BytesIO()
        np.save(contents, next(iter(outputs.values())))
        write_bytes(args.output, contents.getbuffer())
    else:
        write_arrays(args.output, outputs)
    data = {"output": args.output, "arrays": {row[0]: {"dtype": row[1], "shape": row[2]} for row in rows}}
    section = Section("", Table(("output", "dtype", "shape"), rows))
    report = Report(f"wrote {args.output}", sections=(section,), data=data)
    if profile is None:
        _show(report, args)
    else:
        _show_with_profile(report, profile, args)
    return OK


def _compare(args: argparse.Namespace) -> int:
    from tosaic.api.calls import compare

    a, b = with_sources(args.source, args.a, args.b)
    comparison = compare(
        a, b, list(args.input), threshold_db=args.threshold, bind=bindings(args.bind), trust=args.trust
    )
    report = comparison.report()
    if args.report:
        report.save(args.report)
    _show(report, args)
    return OK if comparison.ok else FAILED


def _diff(args: argparse.Namespace) -> int:
    from tosaic.opening.sources import program_of, require_use
    from tosaic.report import describe_diff

    bind = bindings(args.bind)
    require_use("diff", bind, args.a, args.b)
    a, b = (program_of(path, bind=bind, trust=args.trust) for path in (args.a, args.b))
    difference = a.graph.diff(b.graph)
    _show(describe_diff(args.a, args.b, difference), args)
    return FAILED if difference else OK


def _passes(args: argparse.Namespace) -> int:
    from tosaic.lowering.pipeline import Pipeline
    from tosaic.report import describe_pipeline

    _show(describe_pipeline(Pipeline.default(args.target)), args)
    return OK


def _ops(args: argparse.Namespace) -> int:
    from tosaic import _core
    from tosaic.report import describe_ops
    from tosaic.report.operators import operators_document

    if args.markdown:
        page = operators_document(_core.ops())
        say(json.dumps({"markdown": page}) + "\n" if args.json else page)
        return OK
    _show(describe_ops(_core.ops()), args)
    return OK


def _demo(args: argparse.Namespace) -> int:
    from tosaic.cli.demo import run_demo

    result = run_demo(args.out)
    _show(result.report(), args)
    if not args.json:
        say(f"\nwrote {', '.join(str(path) for path in result.files)}\n")
    return OK if result.ok else FAILED


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "export": export,
    "recipes": list_recipes,
    "lower": _lower,
    "quantize": _quantize,
    "sensitivity": _sensitivity,
    "check": _check,
    "partition": _partition,
    "inspect": _inspect,
    "kernels": _kernels,
    "run": _run,
    "compare": _compare,
    "diff": _diff,
    "passes": _passes,
    "ops": _ops,
    "demo": _demo,
}
"""The function of each command: it takes the parsed arguments and returns the exit code."""
