"""`Reportable`: the base of results that can be shown.

Results are data, without code for their presentation, which is in `tosaic.report`. That folder imports the
results. So `Reportable` gets its report through a verb, when a result is shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tosaic.base.verbs import Verb

if TYPE_CHECKING:
    from tosaic.report.document import Report


class Reportable:
    """A result with a report: as text when it is printed, as HTML in a notebook."""

    def report(self) -> Report:
        """Returns the report of this result, to print, or to save as text, HTML or JSON."""
        return describe(self)

    def __str__(self) -> str:
        return self.report().text

    def _repr_html_(self) -> str:
        return self.report().html_fragment


@Verb
def describe(result: Reportable, /) -> Report:
    """Makes the report of a result."""
    raise NotImplementedError
