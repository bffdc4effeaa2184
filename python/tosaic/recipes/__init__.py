"""Recipes: what an export does, as plain data that prints, saves, compares and combines.

>>> from tosaic import recipes
>>> recipes.names()[:3]
('tosa-int8', 'tosa-int16x8', 'tosa-fp16')
"""

from __future__ import annotations

from tosaic.recipes.builtin import (
    KERNELS,
    SNORM,
    UNIT_GRID,
    named,
    names,
    snorm_images,
    symmetric_products,
)
from tosaic.recipes.changes import PassChange
from tosaic.recipes.combining import Difference
from tosaic.recipes.recipe import Recipe, combine
from tosaic.recipes.stage import Stage
from tosaic.recipes.training import qat

__all__ = [
    "KERNELS",
    "SNORM",
    "UNIT_GRID",
    "Difference",
    "PassChange",
    "Recipe",
    "Stage",
    "combine",
    "named",
    "names",
    "qat",
    "snorm_images",
    "symmetric_products",
]
