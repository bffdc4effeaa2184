# isort: skip_file
"""The public names of tosaic.partitions, in the order of the API page, each with the module that has it."""

from tosaic.partitions.split_folder import load_split as load_split
from tosaic.partitions.plan import PartitionPlan as PartitionPlan
from tosaic.partitions.plan import Group as Group
from tosaic.partitions.plan import Border as Border
from tosaic.partitions.plan import NodePlace as NodePlace
from tosaic.partitions.plan import QuantizationPlace as QuantizationPlace
from tosaic.partitions.plan import Refusal as Refusal
from tosaic.partitions.claimant import ClaimantRule as ClaimantRule
from tosaic.partitions.claimant import Verdict as Verdict
from tosaic.partitions.claimant import Reason as Reason
from tosaic.partitions.split_lowered import SplitLowered as SplitLowered
