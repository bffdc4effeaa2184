# isort: skip_file
"""The public names of tosaic.memory, in the order of the API page, each with the module that has it."""

from tosaic.memory.plan import MemoryPlan as MemoryPlan
from tosaic.memory.buffers import MemoryBuffer as MemoryBuffer
from tosaic.memory.buffers import MemoryArena as MemoryArena
from tosaic.memory.plan import MemoryComparison as MemoryComparison
