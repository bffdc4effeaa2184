# isort: skip_file
"""The public names of tosaic.cost, in the order of the API page, each with the module that has it."""

from tosaic.cost.device_cost import DeviceCost as DeviceCost
from tosaic.cost.device_cost import CostRow as CostRow
from tosaic.cost.device_cost import CostShare as CostShare
from tosaic.cost.device_cost import GroupCost as GroupCost
from tosaic.cost.device_cost import CostCopy as CostCopy
