"""For test suites: assertions that explain themselves.

The pytest plugin (`tosaic.testing.plugin`, found by pytest on its own) adds the comparison to the output of a
failed test, and with ``--tosaic-reports=DIR`` keeps it as an offline HTML page.
"""

from __future__ import annotations

from tosaic.testing.matching import MismatchError, assert_lowers, assert_matches

__all__ = ["MismatchError", "assert_lowers", "assert_matches"]
