# isort: skip_file
"""The public names of tosaic.devices, in the order of the API page, each with the module that has it."""

from tosaic.devices.device import Device as Device
from tosaic.devices.device import DeviceRecipe as DeviceRecipe
from tosaic.devices.engines import Engine as Engine
from tosaic.devices.device import Limit as Limit
from tosaic.devices.device import Operators as Operators
from tosaic.devices.device import Payload as Payload
from tosaic.devices.registry import devices as devices
from tosaic.devices.registry import limit_names as limit_names
from tosaic.devices.registry import register as register
from tosaic.devices.tool_cost import ToolCost as ToolCost
from tosaic.devices.tool_cost import ToolRow as ToolRow
from tosaic.devices.tool_cost import CostSummary as CostSummary
