"""Assertions for test suites, which report the reason of a failure.

pytest loads the plugin `tosaic.testing.plugin` by itself. The plugin adds the comparison to the output of a
failed test. With ``--tosaic-reports=DIR`` it also saves the comparison as an offline HTML page.
"""

from __future__ import annotations

from tosaic.testing.matching import MismatchError, assert_lowers, assert_matches

__all__ = ["MismatchError", "assert_lowers", "assert_matches"]
