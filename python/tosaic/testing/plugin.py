"""The pytest plugin: adds reports of failed assertions to the output, and can save them as HTML pages.

pytest loads this module at its start, so it imports nothing else of tosaic at that time. If a report cannot
be saved, for example on a full disk, the tests go on. The lost reports are listed at the end, and the exit
status is that of failed tests.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Generator
from typing import Any

import pytest

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
    """Registers the object that collects reports that could not be saved."""
    config.pluginmanager.register(_Lost(), "tosaic-lost-reports")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Adds the report of a failed tosaic assertion to the test's output, and saves it if requested."""
    outcome = yield
    failure: Any = None if call.excinfo is None else call.excinfo.value
    if type(failure).__name__ == "MismatchError" and type(failure).__module__ == "tosaic.testing.matching":
        try:
            outcome.sections.append(("tosaic", failure.report.text))
            folder = item.config.getoption("--tosaic-reports")
            if folder is not None:
                from tosaic.base.writing import make_folder

                failure.report.save(make_folder(folder) / _page_name(item.nodeid))
        except Exception as error:  # pytest ends the whole session for an error in a hook
            # With several processes, user properties are sent to the process that prints.
            outcome.user_properties.append((_LOST, str(error)))
    return outcome


def _page_name(nodeid: str) -> str:
    """Returns a unique file name for the page of a test, short and plain enough for file systems."""
    parameters = nodeid.partition("[")[2]
    name = re.sub(_UNSAFE, "_", nodeid)
    is_plain = re.search(_UNSAFE, parameters.removesuffix("]")) is None
    if not is_plain or len(name.encode()) > _LONGEST:
        digest = hashlib.sha256(nodeid.encode("utf-8", "surrogatepass")).hexdigest()[:12]
        name = f"{name.encode()[:_LONGEST].decode(errors='ignore')}-{digest}"
    return name + ".html"


class _Lost:
    """Collects and lists the reports that could not be saved."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collects the reports that `pytest_runtest_makereport` could not save."""
        self.found += [
            f"{report.nodeid}: {message}" for name, message in report.user_properties if name == _LOST
        ]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Makes the session fail if a report could not be saved, even if all tests passed."""
        if self.found and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Lists the lost reports."""
        if self.found:
            terminalreporter.section("tosaic: reports that could not be kept", yellow=True)
            for line in self.found:
                terminalreporter.write_line(line)
