"""Quantizes a file by the options of ``quantize`` and of ``lower --calibrate``."""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tosaic.base.defaults import INTEGER_TARGET, TARGET, WIDE_INTEGER_TARGET
from tosaic.cli.entries import bindings, refused_option
from tosaic.cli.options import PRECISE

if TYPE_CHECKING:
    from tosaic.annotation.config import QConfig
    from tosaic.quantizing.quantized_program import QuantizedProgram

_PRECISIONS = ("config", "weight_bits", "group_size", "observer")
_OPTIONS = (*_PRECISIONS, "plan_for", "budget", "least_db", "workers", "threads", "tool")


def quantized_file(args: argparse.Namespace, samples: Sequence[str]) -> tuple[QuantizedProgram, float]:
    """Quantizes the program of the file that `args` names; returns it, and the seconds that it took."""
    from tosaic.api.calls import open_program
    from tosaic.quantizing.quantize_program import quantize

    config = _config(args)
    program = open_program(args.file, bind=bindings(args.bind), trust=args.trust)
    start = time.perf_counter()
    with _workers(args.workers) as executor:
        quantized = quantize(
            program,
            list(samples),
            target=args.plan_for,
            budget=args.budget,
            least_db=args.least_db,
            config=config,
            tools=tuple(args.tool or ()),
            executor=executor,
        )
    return quantized, time.perf_counter() - start


def default_target(args: argparse.Namespace) -> str:
    """Returns the default target of `lower`: a target with integers, if the command quantizes the program."""
    if not args.calibrate:
        return TARGET
    return WIDE_INTEGER_TARGET if args.config == "int16x8" or _searches(args) else INTEGER_TARGET


def refuse_calibration_options(args: argparse.Namespace) -> None:
    """Refuses options that have no meaning without samples.

    Raises
    ------
    InvalidGraph
        `args` has such an option.
    """
    for name in _OPTIONS:
        if getattr(args, name) is not None:
            option = "--for" if name == "plan_for" else _option(name)
            raise refused_option(option, "nothing is quantized", "--calibrate ARRAYS in addition")


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def _searches(args: argparse.Namespace) -> bool:
    return args.budget is not None or args.least_db is not None


def _config(args: argparse.Namespace) -> QConfig | None:
    from tosaic.annotation.config import QConfig

    if _searches(args):
        for name in _PRECISIONS:
            if getattr(args, name) is not None:
                what = "--budget and --least-db search for the integers"
                raise refused_option(_option(name), what, f"no {_option(name)}, or --for DEVICE alone")
        return None
    config = args.config or "int8"
    given = {name: getattr(args, name) for name in ("weight_bits", "group_size", "observer")}
    options = {name: value for name, value in given.items() if value is not None}
    if args.plan_for is not None:
        planned = QConfig.for_target(args.plan_for)
        options["every_operator"] = planned.every_operator
        if planned.precision is not None:
            options["stream"] = planned.precision.stream
    if config == PRECISE:
        config, options["every_operator"], options["stream"] = "int8", False, "unrounded"
    make: Any = getattr(QConfig, config)
    made: QConfig = make(**options)
    return made


@contextmanager
def _workers(count: int | None) -> Iterator[Executor | None]:
    """Provides processes that run samples, or None for this process.

    They are spawned, because a fork would copy locks that threads of torch hold. Only the parent reacts to an
    interrupt, and stops them.
    """
    if count is None:
        yield None
        return
    context = multiprocessing.get_context("spawn")
    ignore = (signal.SIGINT, signal.SIG_IGN)
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=signal.signal, initargs=ignore)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)
