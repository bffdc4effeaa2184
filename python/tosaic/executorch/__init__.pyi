# isort: skip_file
"""The public names of tosaic.executorch, in the order of the API page, each with the module that has it."""

from tosaic.executorch.conversions import ConversionsOutside as ConversionsOutside
from tosaic.partitions.kernel_plan import KernelNode as KernelNode
from tosaic.partitions.kernel_plan import KernelProgram as KernelProgram
from tosaic.pte.sidecar import SidecarDelegate as SidecarDelegate
from tosaic.pte.sidecar import SidecarMethod as SidecarMethod
from tosaic.pte.sidecar import PteSidecar as PteSidecar
from tosaic.executorch.delegates.tosaic_partitioner import TosaicPartitioner as TosaicPartitioner
from tosaic.executorch.wrapping.partitioners import combine_partitioners as combine_partitioners
from tosaic.executorch.conversions import conversion as conversion
from tosaic.executorch.cortex_m.program import cortex_m_program as cortex_m_program
from tosaic.executorch.decomposition import decompose_for_arm as decompose_for_arm
from tosaic.executorch.export_recipes import export_recipe as export_recipe
from tosaic.executorch.wrapping.partitioners import layout_pass as layout_pass
from tosaic.executorch.wrapping.partitioners import order_conversions as order_conversions
from tosaic.pte.sidecar import pte_sidecar as pte_sidecar
from tosaic.executorch.delegates.payload_runs import run_payloads as run_payloads
from tosaic.executorch.saving import save_pte as save_pte
from tosaic.executorch.delegates.runtime_ids import set_runtime_ids as set_runtime_ids
from tosaic.executorch.shaders import sampler_shaders as sampler_shaders
from tosaic.executorch.wrapping.partitioners import wrap_partitioner as wrap_partitioner
