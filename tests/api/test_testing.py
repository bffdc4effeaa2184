"""The pytest plugin and its assertions."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest
import torch
import tosaic
from tosaic.testing import MismatchError, assert_lowers, assert_matches

pytest_plugins = ["pytester"]


def test_what_matches_passes(case) -> None:
    comparison = assert_matches(case.lowered, case.exported, (case.x,), sqnr_db=100, max_abs=1e-4, nodes=True)
    assert comparison.ok


def test_what_does_not_match_says_by_how_much(case) -> None:
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


def test_what_lowers_is_given_lowered(case, unliftable) -> None:
    assert assert_lowers(case.exported).to_bytes() == case.lowered.to_bytes()
    with pytest.raises(MismatchError, match=r"the program does not lower to TOSA-1\.0\+FP: \["):
        assert_lowers(unliftable)


def test_the_plugin_shows_the_comparison(pytester) -> None:
    pytester.makepyfile(
        """
        import numpy as np
        import tosaic
        from tosaic.testing import assert_matches

        TEXT = '''tosaic 1
        graph @forward stage=exported {{
          input %x: f32[3] path="x"
          %y: f32[3] = {}(%x)
          return %y path="out"
        }}
        '''

        def test_a():
            a, b = (tosaic.Graph.parse(TEXT.format(op)) for op in ("relu", "neg"))
            assert_matches(b, a, np.float32([1, 2, 3]))
        """
    )
    installed = any(point.value == "tosaic.testing.plugin" for point in entry_points(group="pytest11"))
    by_name = [] if installed else ["-p", "tosaic.testing.plugin"]
    result = pytester.runpytest_subprocess(*by_name, "--tosaic-reports=reports")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*MismatchError: forward @exported does not match*", "*- tosaic -*", "FAILED: forward*"]
    )
    (page,) = (pytester.path / "reports").iterdir()
    assert page.read_text().startswith("<!doctype html>")
