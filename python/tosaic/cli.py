"""The command ``tosaic``.

Exit codes: 0 ok, 1 a check failed, 2 usage, 3 unsupported, 4 internal error, 130 interrupted. If a file or
standard output cannot be written, the exit code is 2, whatever the command found. ``--help`` imports neither
torch nor the core. With ``--json`` standard output is one JSON object at every exit code: the result of the
command, or ``{"error": {"kind", "message", "exit_code", "problems"}}``.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from tosaic.report import Report

__all__ = ["FAILED", "INTERNAL", "OK", "UNSUPPORTED", "USAGE", "main"]

OK, FAILED, USAGE, UNSUPPORTED, INTERNAL = range(5)
INTERRUPTED = 130
_DEFAULT_TARGET = "TOSA-1.0+FP"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    parser = _parser()
    asked = sys.argv[1:] if argv is None else argv
    try:
        args = parser.parse_args(argv)
        if args.command is None:
            parser.print_help()
            return USAGE
    except _UsageError as error:
        return _fail(str(error), USAGE, kind="usage", as_json=_asks_for_json(asked), before=error.usage)
    except _OutputError as error:
        return _complain(str(error), USAGE)
    try:
        return int(args.run(args))
    except _OutputError as error:
        return _complain(str(error), USAGE)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED, kind="interrupt", as_json=args.json)
    except Exception as error:
        return _fail(
            _message(error),
            _exit_code(error),
            kind=_kind(error),
            as_json=args.json,
            problems=_problems(error),
        )


class _OutputError(Exception):
    """Standard output cannot be written: the disk is full, or the system reports another error."""


def _say(text: str) -> None:
    """Writes to standard output; characters that its encoding lacks become escapes.

    It is not an error if the reader of a pipe, such as ``head``, has ended: the exit code is still that of
    the command's result.

    Raises
    ------
    _OutputError
        The system refuses to write. Standard output leads to the null device from then on.
    """
    stream = sys.stdout
    if stream is None:  # closed before the process began
        return
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except BrokenPipeError:
        _silence(stream)
    except OSError as error:
        _silence(stream)
        raise _OutputError(f"[output] standard output could not be written: got {error.strerror}") from error


def _silence(stream: Any) -> None:
    """Redirects a stream to the null device, else the interpreter's final flush would fail again."""
    with suppress(OSError, ValueError, AttributeError):
        number = stream.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, number)
        os.close(nowhere)


def _complain(message: str, code: int, *, before: str = "") -> int:
    """Writes a message to standard error, if that can be written; returns the exit code `code`."""
    try:
        sys.stderr.write(f"{before}tosaic: {message}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):  # full, closed or absent; the exit code remains
        _silence(sys.stderr)
    return code


def _exit_code(error: Exception) -> int:
    from tosaic import _core

    if isinstance(error, _core.UnsupportedOp | _core.SpecViolation):
        return UNSUPPORTED
    if isinstance(error, _core.InternalError):
        return INTERNAL
    if isinstance(error, _core.Error | OSError | ImportError):
        return USAGE
    return INTERNAL


def _message(error: Exception) -> str:
    from tosaic import _core

    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return f"there is no file '{error.filename}'"
    if isinstance(error, _core.Error | OSError | ImportError):
        return str(error)
    import traceback

    return "".join(traceback.format_exception(error)) + "This is a fault of tosaic; please report it."


def _kind(error: Exception) -> str:
    """The name of the error's class; for a missing file that of Python's own class."""
    return "FileNotFoundError" if isinstance(error, FileNotFoundError) else type(error).__name__


def _problems(error: Exception) -> list[dict[str, str]]:
    """The parts of each problem that an error of tosaic lists; empty for other errors."""
    each = getattr(error, "each", None) or [getattr(error, "parts", None)]
    return [dict(parts) for parts in each if parts]


def _fail(
    message: str,
    code: int,
    *,
    kind: str,
    as_json: bool,
    problems: Sequence[dict[str, str]] = (),
    before: str = "",
) -> int:
    """Reports an error as text on standard error and, with `as_json`, also as JSON on standard output."""
    _complain(message, code, before=before)
    if as_json:
        error = {"kind": kind, "message": message, "exit_code": code, "problems": list(problems)}
        try:
            _say(json.dumps({"error": error}, indent=2) + "\n")
        except _OutputError as fault:
            return _complain(str(fault), USAGE)
    return code


def _asks_for_json(argv: Sequence[str]) -> bool:
    """True if ``--json`` or an abbreviation of it is among arguments that could not be parsed."""
    options = argv[: list(argv).index("--")] if "--" in argv else argv
    return any(len(text) > 2 and "--json".startswith(text) for text in options)


class _UsageError(Exception):
    """The arguments are wrong; `usage` is argparse's text about the accepted ones."""

    def __init__(self, message: str, usage: str) -> None:
        super().__init__(message)
        self.usage = usage


class _Parser(argparse.ArgumentParser):
    """Raises `_UsageError` for wrong arguments, so that `main` reports them."""

    def error(self, message: str) -> NoReturn:
        raise _UsageError(message, self.format_usage())

    def print_help(self, file: Any = None) -> None:
        """Prints the help to standard output with `_say`, as the commands print their output."""
        if file is None:
            _say(self.format_help())
        else:
            super().print_help(file)


def _show(report: Report, args: argparse.Namespace) -> None:
    _say((report.json if args.json else report.text) + "\n")


# ---- commands ----


def _lower(args: argparse.Namespace) -> int:
    import tosaic

    lowered = tosaic.lower(
        args.file,
        target=args.target,
        bind=_bindings(args.bind),
        dump=args.dump,
        io=_entries("--io", args.io),
        orders=_orders(args.orders),
        objective=args.objective,
    )
    out = args.output or str(Path(args.file).with_suffix(".tosa"))
    if not args.output and Path(out) == Path(args.file):
        raise _usage("--output", "the file to write is the one to read", "the name of another file")
    lowered.save(out, locations=not args.no_locations)
    report = lowered.report()
    if args.report:
        report.save(args.report)
    _show(report, args)
    if not args.json:
        _say(f"\nwrote {out}\n")
    return OK


def _check(args: argparse.Namespace) -> int:
    import tosaic

    result = tosaic.check(args.file, target=args.target, bind=_bindings(args.bind))
    _show(result.report(), args)
    return OK if result.ok else FAILED


def _inspect(args: argparse.Namespace) -> int:
    from tosaic.api import lower, open_program
    from tosaic.report import describe_graph

    program = open_program(args.file, bind=_bindings(args.bind))
    if args.dot:
        dot = program.graph.dot()
        _say((json.dumps({"dot": dot}) if args.json else dot) + "\n")
        return OK
    planned = args.layout and program.stage != "tosa"
    report = describe_graph(
        program,
        layout=lower(program, target=args.target).layout if planned else None,
        dim_orders=args.layout and not planned,
        with_memory=args.memory,
    )
    _say((report.json if args.json else report.full_text if args.text else report.text) + "\n")
    return OK


def _run(args: argparse.Namespace) -> int:
    import numpy as np

    from tosaic.api import open_program
    from tosaic.report import Report, Section, Table
    from tosaic.samples import read_samples
    from tosaic.writing import write_arrays, write_bytes

    program = open_program(args.file, bind=_bindings(args.bind))
    (sample,) = read_samples(args.input, program)
    result, mutations = program.run_functional(*sample.args, **sample.kwargs)
    outputs = {**mutations, **program.flat_outputs(result)}
    rows = tuple((path, str(array.dtype), str(list(array.shape))) for path, array in outputs.items())
    if Path(args.output).suffix == ".npy":
        if len(outputs) != 1:
            message = f"an .npy file holds one array, and there are {len(outputs)} outputs: write an .npz"
            return _fail(message, USAGE, kind="usage", as_json=args.json)
        contents = io.BytesIO()
        np.save(contents, next(iter(outputs.values())))
        write_bytes(args.output, contents.getbuffer())
    else:
        write_arrays(args.output, outputs)
    data = {"output": args.output, "arrays": {row[0]: {"dtype": row[1], "shape": row[2]} for row in rows}}
    section = Section("", Table(("output", "dtype", "shape"), rows))
    _show(Report(f"wrote {args.output}", sections=(section,), data=data), args)
    return OK


def _compare(args: argparse.Namespace) -> int:
    import tosaic

    comparison = tosaic.compare(
        args.a, args.b, list(args.input), threshold_db=args.threshold, bind=_bindings(args.bind)
    )
    report = comparison.report()
    if args.report:
        report.save(args.report)
    _show(report, args)
    return OK if comparison.ok else FAILED


def _diff(args: argparse.Namespace) -> int:
    from tosaic.api import program_of, require_use
    from tosaic.report import describe_diff

    bind = _bindings(args.bind)
    require_use("diff", bind, args.a, args.b)
    a, b = (program_of(path, bind=bind) for path in (args.a, args.b))
    difference = a.graph.diff(b.graph)
    _show(describe_diff(args.a, args.b, difference), args)
    return FAILED if difference else OK


def _passes(args: argparse.Namespace) -> int:
    from tosaic.pipeline import Pipeline
    from tosaic.report import describe_pipeline

    _show(describe_pipeline(Pipeline.default(args.target)), args)
    return OK


def _ops(args: argparse.Namespace) -> int:
    from tosaic import _core
    from tosaic.report import describe_ops
    from tosaic.report.operators import operators_document

    if args.markdown:
        page = operators_document(_core.ops())
        _say(json.dumps({"markdown": page}) + "\n" if args.json else page)
        return OK
    _show(describe_ops(_core.ops()), args)
    return OK


def _demo(args: argparse.Namespace) -> int:
    from tosaic.demo import run_demo

    result = run_demo(args.out)
    _show(result.report(), args)
    if not args.json:
        _say(f"\nwrote {', '.join(str(path) for path in result.files)}\n")
    return OK if result.ok else FAILED


# ---- arguments ----


def _bindings(given: Sequence[str]) -> dict[str, dict[int, int]] | None:
    """``x:0=1`` -> ``{"x": {0: 1}}``."""
    bound: dict[str, dict[int, int]] = {}
    for text in given:
        place, _, size = text.rpartition("=")
        name, _, axis = place.rpartition(":")
        sizes = bound.setdefault(name, {})
        if int(axis) in sizes:
            raise _usage("--bind", f"axis {axis} of '{name}' is given twice", "each axis once")
        sizes[int(axis)] = int(size)
    return bound or None


def _entries(option: str, given: Sequence[tuple[str, Any]]) -> dict[str, Any] | None:
    """The entries as a dict. A key that occurs twice is refused: a dict would silently use the last one."""
    entries: dict[str, Any] = {}
    for key, value in given:
        if key in entries:
            raise _usage(option, f"'{key}' is given twice", "each entry once")
        entries[key] = value
    return entries or None


def _orders(given: Sequence[tuple[str, str, Any]]) -> dict[str, Any] | None:
    """``("inputs", "x", "nhwc")`` -> ``{"inputs": {"x": "nhwc"}}``; an empty name means the whole side."""
    sides: dict[str, Any] = {}
    for side, name, form in given:
        if not name:
            if side in sides:
                raise _usage(
                    "--orders", f"'{side}' is given twice", "one order for all, or one for each name"
                )
            sides[side] = form
            continue
        named = sides.setdefault(side, {})
        key = int(name) if name.isdecimal() else name
        if not isinstance(named, dict) or key in named:
            raise _usage("--orders", f"'{side}' is given twice", "one order for all, or one for each name")
        named[key] = form
    return sides or None


def _usage(option: str, what: str, expected: str) -> Exception:
    from tosaic import _core

    return _core.make_error(_core.InvalidGraph, where=option, what=what, expected=expected)


def _io_entry(text: str) -> tuple[str, str]:
    side, _, dtype = text.partition("=")
    if not side or not dtype:
        raise argparse.ArgumentTypeError(f"'{text}' is not SIDE=DTYPE, such as inputs=int8")
    return side, dtype


def _order_entry(text: str) -> tuple[str, str, str | tuple[int, ...]]:
    place, _, form = text.rpartition("=")
    side, dot, name = place.partition(".")
    if not side or not form or (dot and not name):
        raise argparse.ArgumentTypeError(
            f"'{text}' is not SIDE=ORDER or SIDE.NAME=ORDER, such as inputs.x=channels_last"
        )
    axes = form.strip("()").split(",")
    if all(axis.strip().isdecimal() for axis in axes):
        return side, name, tuple(map(int, axes))
    return side, name, form


def _binding(text: str) -> str:
    place, _, size = text.rpartition("=")
    name, _, axis = place.rpartition(":")
    if not name or not size.isdecimal() or not axis.removeprefix("-").isdecimal():
        raise argparse.ArgumentTypeError(f"'{text}' is not INPUT:AXIS=SIZE, such as x:0=1")
    return text


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="tosaic",
        description="From torch.export to verified TOSA.",
        epilog="Exit codes: 0 ok, 1 a check failed, 2 usage, 3 unsupported, 4 internal.",
    )
    parser.add_argument("--version", action=_Version, help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")

    def add(name: str, run: Callable[[argparse.Namespace], int], summary: str) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        command.add_argument("--json", action="store_true", help="print JSON")
        command.set_defaults(run=run)
        return command

    def add_bind(command: argparse.ArgumentParser) -> None:
        command.add_argument(
            "--bind",
            metavar="INPUT:AXIS=SIZE",
            type=_binding,
            action="append",
            default=[],
            help="size of a symbolic dimension, such as x:0=1; may be repeated",
        )

    def add_target(command: argparse.ArgumentParser) -> None:
        command.add_argument(
            "--target", default=_DEFAULT_TARGET, help="what to lower to (default: %(default)s)"
        )

    lower = add("lower", _lower, "lower a program to a .tosa file")
    lower.add_argument("file", metavar="FILE", help="a .pt2 file, graph text or an archive of tosaic")
    lower.add_argument("-o", "--output", metavar="OUT", help="the file to write (default: FILE with .tosa)")
    add_target(lower)
    add_bind(lower)
    lower.add_argument(
        "--io",
        metavar="SIDE=DTYPE",
        type=_io_entry,
        action="append",
        default=[],
        help="what floats of a quantized program's inputs or outputs become, such as inputs=int8 or "
        "outputs=float32; may be repeated",
    )
    lower.add_argument(
        "--orders",
        metavar="SIDE[.NAME]=ORDER",
        type=_order_entry,
        action="append",
        default=[],
        help="how arrays lie, such as inputs=nhwc, inputs.x=channels_last or outputs.0=0,2,3,1; "
        "may be repeated",
    )
    lower.add_argument(
        "--objective",
        default="bytes",
        metavar="WHAT",
        help="what transposes are made least by: bytes or count (default: %(default)s)",
    )
    lower.add_argument("--dump", metavar="DIR", help="write each graph to DIR that a pass changed")
    lower.add_argument("--report", metavar="FILE", help="write the report too: .html, .json or text")
    lower.add_argument("--no-locations", action="store_true", help="leave the origins out of the file")

    check = add("check", _check, "say what would not lower, and why")
    check.add_argument("file", metavar="FILE")
    add_target(check)
    add_bind(check)

    inspect = add("inspect", _inspect, "print what a file holds")
    inspect.add_argument(
        "file", metavar="FILE", help="a .pt2 or .tosa file, graph text or an archive of tosaic"
    )
    inspect.add_argument(
        "--layout",
        action="store_true",
        help="its layout plan too: transposes, who wants them, the proof; of a .tosa file, dim orders",
    )
    add_target(inspect)
    inspect.add_argument("--memory", action="store_true", help="the memory that it runs in")
    inspect.add_argument("--text", action="store_true", help="the graph as text, too")
    inspect.add_argument("--dot", action="store_true", help="the graph for Graphviz, only")
    add_bind(inspect)

    run = add("run", _run, "run a program on arrays")
    run.add_argument("file", metavar="FILE")
    run.add_argument("--input", required=True, metavar="ARRAYS", help="an .npz by input names, or an .npy")
    run.add_argument(
        "-o", "--output", required=True, metavar="OUT", help="the .npz (or .npy, for one output) to write"
    )
    add_bind(run)

    compare = add("compare", _compare, "compare two programs node by node on the same inputs")
    compare.add_argument("a", metavar="A", help="the reference; a .pt2 runs in torch")
    compare.add_argument("b", metavar="B")
    compare.add_argument(
        "--input", required=True, action="append", metavar="ARRAYS", help="an .npz or .npy; may be repeated"
    )
    compare.add_argument(
        "--threshold",
        type=float,
        default=30.0,
        metavar="DB",
        help="an output of floats with a lower SQNR fails (default: %(default)s)",
    )
    compare.add_argument("--report", metavar="FILE", help="write the report too: .html, .json or text")
    add_bind(compare)

    diff = add("diff", _diff, "say how two graphs differ")
    diff.add_argument("a", metavar="A")
    diff.add_argument("b", metavar="B")
    add_bind(diff)

    passes = add("passes", _passes, "list the passes that lower runs, in order")
    passes.add_argument("--target", default=_DEFAULT_TARGET, help="for which target (default: %(default)s)")
    ops = add("ops", _ops, "list the operators")
    ops.add_argument("--markdown", action="store_true", help="as the page docs/operators.md")
    demo = add("demo", _demo, "train, export, lower and check a small network")
    demo.add_argument(
        "--out", default="tosaic-demo", metavar="DIR", help="where to leave the files (default: %(default)s)"
    )
    return parser


class _Version(argparse.Action):
    """Prints the version. The core knows the version and is imported only here, not when parsing."""

    def __init__(self, option_strings: Sequence[str], dest: str, **kwargs: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **kwargs)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from tosaic import __version__

        _say(f"tosaic {__version__}\n")
        parser.exit()


if __name__ == "__main__":
    sys.exit(main())
