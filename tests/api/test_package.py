"""The names that `import tosaic` provides, and the packages that it does not load."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import tosaic
from tosaic.base.extras import missing_extra


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_public_name_exists_and_is_listed() -> None:
    for name in tosaic.__all__:
        assert getattr(tosaic, name) is not None
    assert set(tosaic.__all__) <= set(dir(tosaic))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'tosaic' has no attribute 'lowerr'"):
        tosaic.lowerr  # noqa: B018


def test_numpy_is_the_only_package_that_it_needs(tmp_path) -> None:
    """A program is parsed, lowered and run while imports of other third-party packages are blocked."""
    code = """
import sys, importlib.abc
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in {"torch", "torchao", "executorch", "sklearn", "tosa_reference_model", "ml_dtypes", "tqdm"}:
            raise ModuleNotFoundError(f"blocked {name}", name=name)
sys.meta_path.insert(0, Block())
import numpy, tosaic
text = '''tosaic 1
graph @forward stage=exported {
  input %x: f32[3] path="x"
  %y: f32[3] = relu(%x)
  return %y path="out"
}
'''
program = tosaic.program.from_graph(tosaic.program.Graph.parse(text))
x = numpy.float32([-1, 0, 2])
print(program.run(x).tolist(), tosaic.lower(program).run(x=x).tolist())
"""
    assert python(code) == "[0.0, 0.0, 2.0] [0.0, 0.0, 2.0]"


_WITHOUT_TORCHAO = """
import sys, importlib.abc
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torchao":
            raise ModuleNotFoundError(f"No module named '{name}'", name="torchao")
sys.meta_path.insert(0, Block())
import torch, tosaic
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU()).eval()
x = torch.randn(1, 3, 8, 8)
exported = torch.export.export(model, (x,))
"""


def test_the_main_calls_need_no_torchao() -> None:
    """Export, quantization, lowering and comparison run where torch is installed and torchao is not."""
    code = f"""{_WITHOUT_TORCHAO}
quantized = tosaic.quantize(exported, [(x,)])
print(tosaic.lower(quantized, target="TOSA-1.0+INT").graph.stage)
print(tosaic.compare(exported, tosaic.lower(exported), (x,)).ok)
for recipe in ("tosa-int8", "tosa-fp16"):
    print(tosaic.export_model(model, (x,), recipe=recipe, samples=[(x,)], verbose=0).ok)
print(tosaic.export_model(exported, recipe="tosa-int8", samples=[(x,)], verbose=0).ok)
"""
    assert python(code).split() == ["tosa", "True", "True", "True", "True"]


def test_a_call_that_needs_torchao_names_the_extra() -> None:
    code = f"""{_WITHOUT_TORCHAO}
trained = tosaic.recipes.named("tosa-int8").replace(stages=[tosaic.recipes.qat(print)])
for call in (
    lambda: tosaic.Quantizer,
    lambda: tosaic.wrap_quantizer(None, rules=[]),
    lambda: tosaic.fx.compose_quantizers([]),
    lambda: tosaic.fx.fold_norms(None),
    lambda: tosaic.quantize(exported, [(x,)]).to_exported(),
    lambda: tosaic.export_model(model, (x,), recipe=trained, samples=[(x,)], verbose=0),
):
    try:
        call()
    except ImportError as error:
        print(error)
"""
    assert (
        python(code).splitlines()
        == ["the flow of PT2E quantizers needs torchao: pip install 'tosaic[torch]'"] * 6
    )


_EVERY_PUBLIC_CALL = """
import enum, inspect, sys, importlib.abc
hidden = {hidden!r}
if hidden == {{"torch"}}:  # as a user hides a package
    sys.modules["torch"] = None
else:
    class Block(importlib.abc.MetaPathFinder):
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in hidden:
                raise ModuleNotFoundError(f"No module named '{{name}}'", name=name)
    sys.meta_path.insert(0, Block())
import tosaic
areas = [getattr(tosaic, name) for name in dir(tosaic) if name not in ("cli", *tosaic.__all__)]
recipe = tosaic.recipes.named("tosa-int8")
open("a.pt2", "wb").write(b"no archive")
class Exported:
    graph_module = graph_signature = range_constraints = property(lambda self: self)
values = {{
    "path": "a.pt2", "recipe": recipe, "samples": [], "calls": ["conv"], "spec": "TOSA-1.0+INT",
    "order": (0, 2, 3, 1), "rules": [], "partitioners": [object()], "inputs": (), "target": "TOSA-1.0+INT",
    "quantizers": [], "text": recipe.to_json(), "name": "tosa-int8", "train": print,
}}
for home in (tosaic, *areas):
    for name in home.__all__:
        where = f"{{home.__name__}}.{{name}}"
        try:
            call = getattr(home, name)
            if not callable(call) or isinstance(call, type) and issubclass(call, (BaseException, enum.Enum)):
                continue
            parameters = inspect.signature(call).parameters.values()
            given = {{
                each.name: values.get(each.name, Exported())
                for each in parameters
                if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
            }}
            positional = [given.pop(each.name) for each in parameters if each.kind is each.POSITIONAL_ONLY]
            call(*positional, **given)
        except ModuleNotFoundError as error:
            print(where, "|", error)
        except Exception:
            pass
for name in tosaic.recipes.names():
    try:
        tosaic.recipes.named(name).to_executorch()
    except ModuleNotFoundError as error:
        print("to_executorch", "|", error)
    except Exception:
        pass
"""


@pytest.mark.parametrize(
    ("hidden", "extras", "doors"),
    [
        ({"executorch"}, {"executorch"}, ("TosaicPartitioner", "layout_pass", "to_executorch")),
        ({"torchao"}, {"torch"}, ("Quantizer", "wrap_quantizer", "compose_quantizers")),
        ({"torch"}, {"torch", "executorch"}, ("Quantizer", "from_exported", "run_payloads", "apply_layout")),
        ({"torch", "torchao", "executorch"}, {"torch", "executorch"}, ("TosaicPartitioner", "to_executorch")),
    ],
    ids=lambda value: "-".join(sorted(value)) if isinstance(value, set) else None,
)
def test_every_public_call_names_the_extra_that_it_needs(
    hidden, extras, doors, tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = python(_EVERY_PUBLIC_CALL.format(hidden=hidden)).splitlines()
    named = re.compile(r"[^|]+ \| .+ needs (\w+): pip install 'tosaic\[(\w+)\]'")
    found = [(line, named.fullmatch(line)) for line in lines if " | " in line]
    assert [line for line, match in found if match is None] == []
    assert {match[1] for _, match in found} <= hidden
    assert {match[2] for _, match in found} <= extras
    assert [door for door in doors if not any(f"{door} |" in line for line in lines)] == []


def test_a_module_that_another_version_lacks_is_named() -> None:
    error = ModuleNotFoundError("No module named", name="executorch.backends.new")
    assert str(missing_extra("x", error)) == (
        "x needs executorch.backends.new, which the installed executorch lacks: "
        "pip install --upgrade 'tosaic[executorch]'"
    )
    assert missing_extra("x", ModuleNotFoundError("No module named", name="torchvision")) is None


def test_help_loads_neither_torch_nor_the_core() -> None:
    code = """
import sys
from tosaic.cli import main
try:
    main(["lower", "--help"])
except SystemExit as end:
    assert end.code == 0
print("loaded", *sorted({"torch", "executorch", "numpy", "tosaic._core"} & set(sys.modules)))
"""
    assert python(code).splitlines()[-1] == "loaded"


def test_a_submodule_is_found_without_importing_it() -> None:
    assert (
        python("import tosaic; print(tosaic.report.__name__, tosaic.testing.__name__)")
        == "tosaic.report tosaic.testing"
    )


PARSED = """
graph = tosaic.program.Graph.parse('''tosaic 1
graph @forward stage=exported {
  input %x: f32[3] path="x"
  %y: f32[3] = relu(%x)
  return %y path="out"
}
''')
"""


@pytest.mark.parametrize(
    ("before", "shown", "most", "left_out"),
    [
        ("", "tosaic.Pipeline.default()", 30, ("numpy", "tosaic.report.comparison", "tosaic.memory")),
        (
            f"{PARSED}lowered = tosaic.lower(tosaic.program.from_graph(graph))",
            "lowered",
            10,
            ("tosaic.quantizing", "tosaic.exporting", "tosaic.report.comparison", "tosaic.report.pte"),
        ),
    ],
)
def test_printing_a_result_loads_only_what_it_prints(
    before: str, shown: str, most: int, left_out: tuple[str, ...]
) -> None:
    """Otherwise the first `print` of a result takes as long as loading all of tosaic."""
    code = f"""
import sys, tosaic
{before}
known = set(sys.modules)
assert str({shown})
new = set(sys.modules) - known
print(sum(name.startswith("tosaic.") for name in new), *sorted(new & set({left_out!r})))
"""
    count, *wrong = python(code).split()
    assert int(count) <= most
    assert wrong == []
