"""The export flow: from a model to files for its targets, with a check of each step.

`tosaic.export_model` is the entry point. `flow` has the steps, `checks` the comparisons, `artifacts` the
folder, and `scenario` the files for a run elsewhere.
"""

from __future__ import annotations

from tosaic.base.public_names import names_of_stub

__getattr__, __dir__ = names_of_stub(__name__, __path__[0])
