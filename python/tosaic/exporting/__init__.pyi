# isort: skip_file
"""The public names of tosaic.exporting, in the order of the API page, each with the module that has it."""

from tosaic.exporting.context import ExportContext as ExportContext
from tosaic.exporting.scenario import ScenarioPort as ScenarioPort
from tosaic.exporting.checks import StageCheck as StageCheck
