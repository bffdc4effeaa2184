"""Vela's estimates for a ``.tosa`` file: totals, and a row for each operation of the device.

Vela's debug database has tables of texts. Three of them matter here::

    source    id  operator  ext_key ...                 ext_key: the index of the operator in the file
    perf      id  source_id  operator  name  op_cycles  npu_cycles  Sram_ac ...
    group     id  group_id                              a row that is part of another row's command

The rows of ``perf`` are those of Vela's option ``--verbose-performance``.
"""

from __future__ import annotations

import configparser
import csv
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree as ET

from tosaic import _core
from tosaic.base.options import refusal, unsupported
from tosaic.devices.device_compilers import VelaRun, require_tool, run_vela, vela_flags
from tosaic.devices.tool_cost import CostSummary, ToolCost, ToolRow
from tosaic.devices.vela_stream import pack_vela

__all__ = ["compile_with_summary", "vela_cost"]

_SECTIONS = {"memory_mode": "Memory_Mode", "system_config": "System_Config"}
_MEMORIES = {
    "sram_cycles": "Sram_ac",
    "dram_cycles": "Dram_ac",
    "on_chip_flash_cycles": "OnChipFlash_ac",
    "off_chip_flash_cycles": "OffChipFlash_ac",
}
_Tables = Mapping[str, Sequence[Mapping[str, str]]]


def vela_cost(tosa: bytes, member: str, options: Mapping[str, str], flags: Sequence[str] = ()) -> ToolCost:
    """Returns the estimated cost of a ``.tosa`` file on a member of Ethos-U.

    Parameters
    ----------
    tosa : bytes
    member : str
        Such as ``ethos-u85-256``.
    options : mapping of str to str
        ``memory_mode`` and ``system_config``, if they differ from those for which payloads are compiled.
    flags : sequence of str
        Further flags, as `vela_flags` takes them.

    Raises
    ------
    UnsupportedOp
        Vela refuses the file, or the combination of memory mode and system configuration.
    InvalidGraph
        Vela has no such memory mode or system configuration.
    ImportError
        Vela is not installed.
    """
    require_tool("vela")
    given = {flag.partition("=")[0] for flag in flags}
    for option, value in options.items():
        flag = f"--{option.replace('_', '-')}"
        if flag in given:
            raise refusal("device_cost", option, f"either '{option}' or the flag {flag}", value)
        known = _configured(_SECTIONS[option])
        if "--config" not in given and value not in known:
            raise refusal("device_cost", option, f"one of {', '.join(known)}", value)
        flags = (*flags, f"{flag}={value}")
    run = run_vela(tosa, vela_flags(member, flags), database=True)
    tables = _tables(run.database)
    return ToolCost(_summary(run, member), _rows(tables))


def compile_with_summary(tosa: bytes, flags: Sequence[str]) -> tuple[bytes, CostSummary | None]:
    """Returns Vela's stream of a ``.tosa`` file, and the totals that the same run of Vela estimates.

    There are no totals if they cannot be read.
    """
    run = run_vela(tosa, flags)
    named = (flag.partition("=")[2] for flag in flags if flag.startswith("--accelerator-config="))
    try:
        summary = _summary(run, next(named, ""))
    except _core.UnsupportedOp:  # totals of another version of Vela; the stream is still valid
        summary = None
    return pack_vela(run.arrays), summary


@cache
def _configured(section: str) -> tuple[str, ...]:
    """Returns the memory modes or system configurations in Arm's configuration file in Vela."""
    spec = find_spec("ethosu.vela")
    assert spec is not None
    assert spec.origin is not None
    file = Path(spec.origin).parents[1] / "config_files" / "Arm" / "vela.ini"
    parser = configparser.ConfigParser()
    parser.read(file)
    return tuple(name.partition(".")[2] for name in parser.sections() if name.startswith(f"{section}."))


def _summary(run: VelaRun, member: str) -> CostSummary:
    found = run.summary
    try:
        return CostSummary(
            device=member,
            source="vela",
            memory_mode=found["memory_mode"],
            system_config=found["system_config"],
            clock_hz=float(found["core_clock"]),
            cycles=round(float(found["cycles_total"])),
            npu_cycles=round(float(found["cycles_npu"])),
            sram_bytes=_bytes(found["sram_memory_used"]),
            dram_bytes=_bytes(found["dram_memory_used"]),
            on_chip_flash_bytes=_bytes(found["on_chip_flash_memory_used"]),
            off_chip_flash_bytes=_bytes(found["off_chip_flash_memory_used"]),
            macs=round(float(found["nn_macs"])),
            macs_per_cycle=int(member.rpartition("-")[2]),
        )
    except (KeyError, ValueError) as error:
        raise _unreadable("the table of totals", error) from error


def _bytes(kibibytes: str) -> int:
    return round(float(kibibytes) * 1024)


def _tables(database: bytes) -> _Tables:
    """Returns the tables of a debug database by name."""
    try:
        root = ET.fromstring(database)
        return {
            table.attrib["name"]: list(csv.DictReader((table.text or "").strip().splitlines()))
            for table in root.iter("table")
        }
    except (ET.ParseError, KeyError, csv.Error) as error:
        raise _unreadable("the debug database", error) from error


def _rows(tables: _Tables) -> tuple[ToolRow, ...]:
    try:
        operators = {row["id"]: int(row["ext_key"]) for row in tables["source"]}
        places = {row["id"]: i for i, row in enumerate(tables["perf"])}
        leaders = {row["id"]: places.get(row["group_id"]) for row in tables.get("group", ())}
        return tuple(
            ToolRow(
                operator=operators.get(row["source_id"]),
                device_op=row["operator"],
                result=row["name"],
                cycles=int(row["op_cycles"]),
                npu_cycles=int(row["npu_cycles"]),
                sram_bytes=int(row["staging_usage"]),
                macs=int(row["mac_count"]),
                leader=leaders.get(row["id"]),
                **{name: int(row.get(column) or 0) for name, column in _MEMORIES.items()},
            )
            for row in tables["perf"]
        )
    except (KeyError, ValueError, TypeError) as error:
        raise _unreadable("the debug database", error) from error


def _unreadable(what: str, error: Exception) -> Exception:
    return unsupported(
        "vela",
        f"{what} that Vela wrote cannot be read",
        expected="that of Vela 5.2",
        got=f"{type(error).__name__}: {error}",
    )
