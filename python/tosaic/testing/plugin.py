"""The pytest plugin: reports of failed assertions in the output, and as HTML where a folder is named.

Loaded by pytest at its start, so it imports nothing of the rest.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from typing import Any

import pytest

__all__ = ["pytest_addoption", "pytest_runtest_makereport"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--tosaic-reports``."""
    parser.getgroup("tosaic").addoption(
        "--tosaic-reports",
        metavar="DIR",
        default=None,
        help="keep the comparison of each failed assertion of tosaic as an HTML page in DIR",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the report that an assertion of ours carries."""
    outcome = yield
    failure: Any = None if call.excinfo is None else call.excinfo.value
    if type(failure).__name__ == "MismatchError" and type(failure).__module__ == "tosaic.testing.matching":
        outcome.sections.append(("tosaic", failure.report.text))
        folder = item.config.getoption("--tosaic-reports")
        if folder is not None:
            from tosaic.writing import make_folder

            name = re.sub(r"[^\w.-]+", "_", item.nodeid) + ".html"
            failure.report.save(make_folder(folder) / name)
    return outcome
