"""Turns results into text, HTML or JSON; no other code of tosaic does so.

A `Report` is a document as data: facts, then sections. Folded sections have details that are hidden at first.
Each function ``describe_...`` makes a report from a result. Importing the package loads none of them.
"""

from __future__ import annotations

from tosaic.base.public_names import names_of_stub

__getattr__, __dir__ = names_of_stub(__name__, __path__[0])
