# isort: skip_file
"""The public names of tosaic.registration, in the order of the API page, each with the module that has it."""

from tosaic.registration.listing import kernel_list as kernel_list
from tosaic.pte.kernel_names import KernelList as KernelList
from tosaic.pte.kernel_names import Kernel as Kernel
from tosaic.pte.kernel_names import KernelUse as KernelUse
from tosaic.pte.kernel_names import KernelVariant as KernelVariant
from tosaic.pte.kernel_names import BackendUse as BackendUse
