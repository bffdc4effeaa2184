"""``tosaic run``: run a program on arrays."""

from __future__ import annotations

import argparse
import io
from pathlib import Path

from tosaic.cli.entries import bindings, positive, refused_option, with_sources
from tosaic.cli.errors import OK, USAGE, fail
from tosaic.cli.options import add_bind, add_profile, add_source, add_threads
from tosaic.cli.showing import check_profile, show, show_with_profile

SUMMARY = "run a program on arrays"


def add_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of ``tosaic run``."""
    command.add_argument("file", metavar="FILE")
    command.add_argument(
        "--input",
        required=True,
        metavar="ARRAYS",
        help="an .npz by input names, or an .npy: a sample, or a stack of them",
    )
    command.add_argument(
        "-o", "--output", required=True, metavar="OUT", help="the .npz (or .npy, for one output) to write"
    )
    add_profile(command, "runs")
    command.add_argument(
        "--runs", type=positive, metavar="N", help="how many runs are measured, with --profile (default: 10)"
    )
    add_threads(command)
    add_source(command)
    add_bind(command)


def run(args: argparse.Namespace) -> int:
    """Runs ``tosaic run``; returns the exit code."""
    import numpy as np

    from tosaic.base.threads import run_threads
    from tosaic.base.writing import write_arrays, write_bytes
    from tosaic.opening.sources import program_of, require_use
    from tosaic.program.samples import read_samples
    from tosaic.program.stacked_calls import laid_out
    from tosaic.report.document import Report
    from tosaic.report.parts import Section, Table

    check_profile(args, args.output)
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
        show(report, args)
    else:
        show_with_profile(report, profile, args)
    return OK
