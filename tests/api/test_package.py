"""The names that `import tosaic` provides, and the packages that it does not load."""

from __future__ import annotations

import subprocess
import sys

import pytest
import tosaic


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
program = tosaic.from_graph(tosaic.Graph.parse(text))
x = numpy.float32([-1, 0, 2])
print(program.run(x).tolist(), tosaic.lower(program).run(x=x).tolist())
"""
    assert python(code) == "[0.0, 0.0, 2.0] [0.0, 0.0, 2.0]"


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
