# isort: skip_file
"""The public names of tosaic.calibration, in the order of the API page, each with the module that has it."""

from tosaic.calibration.accuracy import BiasCorrection as BiasCorrection
from tosaic.calibration.accuracy import Equalize as Equalize
from tosaic.calibration.accuracy import Gptq as Gptq
from tosaic.calibration.accuracy import SmoothQuant as SmoothQuant
from tosaic.calibration.accuracy import Gain as Gain
from tosaic.calibration.accuracy import Tool as Tool
