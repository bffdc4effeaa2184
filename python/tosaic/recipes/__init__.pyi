# isort: skip_file
"""The public names of tosaic.recipes, in the order of the API page, each with the module that has it."""

from tosaic.recipes.builtin import KERNELS as KERNELS
from tosaic.annotation.device_rules import SNORM as SNORM
from tosaic.annotation.device_rules import UNIT_GRID as UNIT_GRID
from tosaic.recipes.combining import Difference as Difference
from tosaic.recipes.changes import PassChange as PassChange
from tosaic.recipes.stage import Stage as Stage
from tosaic.recipes.recipe import combine as combine
from tosaic.recipes.builtin import named as named
from tosaic.recipes.builtin import names as names
from tosaic.recipes.training import qat as qat
from tosaic.annotation.device_rules import snorm_images as snorm_images
from tosaic.annotation.device_rules import symmetric_products as symmetric_products
