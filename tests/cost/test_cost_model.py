"""tosaic's own model of costs against Vela: operators of each kind, and small networks.

``tests/full/cost_model.py`` compares whole networks.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import tosaic
from cost.networks import lowered
from cost.operators import OPERATORS, text_of
from tosaic import _core

pytest.importorskip("ethosu.vela", reason="Vela is not installed")

U85, U55 = "ethos-u85-256", "ethos-u55-128"
FACTOR = 1.2  # of Vela's cycles
LOOSE = {"pad": 1.3}
MODES = ("Sram_Only", "Dedicated_Sram_384KB")


def both(program: Path, device: str, mode: str) -> tuple[int, int]:
    own, tool = (
        tosaic.device_cost(program, device, method=method, memory_mode=mode)
        for method in ("analytic", "tool")
    )
    assert (own.source, tool.source) == ("analytic", "vela")
    return own.cycles, tool.cycles


@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_costs_what_vela_says(name: str, tmp_path: Path) -> None:
    path = tmp_path / "model.tosa"
    path.write_bytes(_core.serialize(_core.Graph.parse(text_of(name))))
    own, tool = both(path, U85, "Sram_Only")
    factor = LOOSE.get(name, FACTOR)
    assert tool / factor <= own <= tool * factor


@pytest.mark.parametrize("name", ["spotter", "attention", "residual"])
@pytest.mark.parametrize(("device", "mode"), [*((U85, mode) for mode in MODES), (U55, "Shared_Sram")])
def test_a_network_costs_what_vela_says(name: str, device: str, mode: str, tmp_path: Path) -> None:
    lowered(name).save(tmp_path / "model.tosa")
    own, tool = both(tmp_path / "model.tosa", device, mode)
    assert tool / 1.15 <= own <= tool * 1.15
