"""Programs of one operator, as texts, with tensors that are large enough to take thousands of cycles."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["OPERATORS", "text_of"]

S, ROWS = "[1,32,32,64]", "[1,1024,64]"
_RESCALE = (
    "scale32=true, rounding_mode=single_round, per_channel=false, input_unsigned=false, output_unsigned=false"
)
_Program = tuple[dict[str, str], list[str]]  # types of inputs by name, and nodes; the last one makes %y


def rescale(name: str, value: str, kind: str, shift: int = 31) -> str:
    """Returns a RESCALE by 0.575, or by less."""
    dtype = kind.partition("[")[0]
    return (
        f"%{name}: {kind} = tosa.rescale(%{value}) {{input_zp=0, output_zp=0, dtype={dtype}, "
        f"{_RESCALE}, multiplier=[1234567890], shift=[{shift}]}}"
    )


def _one(operator: str, result: str, attributes: str = "", **inputs: str) -> _Program:
    operands = ", ".join(f"%{name}" for name in inputs)
    return inputs, [f"%y: {result} = tosa.{operator}({operands}) {{{attributes}}}"]


def _add() -> _Program:
    lines = [rescale("a", "x", f"i32{S}"), rescale("b", "z", f"i32{S}"), f"%s: i32{S} = tosa.add(%a, %b)"]
    return {"x": f"i8{S}", "z": f"i8{S}"}, [*lines, rescale("y", "s", f"i8{S}", 35)]


def _convolution(operator: str, channels: int, kernel: int, made: int) -> _Program:
    size = 32 - kernel + 1
    depthwise = operator == "depthwise_conv2d"
    shape = f"[{kernel},{kernel},{channels},1]" if depthwise else f"[{made},{kernel},{kernel},{channels}]"
    count = kernel * kernel * channels * (1 if depthwise else made)
    weights = ",".join(str(i * 37 % 201 - 100) for i in range(count))
    lines = [
        f"const %w: i8{shape} = parameter [{weights}]",
        f"const %b: i32[{made}] = parameter [{','.join('0' * made)}]",
        f"%c: i32[1,{size},{size},{made}] = tosa.{operator}(%x, %w, %b) {{pad=[0,0,0,0], stride=[1,1], "
        "dilation=[1,1], input_zp=0, weight_zp=0, acc_type=i32, local_bound=false}",
        rescale("y", "c", f"i8[1,{size},{size},{made}]", 40),
    ]
    return {"x": f"i8[1,32,32,{channels}]"}, lines


def _pool(operator: str, kernel: int) -> _Program:
    size = 32 // kernel
    more = "nan_mode=propagate" if operator == "max_pool2d" else "input_zp=0, output_zp=0, acc_type=i32"
    window = f"kernel=[{kernel},{kernel}], stride=[{kernel},{kernel}], pad=[0,0,0,0], {more}"
    return _one(operator, f"i8[1,{size},{size},64]", window, x=f"i8{S}")


def _table() -> _Program:
    table = ",".join(str(127 - i // 2) for i in range(256))
    return {"x": f"i8{S}"}, [f"const %t: i8[256] = parameter [{table}]", f"%y: i8{S} = tosa.table(%x, %t)"]


def _matmul_of_heads() -> _Program:
    made = "[4,4,128,128]"
    lines = [
        "%p: i32[16,128,128] = tosa.matmul(%x, %z) {first_zp=0, second_zp=0, dtype=none}",
        f"%s: i32{made} = tosa.reshape(%p) {{shape={made}}}",
        rescale("y", "s", f"i8{made}", 40),
    ]
    return {"x": "i8[16,128,16]", "z": "i8[16,16,128]"}, lines


def _table_of_images(second: str) -> _Program:
    table = ",".join(str(127 - i // 2) for i in range(256))
    shape = "[4,4,128,128]"
    lines = [
        f"const %t: i8[256] = parameter [{table}]",
        rescale("a", "x", f"i32{shape}"),
        rescale("b", "z", f"i32{second}"),
        f"%d: i32{shape} = tosa.sub(%a, %b)",
        rescale("e", "d", f"i8{shape}", 35),
        f"%y: i8{shape} = tosa.table(%e, %t)",
    ]
    return {"x": f"i8{shape}", "z": f"i8{second}"}, lines


_PROPAGATE = "nan_mode=propagate"
OPERATORS: dict[str, Callable[[], _Program]] = {
    "add": _add,
    "add_wide": lambda: _one("add", f"i32{S}", x=f"i32{S}", z=f"i32{S}"),
    "clz": lambda: _one("clz", f"i32{S}", x=f"i32{S}"),
    "and": lambda: _one("bitwise_and", f"i32{S}", x=f"i32{S}", z=f"i32{S}"),
    "greater": lambda: _one("greater", f"bool{S}", x=f"i32{S}", z=f"i32{S}"),
    "select": lambda: _one("select", f"i32{S}", c=f"bool{S}", x=f"i32{S}", z=f"i32{S}"),
    "cast": lambda: _one("cast", f"i32{S}", "dtype=i32", x=f"i8{S}"),
    "clamp": lambda: _one("clamp", f"i8{S}", f"min_val=0, max_val=100, {_PROPAGATE}", x=f"i8{S}"),
    "table": _table,
    "rescale": lambda: ({"x": f"i8{S}"}, [rescale("y", "x", f"i8{S}")]),
    "rescale_wide": lambda: ({"x": f"i32{S}"}, [rescale("y", "x", f"i8{S}", 40)]),
    "convolution": lambda: _convolution("conv2d", 16, 3, 32),
    "convolution_of_image": lambda: _convolution("conv2d", 3, 3, 16),
    "convolution_1x1": lambda: _convolution("conv2d", 64, 1, 64),
    "depthwise": lambda: _convolution("depthwise_conv2d", 32, 3, 32),
    "matmul": lambda: _one(
        "matmul",
        "i32[4,64,64]",
        "first_zp=0, second_zp=0, dtype=none",
        x="i8[4,64,128]",
        z="i8[4,128,64]",
    ),
    "matmul_of_heads": _matmul_of_heads,
    "table_of_images": lambda: _table_of_images("[4,4,128,128]"),
    "table_of_rows": lambda: _table_of_images("[4,4,128,1]"),
    "max_pool": lambda: _pool("max_pool2d", 2),
    "avg_pool": lambda: _pool("avg_pool2d", 8),
    "reduce_max_last": lambda: _one("reduce_max", "i8[1,1024,1]", f"axis=2, {_PROPAGATE}", x=f"i8{ROWS}"),
    "reduce_max_middle": lambda: _one("reduce_max", "i8[1,1,64]", f"axis=1, {_PROPAGATE}", x=f"i8{ROWS}"),
    "reduce_sum_last": lambda: _one("reduce_sum", "i32[1,1024,1]", "axis=2", x=f"i32{ROWS}"),
    "reduce_sum_middle": lambda: _one("reduce_sum", "i32[1,1,64]", "axis=1", x=f"i32{ROWS}"),
    "argmax": lambda: _one("argmax", "i32[1,1024]", f"axis=2, {_PROPAGATE}", x=f"i8{ROWS}"),
    "transpose": lambda: _one("transpose", "i8[1,64,1024]", "perm=[0,2,1]", x=f"i8{ROWS}"),
    "transpose_wide": lambda: _one("transpose", "i32[1,64,1024]", "perm=[0,2,1]", x=f"i32{ROWS}"),
    "transpose_inside": lambda: _one("transpose", "i8[8,32,16,64]", "perm=[0,2,1,3]", x="i8[8,16,32,64]"),
    "reverse": lambda: _one("reverse", f"i8{S}", "axis=1", x=f"i8{S}"),
    "concat": lambda: _one("concat", "i8[1,32,32,128]", "axis=3", x=f"i8{S}", z=f"i8{S}"),
    "pad": lambda: _one("pad", "i8[1,34,34,64]", "before=[0,1,1,0], after=[0,1,1,0], value=0", x=f"i8{S}"),
    "slice": lambda: _one("slice", "i8[1,16,32,64]", "start=[0,8,0,0], size=[1,16,32,64]", x=f"i8{S}"),
    "gather_of_elements": lambda: _one("gather", "i16[1,8192,1]", x="i16[1,4096,1]", z="i32[1,8192]"),
    "gather": lambda: _one("gather", "i32[1,512,8]", x="i32[1,4096,8]", z="i32[1,512]"),
}


def text_of(name: str) -> str:
    """Returns the program of an operator."""
    inputs, lines = OPERATORS[name]()
    head = [f'input %{each}: {kind} path="{each}"' for each, kind in inputs.items()]
    return "\n".join(["tosaic 1", "graph @forward stage=tosa {", *head, *lines, 'return %y path="out"', "}"])
