"""The pytest plugin and its assertions."""

from __future__ import annotations

import textwrap
from importlib.metadata import entry_points

import pytest
import torch
import tosaic
from tosaic.testing import MismatchError, assert_lowers, assert_matches

pytest_plugins = ["pytester"]


SUITE = """
    import numpy as np
    import pytest
    import tosaic
    from tosaic.testing import assert_matches

    TEXT = '''tosaic 1
    graph @forward stage=exported {{
      input %x: f32[3] path="x"
      %y: f32[3] = {}(%x)
      return %y path="out"
    }}
    '''

    def mismatch():
        a, b = (tosaic.program.Graph.parse(TEXT.format(op)) for op in ("relu", "neg"))
        assert_matches(b, a, np.float32([1, 2, 3]))
"""


def run_suite(pytester, tests: str, *arguments: str):
    pytester.makepyfile(textwrap.dedent(SUITE) + textwrap.dedent(tests))
    installed = any(point.value == "tosaic.testing.plugin" for point in entry_points(group="pytest11"))
    by_name = [] if installed else ["-p", "tosaic.testing.plugin"]
    return pytester.runpytest_subprocess(*by_name, "--tosaic-reports=reports", *arguments)


def test_assert_matches_passes_for_programs_that_agree(case) -> None:
    comparison = assert_matches(case.lowered, case.exported, (case.x,), sqnr_db=100, max_abs=1e-4, nodes=True)
    assert comparison.ok


def test_assert_matches_says_by_how_much_programs_differ(case) -> None:
    wrong = torch.export.export(case.model, (case.x,))
    wrong.state_dict["head.bias"] = wrong.state_dict["head.bias"] + 1
    with pytest.raises(MismatchError) as error:
        assert_matches(tosaic.lower(wrong), case.exported, (case.x,), max_abs=0.5, nodes=True)
    text = str(error.value)
    assert text.startswith("TOSA-1.0+FP does not match ExportedProgram (torch): ")
    assert "SQNR" in text
    assert "max abs 1, at most 0.5" in text or "max abs 1" in text
    assert "node 'linear': SQNR" in text
    assert "outputs" in error.value.report.text


def test_assert_lowers_returns_the_lowered_program(case, unliftable) -> None:
    assert assert_lowers(case.exported).to_bytes() == case.lowered.to_bytes()
    with pytest.raises(MismatchError, match=r"the program does not lower to TOSA-1\.0\+FP: \["):
        assert_lowers(unliftable)


def test_the_plugin_shows_the_comparison(pytester) -> None:
    result = run_suite(
        pytester,
        """
        def test_a():
            mismatch()
        """,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*MismatchError: forward @exported does not match*", "*- tosaic -*", "FAILED: forward*"]
    )
    (page,) = (pytester.path / "reports").iterdir()
    assert page.read_text().startswith("<!doctype html>")


def test_a_report_that_cannot_be_written_is_named_and_the_other_tests_run(pytester) -> None:
    (pytester.path / "reports").write_text("a file in the folder's place")
    tests = """
        def test_a():
            mismatch()

        def test_b():
            pass
    """
    for arguments in ((), ("-W", "error")):
        result = run_suite(pytester, tests, *arguments)
        result.assert_outcomes(failed=1, passed=1)
        assert result.ret == pytest.ExitCode.TESTS_FAILED
        result.stdout.fnmatch_lines(
            [
                "FAILED: forward*",
                "*= tosaic: reports that could not be kept =*",
                "*.py::test_a: ?write? the folder 'reports' cannot be made: got a file in its place",
            ]
        )
        assert "INTERNALERROR" not in result.stdout.str() + result.stderr.str()


def test_a_report_of_an_expected_failure_that_cannot_be_written_fails_the_session(pytester) -> None:
    tests = """
        @pytest.mark.xfail
        def test_a():
            mismatch()
    """
    assert run_suite(pytester, tests).ret == pytest.ExitCode.OK
    for page in (pytester.path / "reports").iterdir():
        page.unlink()
        page.mkdir()
    result = run_suite(pytester, tests)
    result.assert_outcomes(xfailed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["*.py::test_a: ?write? '*test_a.html' is a folder: *"])


def test_every_test_has_a_page_of_its_own_whatever_its_parameters(pytester) -> None:
    tests = """
        LONG = ["x" * 400, "x" * 401, "\\N{SNOWMAN}" * 200]

        @pytest.mark.parametrize("name", ["+", "*", "a b", "a/b", "a-b", *LONG])
        def test_a(name):
            mismatch()
    """
    result = run_suite(pytester, tests)
    result.assert_outcomes(failed=8)
    assert "could not be kept" not in result.stdout.str()
    assert len(list((pytester.path / "reports").iterdir())) == 8
