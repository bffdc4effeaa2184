"""The export flow: from a model to files for its targets, with a check of each step.

`tosaic.export_model` is the way in. `flow` has the steps, `checks` the comparisons, `artifacts` the folder,
and `scenario` what a run elsewhere needs.
"""

from __future__ import annotations

from tosaic.exporting.call import export_model
from tosaic.exporting.checks import StageCheck
from tosaic.exporting.context import ExportContext
from tosaic.exporting.result import CheckError, ExportResult
from tosaic.exporting.scenario import Scenario, ScenarioPort, load_scenario

__all__ = [
    "CheckError",
    "ExportContext",
    "ExportResult",
    "Scenario",
    "ScenarioPort",
    "StageCheck",
    "export_model",
    "load_scenario",
]
