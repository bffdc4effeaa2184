"""Options that several commands have."""

from __future__ import annotations

import argparse

from tosaic.base.defaults import TARGET
from tosaic.cli.entries import binding, io_entry, order_entry, positive, source_entry, threads

PRECISE = "precise"
"""A configuration of `add_calibration`: int8, with values inside units not rounded."""

_CONFIGS = ("int8", "uint8", "int16x8", PRECISE)
OBSERVERS = ("minmax", "moving_average", "percentile", "mse", "entropy")


def add_bind(command: argparse.ArgumentParser) -> None:
    """Adds ``--bind`` and ``--trust``."""
    command.add_argument(
        "--bind",
        metavar="INPUT:AXIS=SIZE",
        type=binding,
        action="append",
        default=[],
        help="size of a symbolic dimension, such as x:0=1; may be repeated",
    )
    add_trust(command)


def add_trust(command: argparse.ArgumentParser) -> None:
    """Adds ``--trust``."""
    command.add_argument(
        "--trust",
        action="store_true",
        help="run code that a file has, such as pickles of a .pt2 file or functions that a recipe names",
    )


def add_source(command: argparse.ArgumentParser) -> None:
    """Adds ``--source``."""
    command.add_argument(
        "--source",
        metavar="DELEGATE=FILE",
        type=source_entry,
        action="append",
        default=[],
        help="the .tosa file that computes a delegate of a .pte file, such as delegate0=model.tosa; may be "
        "repeated",
    )


def add_threads(command: argparse.ArgumentParser) -> None:
    """Adds ``--threads``."""
    command.add_argument(
        "--threads",
        type=threads,
        metavar="N",
        help="threads of a run (default: all cores); results do not depend on it",
    )


def add_csv(command: argparse.ArgumentParser) -> None:
    """Adds ``--csv``."""
    command.add_argument("--csv", metavar="FILE", help="write each buffer of the memory plan and its place")


def add_profile(command: argparse.ArgumentParser, what: str) -> None:
    """Adds ``--profile`` for the time of `what`."""
    command.add_argument(
        "--profile",
        nargs="?",
        const="",
        metavar="OUT",
        help=f"show where the time of {what} goes; OUT: .trace.json for browsers, .json, .html or text",
    )


def add_target(command: argparse.ArgumentParser) -> None:
    """Adds ``--target``."""
    command.add_argument("--target", default=TARGET, help="what to lower to (default: %(default)s)")


def add_file_and_samples(command: argparse.ArgumentParser) -> None:
    """Adds the file to read and ``--samples``."""
    command.add_argument("file", metavar="FILE", help="a .pt2 file, graph text or an archive of tosaic")
    command.add_argument(
        "--samples",
        required=True,
        metavar="ARRAYS",
        action="append",
        help="an .npz by input names, or an .npy: a sample, or a stack of them; may be repeated",
    )


def add_io(command: argparse.ArgumentParser) -> None:
    """Adds ``--io`` and ``--orders``."""
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


def add_calibration(command: argparse.ArgumentParser) -> None:
    """Adds the options of a quantization, which `calibration` reads."""
    command.add_argument(
        "--config",
        choices=_CONFIGS,
        help="the integers of activations (default: int8); precise: int8, with fewer values rounded, at more "
        "cycles",
    )
    command.add_argument(
        "--for",
        dest="plan_for",
        metavar="DEVICE",
        help="make the plan that costs this device least (default: a plan that no device computes slowly)",
    )
    command.add_argument(
        "--budget",
        type=float,
        metavar="CYCLES",
        help="search for the most accurate mix of int8 and int16x8 that takes DEVICE at most these cycles",
    )
    command.add_argument(
        "--least-db",
        type=float,
        metavar="DB",
        help="search for the mix with this SQNR that takes DEVICE the fewest cycles",
    )
    command.add_argument(
        "--weight-bits", type=int, metavar="N", help="bits of weights, 2 to 8 (default: 8); stored as int8"
    )
    command.add_argument(
        "--group-size", type=int, metavar="N", help="how many input channels of a weight share a scale"
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
    add_threads(command)
