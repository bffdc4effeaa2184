# isort: skip_file
"""The public names of tosaic.profiling, in the order of the API page, each with the module that has it."""

from tosaic.profiling.profile import Profile as Profile
from tosaic.profiling.profile import ProfileRun as ProfileRun
from tosaic.profiling.profile import ProfileShare as ProfileShare
from tosaic.profiling.steps import ProfiledStep as ProfiledStep
from tosaic.profiling.steps import ProfiledNode as ProfiledNode
from tosaic.profiling.steps import NodeOrigin as NodeOrigin
from tosaic.profiling.peak import MachinePeak as MachinePeak
from tosaic.profiling.lowering import LoweringProfile as LoweringProfile
from tosaic.profiling.lowering import LoweringStep as LoweringStep
