"""Assertions for test suites, which report the reason of a failure.

pytest loads the plugin `tosaic.testing.plugin` automatically. The plugin adds the comparison to the output of
a failed test. With ``--tosaic-reports=DIR`` it also saves the comparison as an offline HTML page.
"""

from __future__ import annotations

from tosaic.base.public_names import names_of_stub

__getattr__, __dir__ = names_of_stub(__name__, __path__[0])
