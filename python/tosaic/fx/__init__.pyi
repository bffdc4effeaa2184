# isort: skip_file
"""The public names of tosaic.fx, in the order of the API page, each with the module that has it."""

from tosaic.fx.layouts.applied import AppliedLayout as AppliedLayout
from tosaic.fx.layouts.applied import Conversion as Conversion
from tosaic.fx.layouts.applied import Convert as Convert
from tosaic.fx.reading.torch_kernel import TorchKernel as TorchKernel
from tosaic.fx.layouts.applied import Unmet as Unmet
from tosaic.fx.calls import apply_layout as apply_layout
from tosaic.fx.calls import compose_quantizers as compose_quantizers
from tosaic.fx.calls import fold_norms as fold_norms
from tosaic.fx.calls import from_exported as from_exported
from tosaic.fx.calls import read_annotations as read_annotations
