"""The commands and options that ``tosaic`` accepts."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from tosaic.base.defaults import INTEGER_TARGET, TARGET, THRESHOLD_DB
from tosaic.cli.entries import binding, io_entry, order_entry, positive, source_entry, threads
from tosaic.cli.output import say

__all__ = ["OBSERVERS", "UsageError", "asks_for_json", "parser_of"]

_CONFIGS = ("int8", "uint8", "int16x8")
OBSERVERS = ("minmax", "moving_average", "percentile", "mse", "entropy")

Run = Callable[[argparse.Namespace], int]
"""Runs a command; returns the exit code."""


def asks_for_json(argv: Sequence[str]) -> bool:
    """True if ``--json`` or an abbreviation of it is among arguments that could not be parsed."""
    options = argv[: list(argv).index("--")] if "--" in argv else argv
    return any(len(text) > 2 and "--json".startswith(text) for text in options)


class UsageError(Exception):
    """The arguments are wrong; `usage` is argparse's text about the accepted ones."""

    def __init__(self, message: str, usage: str) -> None:
        super().__init__(message)
        self.usage = usage


class _Parser(argparse.ArgumentParser):
    """Raises `UsageError` for wrong arguments, so that `main` reports them."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, self.format_usage())

    def print_help(self, file: Any = None) -> None:
        """Prints the help to standard output with `say`, as the commands print their output."""
        if file is None:
            say(self.format_help())
        else:
            super().print_help(file)


class _Version(argparse.Action):
    """Prints the version. The core knows the version and is imported only here, not when parsing."""

    def __init__(self, option_strings: Sequence[str], dest: str, **kwargs: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **kwargs)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from tosaic._core import __version__

        say(f"tosaic {__version__}\n")
        parser.exit()


def _add_bind(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--bind",
        metavar="INPUT:AXIS=SIZE",
        type=binding,
        action="append",
        default=[],
        help="size of a symbolic dimension, such as x:0=1; may be repeated",
    )
    _add_trust(command)


def _add_trust(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--trust",
        action="store_true",
        help="run code that a file has, such as pickles of a .pt2 file or functions that a recipe names",
    )


def _add_source(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--source",
        metavar="DELEGATE=FILE",
        type=source_entry,
        action="append",
        default=[],
        help="the .tosa file that computes a delegate of a .pte file, such as delegate0=model.tosa; may be "
        "repeated",
    )


def _add_threads(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--threads",
        type=threads,
        metavar="N",
        help="threads of a run (default: all cores); results do not depend on it",
    )


def _add_csv(command: argparse.ArgumentParser) -> None:
    command.add_argument("--csv", metavar="FILE", help="write each buffer of the memory plan and its place")


def _add_profile(command: argparse.ArgumentParser, what: str) -> None:
    command.add_argument(
        "--profile",
        nargs="?",
        const="",
        metavar="OUT",
        help=f"show where the time of {what} goes; OUT: .trace.json for browsers, .json, .html or text",
    )


def _add_target(command: argparse.ArgumentParser) -> None:
    command.add_argument("--target", default=TARGET, help="what to lower to (default: %(default)s)")


def _add_calibration(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config", choices=_CONFIGS, help="the integers of activations (default: int8)")
    command.add_argument(
        "--weight-bits", type=int, metavar="N", help="bits of weights, 2 to 8 (default: 8); stored as int8"
    )
    command.add_argument(
        "--group-size", type=int, metavar="N", help="so many input channels of a weight have a scale"
    )
    command.add_argument(
        "--observer",
        choices=OBSERVERS,
        help="from what the ranges of activations follow (default: least error; for inputs all samples)",
    )
    command.add_argument(
        "--tool",
        action="append",
        choices=("equalize", "smooth", "gptq", "bias_correction"),
        help="an accuracy tool; may be repeated. The report says what each gains",
    )
    command.add_argument(
        "--workers", type=positive, metavar="N", help="run samples in N processes (default: in this one)"
    )
    _add_threads(command)


def _add_file_and_samples(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", metavar="FILE", help="a .pt2 file, graph text or an archive of tosaic")
    command.add_argument(
        "--samples",
        required=True,
        metavar="ARRAYS",
        action="append",
        help="an .npz by input names, or an .npy: a sample, or a stack of them; may be repeated",
    )


def _add_sensitivity(command: argparse.ArgumentParser) -> None:
    _add_file_and_samples(command)
    command.add_argument(
        "--wanted-db", type=float, metavar="DB", help="search for the cheapest mix with this SQNR"
    )
    command.add_argument(
        "--levels",
        default="int8,int16x8",
        metavar="A,B",
        help="precisions, the cheapest first: int8, uint8, int16x8, float (default: %(default)s)",
    )
    command.add_argument("--plot", metavar="FILE", help="write the curve of SQNR over cost as SVG")
    _add_bind(command)
    command.add_argument("--report", metavar="FILE", help="write the report too: .html, .json or text")


def _add_quantize(command: argparse.ArgumentParser) -> None:
    _add_file_and_samples(command)
    command.add_argument(
        "-o", "--output", metavar="OUT", help="the archive to write (default: FILE with .tosaic)"
    )
    _add_calibration(command)
    _add_bind(command)
    command.add_argument("--report", metavar="FILE", help="write the report too: .html, .json or text")


def _add_io(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--io",
        metavar="NAME=DTYPE",
        type=io_entry,
        action="append",
        default=[],
        help="what floats of a quantized program's inputs or outputs become, such as inputs=int8, "
        "outputs.0=float32 or x=uint8; may be repeated",
    )
    command.add_argument(
        "--orders",
        metavar="SIDE[.NAME]=ORDER",
        type=order_entry,
        action="append",
        default=[],
        help="how arrays lie, such as inputs=nhwc, inputs.x=channels_last or outputs.0=0,2,3,1; "
        "may be repeated",
    )


def _add_lower(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", metavar="FILE", help="a .pt2 file, graph text or an archive of tosaic")
    command.add_argument("-o", "--output", metavar="OUT", help="the file to write (default: FILE with .tosa)")
    command.add_argument(
        "--target",
        help=f"what to lower to (default: {TARGET}; with --calibrate {INTEGER_TARGET}, "
        "and +int16 for int16x8)",
    )
    _add_bind(command)
    command.add_argument(
        "--calibrate",
        metavar="ARRAYS",
        action="append",
        default=[],
        help="quantize FILE first, on samples as quantize takes them; may be repeated",
    )
    _add_calibration(command)
    _add_io(command)
    command.add_argument(
        "--objective",
        default="bytes",
        metavar="WHAT",
        help="what transposes are made least by: bytes or count (default: %(default)s)",
    )
    command.add_argument("--dump", metavar="DIR", help="write each graph to DIR that a pass changed")
    command.add_argument("--report", metavar="FILE", help="write the report too: .html, .json or text")
    command.add_argument(
        "--sidecar",
        action="store_true",
        help="write OUT.json too: the signature, orders and qparams with which run takes the caller's arrays",
    )
    command.add_argument("--no-locations", action="store_true", help="leave the origins out of the file")
    _add_profile(command, "lowering")


def _add_export(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "file",
        metavar="MODEL",
        help="a .pt2 file, graph text, an archive of tosaic, or a Python function module:name that returns a "
        "torch module and its example inputs",
    )
    command.add_argument(
        "--recipe",
        metavar="RECIPE",
        action="append",
        required=True,
        help="a name that the command recipes lists, a .json file of a recipe, or a Python object "
        "module:name; may be repeated to combine recipes",
    )
    command.add_argument(
        "--samples",
        metavar="ARRAYS",
        action="append",
        default=[],
        help="an .npz by input names, or an .npy: a sample, or a stack of them, to quantize and to check on; "
        "may be repeated",
    )
    command.add_argument("-o", "--output", metavar="FOLDER", required=True, help="a new folder for the files")
    command.add_argument("--floats", action="store_true", help="quantize nothing")
    command.add_argument(
        "--claimants", metavar="NAMES", help="who takes nodes, in order, in place of those of the recipe"
    )
    _add_io(command)
    command.add_argument(
        "--rgba",
        metavar="SIDE.NAME",
        action="append",
        default=[],
        help="an RGB image that has four channels, such as inputs.image; may be repeated",
    )
    command.add_argument(
        "--check-on",
        action="append",
        choices=("reference", "vgf"),
        help="run the groups there, too, with equal results: the TOSA reference model, or Vulkan",
    )
    command.add_argument(
        "--least-db",
        type=float,
        metavar="DB",
        help="an output with a lower SQNR against the model in floats fails",
    )
    command.add_argument("--name", default="model", help="the stem of file names (default: %(default)s)")
    command.add_argument(
        "--verbose",
        type=int,
        default=1,
        metavar="N",
        help="0: nothing, 1: a progress bar, 2: a line for each step, 3: all messages (default: %(default)s)",
    )
    _add_bind(command)


def _add_recipes(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "recipe", metavar="RECIPE", nargs="*", help="print this recipe; several are combined"
    )
    command.add_argument("--diff", action="store_true", help="say how two recipes differ")
    command.add_argument("-o", "--output", metavar="FILE", help="write the recipe as JSON")
    _add_trust(command)


def _add_check(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", metavar="FILE")
    _add_target(command)
    _add_bind(command)


def _add_partition(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", metavar="FILE")
    command.add_argument(
        "--claimants",
        metavar="NAMES",
        action="append",
        required=True,
        help="who takes nodes, in order: names such as ethos-u55-128,cortex-m55, or TOSA targets",
    )
    command.add_argument(
        "--why", metavar="NODE", action="append", help="say where this node goes, with all reasons"
    )
    command.add_argument(
        "--disconnected", action="store_true", help="a group may have nodes that are not connected"
    )
    command.add_argument("--report", metavar="FILE", help="write the report: .html, .json or text")
    command.add_argument("-o", "--output", metavar="FOLDER", help="lower the groups, and write them there")
    command.add_argument(
        "--memory",
        action="store_true",
        help="lower the groups, and show one memory plan over host and groups instead",
    )
    _add_csv(command)
    _add_bind(command)


def _add_inspect(command: argparse.ArgumentParser) -> None:
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
    _add_csv(command)
    command.add_argument(
        "--quantization",
        action="store_true",
        help="only its quantization: values that are integers, operators that compute with floats, and why",
    )
    command.add_argument("--text", action="store_true", help="the graph as text, too")
    command.add_argument("--dot", action="store_true", help="the graph for Graphviz, only")
    _add_source(command)
    _add_bind(command)


def _add_kernels(command: argparse.ArgumentParser) -> None:
    command.add_argument("files", metavar="FILE", nargs="+", help=".pte files that one runtime has to run")
    command.add_argument(
        "-o", "--output", metavar="OUT", help="write the list for ExecuTorch's selective build: a .yaml file"
    )
    command.add_argument(
        "--all-dtypes", action="store_true", help="kernels for all dtypes, not only those of the calls"
    )
    command.add_argument("--report", metavar="FILE", help="write the report too: .html, .json or text")


def _add_run(command: argparse.ArgumentParser) -> None:
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
    _add_profile(command, "runs")
    command.add_argument(
        "--runs", type=positive, metavar="N", help="so many runs are measured, with --profile (default: 10)"
    )
    _add_threads(command)
    _add_source(command)
    _add_bind(command)


def _add_compare(command: argparse.ArgumentParser) -> None:
    command.add_argument("a", metavar="A", help="the reference; a .pt2 runs in torch")
    command.add_argument("b", metavar="B")
    command.add_argument(
        "--input", required=True, action="append", metavar="ARRAYS", help="an .npz or .npy; may be repeated"
    )
    command.add_argument(
        "--threshold",
        type=float,
        default=THRESHOLD_DB,
        metavar="DB",
        help="an output of floats with a lower SQNR fails (default: %(default)s)",
    )
    command.add_argument("--report", metavar="FILE", help="write the report too: .html, .json or text")
    _add_threads(command)
    _add_source(command)
    _add_bind(command)


def _add_diff(command: argparse.ArgumentParser) -> None:
    command.add_argument("a", metavar="A")
    command.add_argument("b", metavar="B")
    _add_bind(command)


def _add_passes(command: argparse.ArgumentParser) -> None:
    command.add_argument("--target", default=TARGET, help="for which target (default: %(default)s)")


def _add_ops(command: argparse.ArgumentParser) -> None:
    command.add_argument("--markdown", action="store_true", help="as the page docs/reference/operators.md")


def _add_demo(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--out", default="tosaic-demo", metavar="DIR", help="where to leave the files (default: %(default)s)"
    )


_COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "export": ("export, quantize, lower and check a model, as a recipe says", _add_export),
    "recipes": ("list recipes, print one, or compare two", _add_recipes),
    "lower": ("lower a program to a .tosa file", _add_lower),
    "quantize": ("quantize a program of floats on samples", _add_quantize),
    "sensitivity": ("say what each layer loses in low precision, and find cheap mixes", _add_sensitivity),
    "check": ("say what would not lower, and why", _add_check),
    "partition": ("plan which target takes which nodes, and say why", _add_partition),
    "inspect": ("print what a file holds", _add_inspect),
    "kernels": ("list the kernels that a runtime has to register for .pte files", _add_kernels),
    "run": ("run a program on arrays", _add_run),
    "compare": ("compare two programs node by node on the same inputs", _add_compare),
    "diff": ("say how two graphs differ", _add_diff),
    "passes": ("list the passes that lower runs, in order", _add_passes),
    "ops": ("list the operators", _add_ops),
    "demo": ("train, quantize, lower and check a small network", _add_demo),
}


def parser_of(functions: Mapping[str, Run]) -> argparse.ArgumentParser:
    """Returns the parser of the command line. `functions` has the function of each command, by name."""
    parser = _Parser(
        prog="tosaic",
        description="From torch.export to verified TOSA.",
        epilog="Exit codes: 0 ok, 1 a check failed, 2 usage, 3 unsupported, 4 internal.",
    )
    parser.add_argument("--version", action=_Version, help="print the version")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, (summary, add_options) in _COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary[0].upper() + summary[1:] + ".")
        command.add_argument("--json", action="store_true", help="print JSON")
        command.set_defaults(run=functions[name])
        add_options(command)
    return parser
