"""A device outside of tosaic: an NPU that has convolutions of 8 bits and little else."""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import tosaic
from tosaic.devices import Device, DeviceRecipe, Limit, Operators, Payload

COMPILER = (sys.executable, "-m", "base64")  # stands for the compiler of the maker
CONVOLUTIONS = ("tosa.conv2d", "tosa.depthwise_conv2d")
I8, I32 = ("i8",), ("i32",)


def compile_group(tosa: bytes, flags: Sequence[str]) -> bytes:
    """Calls the compiler with the .tosa file of a group, and returns what the runtime reads."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "group.tosa"
        source.write_bytes(tosa)
        done = subprocess.run([*COMPILER, *flags, str(source)], capture_output=True, check=False)
    if done.returncode != 0:
        raise tosaic.UnsupportedOp(f"the compiler refuses the group: {done.stderr.decode()}")
    return b"TINY" + done.stdout


DEVICE = Device(
    name="tiny-npu",
    members=["tiny-npu-16", "tiny-npu-64"],
    target="TOSA-1.0+INT",
    operators=[
        Operators(CONVOLUTIONS, input=I8, second=I8, result=I32),
        Operators(["tosa.rescale"], input=("i8", "i32"), result=("i8", "i32")),
        Operators(["tosa.clamp", "tosa.max_pool2d"], input=I8, result=I8),
        Operators(["tosa.add"], input=I32, second=I32, result=I32),
        Operators(["tosa.transpose", "tosa.reshape", "tosa.pad"], input=I8, result=I8),
    ],
    limits=[
        Limit(CONVOLUTIONS, "kernel-height", 1, 7),
        Limit(CONVOLUTIONS, "kernel-width", 1, 7),
        Limit(CONVOLUTIONS, "stride", 1, 2),
        Limit(CONVOLUTIONS, "constant-weight", 1, 1),
        Limit(["tosa.max_pool2d"], "kernel-product", 1, 16, when="padded"),
    ],
    payload=Payload(
        name="tiny",
        compile=compile_group,
        runtime="TinyBackend",
        backend="TosaicTinyBackend",
        magic=b"TINY",
        contents="a program of the tiny NPU, which only the device runs",
    ),
    recipes=[DeviceRecipe("tiny-npu", "int8 for a tiny NPU.", claimants=["tiny-npu-16"])],
)
