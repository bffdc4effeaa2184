"""Extraction of quantized inputs and outputs, compared with ExecuTorch's own `extract_io_quant_params`.

Every float input and output of every case is compared: qparams, dtypes and results. Where ExecuTorch's
extraction does not work, `Case.refused` says why, and a test shows that it does not work.
"""

from __future__ import annotations

import copy
import inspect
import re
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tosaic
from tosaic.ports import QParams

torch = pytest.importorskip("torch")
exir = pytest.importorskip("executorch.exir")

from executorch.exir.passes.quantize_io_pass import (  # noqa: E402
    QuantizeInputs,
    QuantizeOutputs,
    extract_io_quant_params,
)
from fx.io_cases import CASES, Case, edge, exported, given, image, run  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("FutureWarning", "DeprecationWarning")
]

SIDES = ("inputs", "outputs")
DTYPES = {"BYTE": "u8", "CHAR": "i8", "SHORT": "i16", "INT": "i32"}


def ports_of(manager: Any) -> dict[str, list[str]]:
    """Returns the paths of all inputs and outputs of the user, by side."""
    program = tosaic.from_exported(manager.exported_program())
    return {side: [port.path for port in getattr(program, side)] for side in SIDES}


def new_values(manager: Any) -> int:
    """Returns the number of outputs that are new values of buffers. ExecuTorch counts them as outputs."""
    signature = manager.exported_program().graph_signature
    return len(signature.output_specs) - len(signature.user_outputs)


def theirs(manager: Any, inputs: Sequence[int] = (), outputs: Sequence[int] = ()) -> tuple[Any, Any]:
    """Returns the program that ExecuTorch's extraction changed, and what it returned."""
    changed = copy.deepcopy(manager)
    at = [index + new_values(manager) for index in outputs]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return changed, extract_io_quant_params(changed, input_idxs=list(inputs), output_idxs=at)


def refusal_of_theirs(manager: Any, side: str, index: int) -> str:
    with pytest.raises(Exception, match="An error occurred when running the 'Quantize") as error:
        theirs(manager, **{side: [index]})
    assert isinstance(error.value.__cause__, ValueError)
    return str(error.value.__cause__)


def qparams_of(entry: dict[str, Any]) -> QParams:
    """Returns what ExecuTorch's extraction says about one input or output."""
    dtype = DTYPES[entry["dtype"].name]
    limits = entry["quant_min"], entry["quant_max"]
    return QParams(dtype, (entry["scale"],), (entry["zero_point"],), *limits)


def assert_same_outputs(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for path, array in found.items():
        assert array.dtype == expected[path].dtype, path
        assert np.array_equal(array, expected[path]), path


@pytest.mark.parametrize("name", CASES)
def test_each_input_and_output_has_the_parameters_and_results_of_executorch(name: str) -> None:
    case = CASES[name]
    manager = edge(exported(case))
    ports = ports_of(manager)
    assert set(case.refused) <= {*ports["inputs"], *ports["outputs"]}
    for side in SIDES:
        for index, path in enumerate(ports[side]):
            if path in case.refused:
                assert re.search(case.refused[path].message, refusal_of_theirs(manager, side, index)), path
                continue
            changed, io = tosaic.extract_io_quant(manager, **{"inputs": None, "outputs": None, side: [index]})
            other, result = theirs(manager, **{side: [index]})
            (entry,) = result[side].values()
            (port,) = getattr(io, side)
            assert (port.path, port.qparams) == (path, qparams_of(entry))
            args, kwargs = given(case, io)
            assert_same_outputs(run(changed, args, kwargs, times=2), run(other, args, kwargs, times=2))


@pytest.mark.parametrize("name", CASES)
def test_all_inputs_and_outputs_together_have_the_results_of_executorch(name: str) -> None:
    case = CASES[name]
    manager = edge(exported(case))
    ports = ports_of(manager)
    works = {
        side: [index for index, path in enumerate(ports[side]) if path not in case.refused] for side in SIDES
    }
    if not any(works.values()):
        assert {*case.inputs, *case.outputs} <= set(case.refused)
        return
    changed, io = tosaic.extract_io_quant(manager, **works)
    other, _ = theirs(manager, **works)
    args, kwargs = given(case, io)
    assert_same_outputs(run(changed, args, kwargs, times=2), run(other, args, kwargs, times=2))


def test_an_input_or_output_that_stays_float_is_refused_by_executorch_too() -> None:
    """The other refusals are of inputs and outputs that we make integers."""
    stays = {
        (name, path)
        for name, case in CASES.items()
        for path in case.refused
        if path not in (*case.inputs, *case.outputs)
    }
    assert stays == {
        ("quantized in two ways", "x"),
        ("also read as floats", "x"),
        ("repeated output", "out[2]"),
        ("nested and keyword inputs", "batch['b']"),
        ("unused input before", "x"),
    }


# ---- what ExecuTorch's extraction gets wrong; each test fails when it is mended there ----


def test_executorch_changes_the_program_that_is_given_and_leaves_its_signature() -> None:
    manager = edge(exported(CASES["one user"]))
    before = str(manager.exported_program().graph)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        extract_io_quant_params(manager)
    program = manager.exported_program()
    assert str(program.graph) != before
    (result,) = program.graph.output_node().args[0]
    assert program.graph_signature.user_outputs != (result.name,)
    ours, _ = tosaic.extract_io_quant(edge(exported(CASES["one user"])))
    (result,) = ours.exported_program().graph.output_node().args[0]
    assert ours.exported_program().graph_signature.user_outputs == (result.name,)


def test_executorch_names_an_input_by_a_weight() -> None:
    manager = edge(exported(CASES["unused input before"]))
    _, result = theirs(manager, inputs=[1])
    assert list(result["inputs"]) == ["b_zeros"]
    _, io = tosaic.extract_io_quant(manager, inputs=[1])
    assert [port.name for port in io.inputs] == ["y"]


def test_executorch_returns_one_entry_for_an_output_that_is_returned_twice() -> None:
    manager = edge(exported(CASES["repeated output"]))
    _, result = theirs(manager, outputs=[0, 1])
    assert len(result["outputs"]) == 1
    _, io = tosaic.extract_io_quant(manager, outputs=[0, 1])
    assert [port.path for port in io.outputs] == ["out[0]", "out[1]"]


def test_executorch_counts_the_new_value_of_a_buffer_as_an_output() -> None:
    manager = edge(exported(CASES["mutated buffer"]))
    with pytest.raises(Exception, match="QuantizeOutputs") as error:
        theirs(manager, outputs=[-1])
    assert "is not a dequantize op" in str(error.value.__cause__)
    assert tosaic.extract_io_quant(manager, outputs=[0])[1].output(0).scale == 0.04
    manager = edge(exported(CASES["state"]))
    changed, _ = theirs(manager, outputs=[-1])  # index 0 for ExecuTorch
    dtypes = [each.meta["val"].dtype for each in changed.exported_program().graph.output_node().args[0]]
    assert dtypes == [torch.int8, torch.float32]  # the buffer is a float32
    changed, _ = tosaic.extract_io_quant(manager, outputs=[0])
    dtypes = [each.meta["val"].dtype for each in changed.exported_program().graph.output_node().args[0]]
    assert dtypes == [torch.float32, torch.int8]


def managed(**programs: Case) -> Any:
    config = exir.EdgeCompileConfig(_check_ir_validity=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return exir.to_edge({key: exported(case) for key, case in programs.items()}, compile_config=config)


def test_executorch_extracts_from_no_program_of_two_methods() -> None:
    """ExecuTorch's function takes the method ``forward`` once for each method of the program."""
    case = CASES["narrow range"]
    for name, cause in (("encode", KeyError), ("forward", ValueError)):
        manager = managed(**{name: CASES["one user"], "decode": case})
        with pytest.raises(Exception, match="QuantizeInputs") as error:
            theirs_of_methods(manager)
        assert isinstance(error.value.__cause__, cause)
        alone, expected = theirs(edge(exported(case)), inputs=[0], outputs=[0])
        changed, io = tosaic.extract_io_quant(manager, method="decode")
        for side in SIDES:
            (entry,) = expected[side].values()
            assert [port.qparams for port in getattr(io, side)] == [qparams_of(entry)]
        args, _ = given(case, io)
        assert_same_outputs(run(changed.exported_program("decode"), args, {}), run(alone, args, {}))
        floats = changed.exported_program(name)
        assert floats is manager.exported_program(name)


def theirs_of_methods(manager: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        extract_io_quant_params(copy.deepcopy(manager))


@pytest.mark.parametrize("name", ["one user", "nested and keyword inputs", "int16 and uint8"])
@pytest.mark.parametrize("narrow", [False, True])
def test_an_input_of_given_parameters_gives_the_results_of_executorch(name: str, narrow: bool) -> None:
    """ExecuTorch's pass, not `extract_io_quant_params`, takes qparams, and always of the whole range."""
    assert list(inspect.signature(extract_io_quant_params).parameters) == [
        "edge_prog",
        "input_idxs",
        "output_idxs",
    ]
    case = CASES[name]
    manager = edge(exported(case))
    path = case.inputs[0]
    index = ports_of(manager)["inputs"].index(path)
    qparams = QParams("i8", (0.025,), (2,), -127 if narrow else -128, 127)
    changed, io = tosaic.extract_io_quant(manager, inputs={path: qparams}, outputs=None)
    assert io.input(path) == qparams
    other = copy.deepcopy(manager)
    wanted = {"scale": 0.025, "zp": 2, "dtype": torch.int8, "quant_min": qparams.qmin, "quant_max": 127}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = other.transform([QuantizeInputs(other, {index: wanted})])._config_methods
    assert result[f"input{index}_quant_min"] == -128  # it ignores the given range
    args, kwargs = given(case, io)
    assert_same_outputs(run(changed, args, kwargs), run(other, args, kwargs))


def test_executorch_takes_no_parameters_of_an_output_and_no_other_range() -> None:
    assert "List[int]" in str(inspect.signature(QuantizeOutputs).parameters["quantized_outputs_idx_list"])
    case = CASES["one user"]
    manager = edge(exported(case))
    wanted = {"scale": 0.02, "zp": 3, "dtype": torch.int8, "quant_min": -127, "quant_max": 127}
    other = copy.deepcopy(manager)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = other.transform([QuantizeInputs(other, {0: wanted})])._config_methods
    assert result["input0_quant_min"] == -128
    given_qparams = QParams("i8", (0.02,), (3,), -127, 127)
    changed, io = tosaic.extract_io_quant(manager, inputs={0: given_qparams}, outputs={0: given_qparams})
    assert io.input(0) == io.output(0) == given_qparams
    integers = torch.from_numpy(given_qparams.quantize(image().numpy()))
    floats = torch.from_numpy(given_qparams.dequantize(integers.numpy()))
    expected = given_qparams.quantize(run(manager, [floats], {})["out"])
    assert np.array_equal(run(changed, [integers], {})["out"], expected)
