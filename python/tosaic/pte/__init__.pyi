# isort: skip_file
"""The public names of tosaic.pte, in the order of the API page, each with the module that has it."""

from tosaic.pte.file import PteMethod as PteMethod
from tosaic.pte.plain import PteDelegate as PteDelegate
from tosaic.pte.method_writer import PtePayload as PtePayload
from tosaic.pte.plain import PteTensor as PteTensor
