# isort: skip_file
"""The public names of tosaic.quantizing, in the order of the API page, each with the module that has it."""

from tosaic.quantizing.explanation import QuantizedValue as QuantizedValue
from tosaic.quantizing.explanation import FloatOperator as FloatOperator
from tosaic.quantizing.sensitivities import LayerSensitivity as LayerSensitivity
from tosaic.quantizing.sensitivities import Mix as Mix
