# isort: skip_file
"""The public names of tosaic, in the order of the API page, each with the module that has it.

`tosaic.base.public_names` reads this file.
"""

from tosaic.api.calls import from_exported as from_exported
from tosaic.api.calls import open_program as open_program
from tosaic.program.archive import load as load
from tosaic.pte.file import load_pte as load_pte
from tosaic.lowering.tosa_file import load_tosa as load_tosa
from tosaic.exporting.scenario import load_scenario as load_scenario
from tosaic.quantizing.quantize_program import quantize as quantize
from tosaic.api.calls import lower as lower
from tosaic.api.calls import partition as partition
from tosaic.api.calls import check as check
from tosaic.api.calls import compare as compare
from tosaic.exporting.call import export_model as export_model
from tosaic.pte.save import save_pte as save_pte
from tosaic.cost.call import device_cost as device_cost
from tosaic.quantizing.sensitivity import sensitivity as sensitivity
from tosaic.quantizing.explanation import explain_quantization as explain_quantization
from tosaic.fx.io.extract_io import extract_io_quant as extract_io_quant
from tosaic.fx.calls import wrap_quantizer as wrap_quantizer
from tosaic.program.program import Program as Program
from tosaic.lowering.lowered import Lowered as Lowered
from tosaic.quantizing.quantized_program import QuantizedProgram as QuantizedProgram
from tosaic.program.comparison import Comparison as Comparison
from tosaic.base.problems import CheckResult as CheckResult
from tosaic.quantizing.sensitivities import Sensitivity as Sensitivity
from tosaic.quantizing.explanation import QuantizationExplanation as QuantizationExplanation
from tosaic.exporting.result import ExportResult as ExportResult
from tosaic.exporting.scenario import Scenario as Scenario
from tosaic.pte.file import PteFile as PteFile
from tosaic.fx.quantizer.quantizer import Quantizer as Quantizer
from tosaic.annotation.config import QConfig as QConfig
from tosaic.ports.io_quant import IoQuant as IoQuant
from tosaic.recipes.recipe import Recipe as Recipe
from tosaic.partitions.claimant import Claimant as Claimant
from tosaic.lowering.pipeline import Pipeline as Pipeline
from tosaic.lowering.rewriter import Rewriter as Rewriter
from tosaic.program.model_keys import Nodes as Nodes
from tosaic.program.models import NodeCall as NodeCall
from tosaic._core import Error as Error
from tosaic._core import InvalidGraph as InvalidGraph
from tosaic._core import UnsupportedOp as UnsupportedOp
from tosaic._core import SpecViolation as SpecViolation
from tosaic._core import QuantMismatch as QuantMismatch
from tosaic._core import LayoutMismatch as LayoutMismatch
from tosaic.base.reading import ReadError as ReadError
from tosaic.base.reading import MissingFileError as MissingFileError
from tosaic.base.writing import WriteError as WriteError
from tosaic.exporting.result import CheckError as CheckError
from tosaic._core import InternalError as InternalError
from tosaic._core import __version__ as __version__

from tosaic import annotation as annotation
from tosaic import calibration as calibration
from tosaic import cli as cli
from tosaic import cost as cost
from tosaic import devices as devices
from tosaic import executorch as executorch
from tosaic import exporting as exporting
from tosaic import fx as fx
from tosaic import lowering as lowering
from tosaic import memory as memory
from tosaic import partitions as partitions
from tosaic import ports as ports
from tosaic import profiling as profiling
from tosaic import program as program
from tosaic import pte as pte
from tosaic import quantizing as quantizing
from tosaic import recipes as recipes
from tosaic import registration as registration
from tosaic import report as report
from tosaic import testing as testing
