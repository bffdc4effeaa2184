"""``tosaic inspect``: print what a file holds."""

from __future__ import annotations

import argparse
import json

from tosaic.base.defaults import TARGET
from tosaic.base.file_kinds import PTE
from tosaic.cli.entries import bindings, with_sources
from tosaic.cli.errors import OK
from tosaic.cli.options import add_bind, add_csv, add_source
from tosaic.cli.output import say
from tosaic.cli.showing import show

SUMMARY = "print what a file holds"


def add_options(command: argparse.ArgumentParser) -> None:
    """Adds the options of ``tosaic inspect``."""
    command.add_argument(
        "file", metavar="FILE", help="a .pt2, .tosa or .pte file, graph text or an archive of tosaic"
    )
    command.add_argument(
        "--layout",
        action="store_true",
        help="its layout plan too: transposes, who wants them, the proof; of a .tosa file, dim orders",
    )
    command.add_argument(
        "--target",
        help=f"what to lower to, for --layout (default: {TARGET}) and --quantization (default: TOSA-1.0+INT)",
    )
    command.add_argument(
        "--memory",
        action="store_true",
        help="the memory that it runs in; of a .pte file, its plan next to tosaic's",
    )
    add_csv(command)
    command.add_argument(
        "--quantization",
        action="store_true",
        help="only its quantization: values that are integers, operators that compute with floats, and why",
    )
    command.add_argument("--text", action="store_true", help="the graph as text, too")
    command.add_argument("--dot", action="store_true", help="the graph for Graphviz, only")
    add_source(command)
    add_bind(command)


def run(args: argparse.Namespace) -> int:
    """Runs ``tosaic inspect``; returns the exit code."""
    from tosaic.api.calls import lower
    from tosaic.opening.sources import program_of, require_use
    from tosaic.pte.file import PteFile, load_pte
    from tosaic.quantizing.explanation import explain_quantization
    from tosaic.report.memory import describe_pte_memory
    from tosaic.report.program import describe_graph

    (source,) = with_sources(args.source, args.file)
    if PTE.holds(args.file) and not (args.dot or args.quantization or args.layout):
        file = source if isinstance(source, PteFile) else load_pte(args.file)
        # the contents of the file, also if its program cannot run here
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
        show(explain_quantization(program, **target).report(), args)
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
