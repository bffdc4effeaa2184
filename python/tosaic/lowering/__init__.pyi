# isort: skip_file
"""The public names of tosaic.lowering, in the order of the API page, each with the module that has it."""

from tosaic.lowering.pipeline import Pass as Pass
from tosaic.lowering.pipeline import Step as Step
from tosaic.lowering.samplers import custom_samplers as custom_samplers
from tosaic.lowering.samplers import rgba as rgba
from tosaic.lowering.samplers import rgba_pass as rgba_pass
from tosaic.base.problems import Problem as Problem
from tosaic.base.target import Target as Target
from tosaic.lowering.layout import Layout as Layout
from tosaic.lowering.layout import Candidate as Candidate
from tosaic.lowering.layout import Demand as Demand
from tosaic.lowering.layout import Transpose as Transpose
from tosaic.lowering.layout import OwnCost as OwnCost
from tosaic.lowering.layout import Objective as Objective
from tosaic.lowering.reference_model import run_reference_model as run_reference_model
from tosaic.lowering.reference_model import ReferenceRun as ReferenceRun
