"""Every pass: its result is the golden text, is valid, and computes what the graph before the pass computes.

A second run of the pass, or a run on a graph without a match, returns the same graph object.
"""

from __future__ import annotations

import numpy as np
import pytest
import tosaic
from golden_file import GOLDEN, Case, read, refuse_in_ci, write
from tosaic import _core
from tosaic.ports.ports import caller_inputs

PASSES = [each.name for each in _core.passes()]
CASES = [(name, case) for name in PASSES if (GOLDEN / f"{name}.txt").exists() for case in read(name)]
each_case = pytest.mark.parametrize(
    ("name", "case"), [pytest.param(n, c, id=f"{n}: {c.sentence}") for n, c in CASES]
)
each_pass = pytest.mark.parametrize("name", PASSES)


TARGETS = {"widen-halves": "TOSA-1.0+INT"}
"""The targets of passes that do nothing for a target with all profiles."""


def run_pass(name: str, graph: _core.Graph) -> _core.Graph:
    if name not in TARGETS:
        return _core.run_pass(name, graph)
    return tosaic.Pipeline.default(TARGETS[name])[name].run(graph, target=TARGETS[name])


def test_every_pass_has_a_golden_file_with_several_cases_and_every_golden_file_has_a_pass() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(PASSES)
    assert all(len(read(name)) >= 3 for name in PASSES)


def test_option_update_golden_writes_the_golden_files(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--update-golden"):
        return
    for name in PASSES:
        cases = []
        for case in read(name):
            before = _core.Graph.parse(case.before)
            cases.append(Case(case.sentence, before.text(), run_pass(name, before).text()))
        write(name, cases)


def test_updating_golden_files_is_refused_in_ci() -> None:
    refuse_in_ci({"CI": "false"})
    with pytest.raises(pytest.exit.Exception, match="refused where CI is set"):
        refuse_in_ci({"CI": "true"})


@each_case
def test_the_pass_does_what_the_sentence_says(name: str, case: Case) -> None:
    before = _core.Graph.parse(case.before)
    assert before.text() == case.before, "the graph before is not as it is printed"
    assert run_pass(name, before).text() == case.after


@each_case
def test_the_graph_after_is_read_back_and_valid(name: str, case: Case) -> None:
    after = _core.Graph.parse(case.after)
    after.verify()
    assert after.text() == case.after


@each_case
def test_the_pass_changes_nothing_the_second_time(name: str, case: Case) -> None:
    after = run_pass(name, _core.Graph.parse(case.before))
    assert run_pass(name, after) is after


@each_case
def test_the_pass_does_not_change_results(name: str, case: Case) -> None:
    before = _core.Graph.parse(case.before)
    after = run_pass(name, before)
    inputs = random_inputs(before)
    users = [port for port in after.inputs if port.kind != "state"]
    given = [inputs[place] for place in caller_inputs(users)]
    with np.errstate(all="ignore"):
        pairs = zip(_core.Session(before).run(inputs), _core.Session(after).run(given), strict=True)
    for expected, got in pairs:
        assert_same(expected, got, units=1 if name == "lower-to-integer" else 0)


def random_inputs(graph: _core.Graph) -> list[np.ndarray]:
    """Returns a random array per input. Integers of 32 and 64 bits are 0 or 1, which are valid indices."""
    rng = np.random.default_rng(20)
    arrays = []
    for port in graph.inputs:
        if port.kind == "state":
            continue
        if port.dtype in ("f32", "f16"):
            dtype = np.float32 if port.dtype == "f32" else np.float16
            arrays.append(np.asarray(rng.uniform(-3, 3, port.shape)).astype(dtype))
        elif port.dtype in ("i8", "i16"):
            dtype = np.int8 if port.dtype == "i8" else np.int16
            limits = np.iinfo(dtype)
            arrays.append(rng.integers(limits.min, limits.max + 1, port.shape).astype(dtype))
        else:
            dtype = {"i64": np.int64, "i32": np.int32, "bool": np.bool_}[port.dtype]
            arrays.append(rng.integers(0, 2, port.shape).astype(dtype))
    return arrays


def assert_same(expected: np.ndarray, got: np.ndarray, *, units: int = 0) -> None:
    """Integers differ by at most `units`, floats by at most 32 * 2**-24 times the largest magnitude."""
    assert (expected.dtype, expected.shape) == (got.dtype, got.shape)
    if expected.dtype.kind != "f":
        apart = np.abs(got.astype(np.int64) - expected.astype(np.int64))
        assert apart.max(initial=0) <= units, (got, expected)
        return
    largest = float(np.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(got, expected, rtol=0, atol=32 * 2.0**-24 * largest)


NOTHING_TO_DO = """tosaic 1
graph @forward stage=exported {
  input %x: f32[2,3] path="x"
  input %y: f32[2,3] path="y"
  %add: f32[2,3] = add(%x, %y)
  %tanh: f32[2,3] = tanh(%add)
  return %tanh path="out"
}
"""


@each_pass
def test_a_pass_returns_the_same_object_if_nothing_matches(name: str) -> None:
    graph = _core.Graph.parse(NOTHING_TO_DO)
    if name == "legalize-tosa":
        graph = _core.run_pass(name, graph)
    assert _core.run_pass(name, graph) is graph


def test_an_unknown_pass_is_refused_with_the_known_ones() -> None:
    with pytest.raises(tosaic.InvalidGraph) as error:
        _core.run_pass("unroll", _core.Graph.parse(NOTHING_TO_DO))
    assert str(error.value) == f"[pipeline] unknown pass: expected one of {', '.join(PASSES)}, got 'unroll'"
