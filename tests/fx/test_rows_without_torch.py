"""The rows of torch operators describe calls without torch: a reader without torch can use them."""

from __future__ import annotations

import subprocess
import sys

# A reader of one call. It has what the row of conv2d uses of `tosaic.torch_operators.call.Call`.
READER = """
import sys


class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torchao", "executorch"):
            raise ImportError(f"{name} is blocked")


sys.meta_path.insert(0, Blocked())

from importlib import import_module
from pathlib import Path

import tosaic.torch_operators
from tosaic import _core
from tosaic.torch_operators.dtypes import CODE
from tosaic.torch_operators.table import TABLE
from tosaic.torch_operators.value import Ref

for file in sorted(Path(tosaic.torch_operators.__file__).parent.glob("*.py")):
    import_module(f"tosaic.torch_operators.{file.stem}")


class Reader:
    def __init__(self, shape):
        self.builder, self.dtype, self.shape = _core.GraphBuilder("forward"), CODE["f32"], shape

    def tensor(self, name, shape):
        return Ref(self.builder.add_input(name, CODE["f32"], shape, name), CODE["f32"], shape)

    def emit(self, op, attrs, operands):
        origin = ("conv2d", "aten.conv2d.default", "", "", 0)
        value = self.builder.add(op, attrs, operands, "conv2d", origin, self.dtype, self.shape)
        return Ref(value, self.dtype, self.shape)


reader = Reader((1, 4, 6, 6))
x, w = reader.tensor("x", (1, 3, 8, 8)), reader.tensor("w", (4, 3, 3, 3))
result = TABLE["conv2d"](reader, x, w, None, [1, 1], [0, 0], [1, 1], 1)
reader.builder.add_output(result.id, "out")
graph = reader.builder.finish()
graph.verify()
print(graph.nodes[0].op, graph.nodes[0].attrs["stride"], len(TABLE) > 500, "torch" in sys.modules)
"""


def test_a_reader_without_torch_builds_a_graph_with_the_rows() -> None:
    done = subprocess.run([sys.executable, "-c", READER], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[0] == "conv (1, 1) True False"
