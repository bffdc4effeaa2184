"""Decides by the options of `extract_io_quant` which ports become integers, and with which qparams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tosaic.base.options import refusal
from tosaic.base.quantization import QParams
from tosaic.ports.io_forms import (
    AUTO,
    Answer,
    Asked,
    Candidates,
    answer,
    by_port,
    port_map,
)
from tosaic.ports.port_names import Named

Ports = str | None | Iterable[str | int] | Mapping[str | int, str | QParams]
"""What the options `inputs` and `outputs` may be."""

_WHERE = "extract_io_quant"


def answers(
    side: str, wanted: Ports, named: Sequence[Named], candidates: Sequence[Candidates]
) -> list[tuple[Asked, Answer]]:
    """Returns for each port the option's value for it, and what the port becomes.

    Parameters
    ----------
    side : str
        ``inputs`` or ``outputs``.
    wanted : object
        The option `inputs` or `outputs`.
    named, candidates : sequence
        By position among the user's inputs (outputs).

    Raises
    ------
    InvalidGraph, QuantMismatch
        As `extract_io_quant`.
    """
    asked: dict[int, Asked] = {}
    if isinstance(wanted, str) and wanted == AUTO:
        asked = dict.fromkeys(range(len(named)), AUTO)
    elif wanted is not None:
        ports = port_map(wanted)
        if ports is None:
            expected = "'auto', None, a sequence of paths, names or indices, or a mapping of these"
            raise refusal(_WHERE, side, expected, wanted)
        asked = by_port(_WHERE, side, ports, named)
    out: list[tuple[Asked, Answer]] = []
    for i, (path, name) in enumerate(named):
        each = asked.get(i, "float32")
        out.append((each, answer(_WHERE, side, path or name, candidates[i], each)))
    return out
