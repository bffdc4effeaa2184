# isort: skip_file
"""The public names of tosaic.ports, in the order of the API page, each with the module that has it."""

from tosaic.ports.ports import Port as Port
from tosaic.ports.ports import PortTensor as PortTensor
from tosaic.ports.io_quant import PortQuant as PortQuant
from tosaic.base.quantization import QParams as QParams
from tosaic.ports.foreign import ForeignOp as ForeignOp
from tosaic.ports.foreign import TensorSpec as TensorSpec
from tosaic.ports.foreign import QuantizedArray as QuantizedArray
from tosaic.ports.signature import Signature as Signature
from tosaic.ports.signature import Tree as Tree
