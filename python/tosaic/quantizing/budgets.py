"""The options `budget` and `least_db` of `quantize`: what they ask for, and the mix that has it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from tosaic import _core
from tosaic.base.options import invalid, quant_mismatch, refusal, shown
from tosaic.cost.analytic import has_analytic_cost
from tosaic.quantizing.levels import Scale
from tosaic.quantizing.mix_search import Material, Wanted, measured

if TYPE_CHECKING:
    from tosaic.quantizing.sensitivities import Mix, Sensitivity

LEVELS = ("int8", "int16x8")


def wanted_mix(
    target: str | None, config: Any, budget: float | None, least_db: float | None
) -> Wanted | None:
    """Returns what a search for a mix shall find; None without `budget` and `least_db`.

    Raises
    ------
    InvalidGraph
        The target has no model of cycles, a number is not finite, or the caller has a configuration.
    """
    if budget is None and least_db is None:
        return None
    name, value = ("least_db", least_db) if budget is None else ("budget", budget)
    if budget is not None and not 0 < budget < math.inf:
        raise refusal("quantize", "budget", "cycles of the device for one run, a positive number", budget)
    if least_db is not None and not math.isfinite(least_db):
        raise refusal("quantize", "least_db", "a finite number of dB", least_db)
    if target is None or not has_analytic_cost(target):
        raise invalid(
            "quantize",
            f"'{name}' needs a device whose cycles tosaic estimates",
            expected=f"a target among {', '.join(_core.cost_devices())}",
            got=f"target={shown(target)}, {name}={shown(value)}",
        )
    if config is not None:
        raise invalid(
            "quantize",
            f"both 'config' and '{name}' say what layers become",
            expected="one of them",
            got=shown(config),
            hint=f"Without '{name}', quantize uses the configuration as it is",
        )
    return Wanted(least_db, budget)


def search_mix(material: Material, samples: Any, device: str, wanted: Wanted) -> Mix:
    """Searches for the mix that is wanted.

    Raises
    ------
    QuantMismatch
        No mix has so few cycles, so many dB, or both.
    """
    return _best(measured(material, samples, Scale.of(LEVELS, device), wanted), wanted)


def _best(found: Sensitivity, wanted: Wanted) -> Mix:
    least_db, most_cycles = wanted.least_db, wanted.most_cycles
    if least_db is None:
        return found.mix(most_cycles=most_cycles)
    good = [each for each in found.curve if each.db >= least_db]
    if not good:
        raise quant_mismatch(
            "quantize",
            "no mix is so accurate",
            expected=f"at most {max(each.db for each in found.curve):.1f} dB, which the most precise mix has",
            got=f"least_db={least_db:g}",
            hint="Calibrate on more samples, or use an accuracy tool with the most precise mix",
        )
    best = min(good, key=lambda each: each.cost)
    if most_cycles is not None and (best.cycles or 0) > most_cycles:
        raise quant_mismatch(
            "quantize",
            f"no mix with {least_db:g} dB is within the budget",
            expected=f"{best.cycles:,} cycles of {found.device} or more for {best.db:.1f} dB",
            got=f"budget={most_cycles:,.0f}",
            hint="Ask for fewer dB, or for one of both",
        )
    return best
