"""Recipes: the settings of an export, as plain data that prints, saves, compares and combines.

>>> from tosaic import recipes
>>> recipes.names()[:3]
('tosa-int8', 'tosa-int16x8', 'tosa-fp16')
"""

from __future__ import annotations

from tosaic.base.public_names import names_of_stub

__getattr__, __dir__ = names_of_stub(__name__, __path__[0])
