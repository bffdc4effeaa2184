"""One call for a budget: `tosaic.quantize(target=DEVICE, budget=CYCLES)` and ``least_db=``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tosaic
from api.test_device_mixes import DEVICE, TARGET, attention_samples, exported_attention
from tosaic.annotation import Inputs, Observed
from tosaic.cli import main

PLAN = "every_operator=True, stream='int16'"


@pytest.fixture(scope="module")
def exported() -> Any:
    return exported_attention()


@pytest.fixture(scope="module")
def samples() -> list[Any]:
    return list(attention_samples())


@pytest.fixture(scope="module")
def ends(exported: Any, samples: list[Any]) -> tuple[int, int]:
    """The cycles of the device's plan with int8 and with int16x8 in all layers."""
    found = [
        tosaic.QConfig.for_target(DEVICE),
        tosaic.QConfig.int16x8(every_operator=True),
    ]
    low, high = (cycles_of(tosaic.quantize(exported, samples, config=each)) for each in found)
    return low, high


def cycles_of(quantized: Any) -> int:
    lowered = tosaic.lower(quantized, target=TARGET)
    return tosaic.device_cost(lowered, DEVICE, method="analytic").cycles


def chosen(exported: Any, samples: Any, **wanted: Any) -> Any:
    return tosaic.quantize(exported, samples, target=DEVICE, progress=False, **wanted)


def test_a_budget_gets_the_most_accurate_program_within_it(
    exported: Any, samples: list[Any], ends: tuple[int, int]
) -> None:
    budgets = [ends[0] + (ends[1] - ends[0]) * i // 4 for i in (0, 1, 2, 5)]
    found = [chosen(exported, samples, budget=budget) for budget in budgets]
    for quantized, budget in zip(found, budgets, strict=True):
        assert quantized.mix.cycles <= budget
        assert cycles_of(quantized) == pytest.approx(quantized.mix.cycles, rel=0.01)
    assert [each.mix.db for each in found] == sorted(each.mix.db for each in found)
    assert found[0].mix.db + 8 < found[-1].mix.db


def test_a_budget_uses_more_of_the_cycles_than_the_curve(
    exported: Any, samples: list[Any], ends: tuple[int, int]
) -> None:
    curve = tosaic.sensitivity(exported, samples, costs=DEVICE, points=3, progress=False)
    budget = (ends[0] + ends[1]) // 2
    assert chosen(exported, samples, budget=budget).mix.db >= curve.mix(most_cycles=budget).db


def test_an_accuracy_gets_the_cheapest_program_that_has_it(exported: Any, samples: list[Any]) -> None:
    found = [chosen(exported, samples, least_db=db) for db in (30.0, 38.0, 45.0)]
    assert [each.mix.db >= db for each, db in zip(found, (30.0, 38.0, 45.0), strict=True)] == [True] * 3
    cycles = [each.mix.cycles for each in found]
    assert cycles == sorted(cycles)
    assert cycles[0] < cycles[-1]
    both = chosen(exported, samples, least_db=38.0, budget=cycles[1])
    assert both.mix.cycles <= cycles[1]


def test_the_program_is_that_of_the_configuration_of_the_mix(
    exported: Any, samples: list[Any], ends: tuple[int, int]
) -> None:
    quantized = chosen(exported, iter(samples), budget=sum(ends) // 2)
    again = tosaic.quantize(exported, samples, config=quantized.mix.config, progress=False)
    assert quantized.config == quantized.mix.config
    assert quantized.graph.text() == again.graph.text()
    assert quantized.samples == 4
    assert (quantized.target, again.target, again.mix) == (DEVICE, None, None)


def test_the_report_says_what_was_chosen(exported: Any, samples: list[Any], ends: tuple[int, int]) -> None:
    quantized = chosen(exported, samples, budget=sum(ends) // 2)
    mix, report = quantized.mix, quantized.report()
    for text in (f"{mix.db:.1f} dB at {mix.cycles:,} cycles", DEVICE, mix.form, *mix.levels):
        assert text in report.text
    assert json.loads(report.json)["mix"]["cycles"] == mix.cycles
    assert "mix" not in tosaic.quantize(exported, samples, target=DEVICE).report().text


def test_rules_hold_in_the_search_too(exported: Any, samples: list[Any], ends: tuple[int, int]) -> None:
    wide = Observed("int16", -32767, 32767, scheme="per_tensor_symmetric")
    quantized = chosen(exported, samples, budget=2 * ends[0], rules=[Inputs({0: wide})])
    assert quantized.inputs[0].quantized[0].dtype == "i16"
    assert cycles_of(quantized) == quantized.mix.cycles


def test_the_curve_has_other_forms_of_integers(exported: Any, samples: list[Any]) -> None:
    found = tosaic.sensitivity(exported, samples, costs=DEVICE, points=2, progress=False)
    assert PLAN in {mix.form for mix in found.curve}
    for mix in found.curve:
        if mix.form != PLAN:
            better = [m for m in found.curve if m.cycles < mix.cycles and m.db > mix.db]
            assert not better
        assert str(mix.config.every_operator) in mix.form
    own = {"low": tosaic.QConfig.for_target(DEVICE), "high": tosaic.QConfig.int16x8(every_operator=True)}
    plain = tosaic.sensitivity(exported, samples, costs=DEVICE, levels=own, points=2, progress=False)
    assert {mix.form for mix in plain.curve} == {PLAN}


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ({"budget": 1e6}, "'budget' needs a device whose cycles tosaic estimates: expected a target among"),
        ({"least_db": 30.0}, r"'least_db' needs a device .* got target=None, least_db=30.0"),
        ({"budget": 1e6, "target": "TOSA-1.0+INT"}, "got target='TOSA-1.0[+]INT', budget=1000000.0"),
        ({"budget": 1e6, "target": "cortex-m55"}, "'budget' needs a device"),
        ({"budget": 1e6, "target": "ethos-u85"}, "expected a target among .*ethos-u85-256"),
        ({"budget": 0, "target": DEVICE}, "'budget': expected cycles of the device for one run, a positive"),
        ({"budget": float("inf"), "target": DEVICE}, "'budget': expected cycles"),
        ({"budget": "fast", "target": DEVICE}, "unknown value of 'budget'.*got 'fast'"),
        ({"budget": True, "target": DEVICE}, "unknown value of 'budget'.*got True"),
        ({"least_db": float("nan"), "target": DEVICE}, "unknown value of 'least_db'"),
        ({"least_db": float("inf"), "target": DEVICE}, "'least_db': expected a finite number of dB"),
        (
            {"budget": 1e6, "target": DEVICE, "config": tosaic.QConfig.int8()},
            "both 'config' and 'budget' say what layers become: expected one of them",
        ),
    ],
)
def test_wrong_options_are_refused(exported: Any, samples: list[Any], wanted: Any, message: str) -> None:
    with pytest.raises(tosaic.InvalidGraph, match=message):
        tosaic.quantize(exported, samples, progress=False, **wanted)


def test_what_no_mix_has_is_refused_with_the_nearest_number(exported: Any, samples: list[Any]) -> None:
    with pytest.raises(
        tosaic.QuantMismatch, match="no plan takes so few cycles: expected a budget of"
    ) as few:
        chosen(exported, samples, budget=100)
    least = int(str(few.value).split("budget of ")[1].split(" ")[0].replace(",", ""))
    assert chosen(exported, samples, budget=least).mix.cycles == least
    with pytest.raises(tosaic.QuantMismatch, match=r"no mix is so accurate: expected at most .* dB"):
        chosen(exported, samples, least_db=200.0)
    with pytest.raises(
        tosaic.QuantMismatch, match=r"no mix with 45 dB is within the budget: expected .*cycles"
    ):
        chosen(exported, samples, least_db=45.0, budget=least)


def test_the_command_line_takes_a_budget(
    exported: Any, samples: list[Any], ends: tuple[int, int], tmp_path: Path, capsys: Any
) -> None:
    file, arrays = str(tmp_path / "net.pt2"), str(tmp_path / "x.npy")
    torch.export.save(exported, file)
    np.save(arrays, np.concatenate([x.numpy() for (x,) in samples]))
    common = (file, "--samples", arrays, "--for", DEVICE)
    budget = 3 * ends[0]
    out = ("-o", str(tmp_path / "q.tosaic"), "--json")
    assert main(["quantize", *common, "--budget", str(budget), *out]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["mix"]["cycles"] <= budget
    lower = ["lower", file, "--calibrate", arrays, "--for", DEVICE, "--least-db", "40"]
    assert main([*lower, "-o", str(tmp_path / "q.tosa")]) == 0
    assert main(["quantize", file, "--samples", arrays, "--budget", "1e6"]) == 2
    assert main(["quantize", *common, "--budget", "1e6", "--weight-bits", "4"]) == 2
    assert "--weight-bits" in capsys.readouterr().err
