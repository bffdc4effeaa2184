"""The pytest plugin: reports of failed assertions in the output, and as HTML where a folder is named.

Loaded by pytest at its start, so it imports nothing of the rest. A report that cannot be kept, as on a full
disk, stops no test: it is named at the end, and the exit status is that of failed tests.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Generator
from typing import Any

import pytest

__all__ = ["pytest_addoption", "pytest_configure", "pytest_runtest_makereport"]

_LOST = "tosaic: a report that could not be kept"
_LONGEST = 150
_UNSAFE = r"[^\w.-]+"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--tosaic-reports``."""
    parser.getgroup("tosaic").addoption(
        "--tosaic-reports",
        metavar="DIR",
        default=None,
        help="keep the comparison of each failed assertion of tosaic as an HTML page in DIR",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Watches for reports that cannot be kept."""
    config.pluginmanager.register(_Lost(), "tosaic-lost-reports")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the report that an assertion of ours carries."""
    outcome = yield
    failure: Any = None if call.excinfo is None else call.excinfo.value
    if type(failure).__name__ == "MismatchError" and type(failure).__module__ == "tosaic.testing.matching":
        try:
            outcome.sections.append(("tosaic", failure.report.text))
            folder = item.config.getoption("--tosaic-reports")
            if folder is not None:
                from tosaic.writing import make_folder

                failure.report.save(make_folder(folder) / _page_name(item.nodeid))
        except Exception as error:  # pytest ends the whole session for an error in a hook
            # User properties reach the process that prints, in a run that is spread over several.
            outcome.user_properties.append((_LOST, str(error)))
    return outcome


def _page_name(nodeid: str) -> str:
    """A name for the page of a test, which no other test has, within what file systems take."""
    parameters = nodeid.partition("[")[2]
    name = re.sub(_UNSAFE, "_", nodeid)
    is_plain = re.search(_UNSAFE, parameters.removesuffix("]")) is None
    if not is_plain or len(name.encode()) > _LONGEST:
        digest = hashlib.sha256(nodeid.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        name = f"{name.encode()[:_LONGEST].decode(errors='ignore')}-{digest}"
    return name + ".html"


class _Lost:
    """Counts and names the reports that could not be kept."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes what `pytest_runtest_makereport` could not keep."""
        self.found += [
            f"{report.nodeid}: {message}" for name, message in report.user_properties if name == _LOST
        ]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Lets no session succeed that lost a report, as one of expected failures would."""
        if self.found and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Names them."""
        if self.found:
            terminalreporter.section("tosaic: reports that could not be kept", yellow=True)
            for line in self.found:
                terminalreporter.write_line(line)
