"""Profiles of runs and lowerings: measured times, as data and as trace files."""

from __future__ import annotations

from tosaic.base.public_names import names_of_stub

__getattr__, __dir__ = names_of_stub(__name__, __path__[0])
