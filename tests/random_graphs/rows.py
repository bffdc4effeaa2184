"""One row for each canonical operator: a function that adds a torch call which is imported as this operator.

The builder picks or creates the operands. A test checks that every canonical operator of the operator table
is either in `ROWS` or, with a reason, in `NOT_GENERATED`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from random_graphs.builder import Builder, Info, Unfit

Row = Callable[[Builder], object]
ROWS: dict[str, Row] = {}

NOT_GENERATED = {
    "opaque": "stands for what the table does not know",
    "cond": "control flow: torch.export makes it from torch.cond only; no executor here runs it on TOSA FP",
    "while_loop": "control flow, as cond",
    "integer_conv": "made by integer lowering, from stage integer on",
    "integer_grid_sample": "as integer_conv",
    "rescale": "as integer_conv",
} | dict.fromkeys(
    [
        "acos",
        "acosh",
        "adaptive_max_pool",
        "addcdiv",
        "addcmul",
        "affine_grid",
        "argsort",
        "asin",
        "asinh",
        "atan",
        "atan2",
        "hypot",
        "atanh",
        "cosh",
        "cumargmax",
        "cumargmin",
        "dequantize",
        "einsum",
        "erfc",
        "erfinv",
        "expm1",
        "fft2",
        "fmod",
        "gcd",
        "glu",
        "grid_sample",
        "hardshrink",
        "index_put",
        "isinf",
        "left_shift",
        "lerp",
        "log10",
        "log1p",
        "log2",
        "log_sigmoid",
        "logit",
        "logsumexp",
        "mish",
        "nan_to_num",
        "prelu",
        "quantize",
        "recurrent",
        "remainder",
        "rfft2",
        "right_shift",
        "scatter",
        "scatter_reduce",
        "sinh",
        "slice_scatter",
        "softplus",
        "softshrink",
        "std",
        "tan",
        "vector_norm",
    ],
    "tried alone, over generated arguments, in tests/operators",
)


def row(*ops: str) -> Callable[[Row], Row]:
    def register(make: Row) -> Row:
        for op in ops:
            ROWS[op] = make
        return make

    return register


# ---- contraction ----


def _conv_input(b: Builder, n: int) -> Info:
    x = b.of_rank(n + 2)
    if x.numel > 1024:
        raise Unfit("size")
    return x


@row("conv")
def conv(b: Builder) -> object:
    n = b.rng.choice([1, 2, 2, 2, 2, 3])
    x = _conv_input(b, n)
    channels = x.shape[1]
    groups = b.rng.choice([1, 1, channels])
    multiple = b.rng.randint(1, 3)
    transposed = b.rng.random() < 0.25 and n < 3
    kernel = [b.rng.randint(1, min(4, extent + 1)) for extent in x.shape[2:]]
    stride = [b.rng.randint(1, 3) for _ in kernel]
    dilation = [1 if transposed else b.rng.choice([1, 1, 2]) for _ in kernel]
    padding = [b.rng.randint(0, k - 1) if k > 1 else 0 for k in kernel]
    bias = b.flag()
    if transposed:
        if any(
            (e - 1) * s + k - 2 * p < 1
            for e, s, k, p in zip(x.shape[2:], stride, kernel, padding, strict=True)
        ):
            raise Unfit("size")
        extra = [b.rng.randint(0, max(s - 1, 0)) for s in stride]
        weight = b.param(channels, multiple, *kernel)
        operands = [x, weight, *([b.param(groups * multiple)] if bias else [])]
        text = f"stride={stride}, padding={padding}, output_padding={extra}, groups={groups}"
        return b.add(
            f"torch.nn.functional.conv_transpose{n}d({{0}}, {{1}}, {'{2}' if bias else None}, {text})",
            *operands,
        )
    for extent, k, d, p in zip(x.shape[2:], kernel, dilation, padding, strict=True):
        if extent + 2 * p < d * (k - 1) + 1:
            raise Unfit("size")
    out = groups * multiple
    weight = b.param(out, channels // groups, *kernel)
    operands = [x, weight, *([b.param(out)] if bias else [])]
    named = all(s == 1 for s in stride) and b.flag()
    pad = "'same'" if named else padding
    text = f"stride={stride}, padding={pad}, dilation={dilation}, groups={groups}"
    return b.add(f"torch.nn.functional.conv{n}d({{0}}, {{1}}, {'{2}' if bias else None}, {text})", *operands)


@row("linear")
def linear(b: Builder) -> object:
    x = b.floats(1)
    out = b.rng.randint(1, 6)
    if b.flag():
        return b.add("torch.nn.functional.linear({0}, {1})", x, b.param(out, x.shape[-1]))
    return b.add("torch.nn.functional.linear({0}, {1}, {2})", x, b.param(out, x.shape[-1]), b.param(out))


@row("matmul")
def matmul(b: Builder) -> object:
    x = b.floats(1, 4)
    depth = x.shape[-1]
    if b.flag():
        other = b.pick(
            lambda v: (
                v.dtype is torch.float32
                and 1 <= v.rank <= 4
                and v.shape[-2 if v.rank > 1 else 0] == depth
                and (min(v.rank, x.rank) < 3 or _broadcast(v.shape[:-2], x.shape[:-2]))
            )
        )
    else:
        shapes = [(depth,), (depth, b.rng.randint(1, 5))]
        if x.rank >= 3:
            shapes.append((x.shape[-3], depth, b.rng.randint(1, 4)))
        other = b.param(*b.rng.choice(shapes))
    return b.add("torch.matmul({0}, {1})", x, other)


def _broadcast(a: tuple[int, ...], c: tuple[int, ...]) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(reversed(a), reversed(c), strict=False))


@row("addmm")
def addmm(b: Builder) -> object:
    x = b.of_rank(2)
    out = b.rng.randint(1, 5)
    weight = b.param(x.shape[1], out)
    bias = b.param(*b.rng.choice([(out,), (x.shape[0], out), (1, out), (x.shape[0], 1)]))
    if b.flag():
        return b.add("torch.addmm({0}, {1}, {2})", bias, x, weight)
    return b.add(f"torch.addmm({{0}}, {{1}}, {{2}}, beta={b.number()}, alpha={b.number()})", bias, x, weight)


@row("baddbmm")
def baddbmm(b: Builder) -> object:
    x = b.of_rank(3)
    n, m, k = x.shape
    p = b.rng.randint(1, 4)
    other = b.param(n, k, p)
    bias = b.param(*b.rng.choice([(n, m, p), (1, m, p), (p,), (n, 1, 1)]))
    return b.add(f"torch.baddbmm({{0}}, {{1}}, {{2}}, beta={b.number()}, alpha={b.number()})", bias, x, other)


@row("sdpa")
def sdpa(b: Builder) -> object:
    q = b.of_rank(b.rng.choice([3, 4, 4]))
    length, depth = b.rng.randint(1, 5), q.shape[-1]
    key, value = b.param(*q.shape[:-2], length, depth), b.param(*q.shape[:-2], length, b.rng.randint(1, 5))
    if max(-q.low, q.high) > 20:
        raise Unfit("saturated")
    call = "torch.nn.functional.scaled_dot_product_attention({0}, {1}, {2}"
    roll = b.rng.random()
    if roll < 0.3:
        return b.add(f"{call}, is_causal=True)", q, key, value)
    if roll < 0.6:
        mask = b.param(q.shape[-2], length)
        return b.add(f"{call}, attn_mask={{3}}, scale={b.number(0.1, 1)})", q, key, value, mask)
    return b.add(f"{call})", q, key, value)


# ---- elementwise, unary ----


def _plain(
    op: str, call: str, *, exact: bool = False, stepped: bool = False, inner: str = "", size: float = 1e9
) -> None:
    def make(b: Builder) -> object:
        x = b.bounded(size) if size < 1e9 else b.floats()
        return b.add(call, x, exact=exact, stepped=stepped, inner=inner)

    ROWS[op] = make


_plain("ceil", "torch.ceil({0})", exact=True, stepped=True)
_plain("floor", "torch.floor({0})", exact=True, stepped=True)
_plain("round", "torch.round({0})", exact=True, stepped=True)
_plain("trunc", "torch.trunc({0})", exact=True, stepped=True)
_plain("cos", "torch.cos({0})", size=50, inner="{0} * 0 + 1")
_plain("sin", "torch.sin({0})", size=50, inner="{0} * 0 + 1")
_plain("erf", "torch.erf({0})")
_plain("exp", "torch.exp({0})", size=8)
_plain("sigmoid", "torch.sigmoid({0})")
_plain("tanh", "torch.tanh({0})", inner="{0} * 0 + 0.25")
_plain("elu", "torch.nn.functional.elu({0}, 0.7)", inner="{0} * 0 + 0.7")
_plain("silu", "torch.nn.functional.silu({0})")
_plain("hardsigmoid", "torch.nn.functional.hardsigmoid({0})", inner="{0} * 0 + 1")
_plain("hardswish", "torch.nn.functional.hardswish({0})", inner="{0}.abs()")


@row("gelu")
def gelu(b: Builder) -> object:
    mode = b.rng.choice(["none", "tanh"])
    return b.add(f"torch.nn.functional.gelu({{0}}, approximate={mode!r})", b.floats(), inner="{0}.abs()")


for _name in ("abs", "neg", "relu", "sign"):

    def _exact(b: Builder, name: str = _name) -> object:
        x = b.ints() if b.rng.random() < 0.3 else b.floats()
        return b.add(f"torch.{name}({{0}})", x, exact=True, stepped=name == "sign")

    ROWS[_name] = _exact

for _name in ("log", "reciprocal", "rsqrt", "sqrt"):

    def _of_positive(b: Builder, name: str = _name) -> object:
        if name == "reciprocal" and b.rng.random() < 0.3:
            return b.add("torch.reciprocal({0} - 3.5)", b.bounded(2.5))
        inner = "{0} * 0 + 1" if name == "log" else ""
        return b.add(f"torch.{name}({{0}})", b.positive(), inner=inner)

    ROWS[_name] = _of_positive


@row("clamp")
def clamp(b: Builder) -> object:
    if b.rng.random() < 0.25:
        return b.add("torch.clamp({0}, -3, 5)", b.ints(), exact=True)
    low, high = sorted([b.number(), b.number()])
    forms = [
        f"torch.clamp({{0}}, {low}, {high})",
        f"torch.clamp({{0}}, min={low})",
        f"torch.clamp({{0}}, max={high})",
        "torch.nn.functional.relu6({0})",
        f"torch.nn.functional.hardtanh({{0}}, {low - 0.5}, {high + 0.5})",
    ]
    return b.add(b.rng.choice(forms), b.floats(), exact=True)


@row("leaky_relu")
def leaky_relu(b: Builder) -> object:
    return b.add(f"torch.nn.functional.leaky_relu({{0}}, {b.rng.choice([0.01, 0.2, 1.5])})", b.floats())


@row("logical_not")
def logical_not(b: Builder) -> object:
    return b.add("torch.logical_not({0})", b.bools() if b.flag() else b.ints(), exact=True)


@row("bitwise_not")
def bitwise_not(b: Builder) -> object:
    return b.add("torch.bitwise_not({0})", b.bools() if b.flag() else b.ints(), exact=True)


@row("cast")
def cast(b: Builder) -> object:
    roll = b.rng.random()
    if roll < 0.35:
        x = b.bounded(1e4)
        return b.add(f"{{0}}.to(torch.{b.rng.choice(['int32', 'int64'])})", x, exact=True)
    if roll < 0.6:
        return b.add("{0}.to(F)", b.ints(), exact=True)
    if roll < 0.75:
        return b.add("{0}.to(F)", b.bools(), exact=True)
    if roll < 0.85:
        return b.add(f"{{0}}.to(torch.{b.rng.choice(['int32', 'int64'])})", b.bools(), exact=True)
    x = b.ints()
    other = torch.int64 if x.dtype is torch.int32 else torch.int32
    return b.add(f"{{0}}.to({b.rng.choice([str(other), 'torch.bool'])})", x, exact=True)


# ---- elementwise, binary and ternary ----


def _operand(b: Builder) -> Info:
    return b.ints() if b.rng.random() < 0.25 else b.floats()


def _either_way(b: Builder, call: str, x: Info, y: Info, *, exact: bool, inner: str = "") -> object:
    a, c = (x, y) if b.flag() else (y, x)
    return b.add(call, a, c, exact=exact, inner=inner)


for _name in ("add", "sub"):

    def _additive(b: Builder, name: str = _name) -> object:
        x = _operand(b)
        floats = x.dtype is torch.float32
        roll = b.rng.random()
        number = b.number() if floats else b.rng.randint(-5, 5)
        if roll < 0.25:
            return b.add(f"torch.{name}({{0}}, {number})", x)
        if roll < 0.35:
            return b.add(f"torch.{name}({{0}}, {{1}}, alpha={number})", x, b.partner(x))
        if roll < 0.45:
            return b.add(f"{number} - {{0}}" if name == "sub" else f"{number} + {{0}}", x)
        if roll < 0.55 and floats:
            other = b.pick(lambda v: v.dtype is not torch.float32 and _broadcast(v.shape, x.shape))
            if other.dtype is torch.bool and name == "sub":
                raise Unfit("bool")
            return b.add(f"torch.{name}({{0}}, {{1}})", x, other)
        return _either_way(b, f"torch.{name}({{0}}, {{1}})", x, b.partner(x), exact=False)

    ROWS[_name] = _additive


@row("mul")
def mul(b: Builder) -> object:
    x = _operand(b)
    if b.rng.random() < 0.3:
        number = b.number() if x.dtype is torch.float32 else b.rng.randint(-5, 5)
        return b.add(f"{{0}} * {number}", x)
    if x.dtype is not torch.float32 and max(-x.low, x.high) > 2000:
        raise Unfit("large")
    return _either_way(b, "torch.mul({0}, {1})", x, b.partner(x), exact=False)


@row("div")
def div(b: Builder) -> object:
    roll = b.rng.random()
    if roll < 0.3:
        return b.add(f"{{0}} / {b.rng.choice([0.3, -1.7, 3.0, 8.0])}", b.floats())
    if roll < 0.5:
        x = b.ints()
        mode = b.rng.choice(["floor", "trunc"])
        return b.add(
            f"torch.div({{0}}, {b.rng.choice([2, 3, -4, 7])}, rounding_mode={mode!r})", x, exact=True
        )
    if roll < 0.6:
        x = b.ints()
        return b.add("torch.div({0}, {1})", x, b.leaf("parameter", x.dtype, x.shape, 1, 9))
    if roll < 0.75:
        mode = b.rng.choice(["floor", "trunc"])
        x = b.bounded(100)
        return b.add(
            f"torch.div({{0}}, {{1}}, rounding_mode={mode!r})",
            x,
            b.param(*x.shape, low=0.4, high=3),
            stepped=True,
        )
    divisor = b.positive()
    return b.add("torch.div({0}, {1})", b.partner(divisor), divisor)


@row("pow")
def pow_(b: Builder) -> object:
    roll = b.rng.random()
    if roll < 0.4:
        return b.add(f"{{0}} ** {b.rng.choice([2, 3, 4, 1])}", b.bounded(9))
    if roll < 0.5:
        x = b.pick(lambda v: v.dtype in (torch.int64, torch.int32) and max(-v.low, v.high) <= 100)
        return b.add(f"{{0}} ** {b.rng.choice([2, 3])}", x, exact=True)
    if roll < 0.8:
        return b.add(f"{{0}} ** {b.rng.choice([0.5, -0.5, -1.0, -2.0, 1.7, 2.5])}", b.positive())
    if roll < 0.9:
        return b.add("2.0 ** {0}", b.bounded(6))
    x = b.positive()
    return b.add("torch.pow({0}, {1})", x, b.param(*x.shape, low=-1.5, high=1.5))


for _name in ("maximum", "minimum"):

    def _extremum(b: Builder, name: str = _name) -> object:
        x = _operand(b)
        return _either_way(b, f"torch.{name}({{0}}, {{1}})", x, b.partner(x), exact=True)

    ROWS[_name] = _extremum

for _name in ("eq", "ne", "lt", "le", "gt", "ge"):

    def _compare(b: Builder, name: str = _name) -> object:
        x = b.ints() if b.rng.random() < 0.4 else b.floats()
        if b.rng.random() < 0.4:
            number = b.number() if x.dtype is torch.float32 else b.rng.randint(-3, 3)
            return b.add(f"torch.{name}({{0}}, {number})", x, exact=True)
        return _either_way(b, f"torch.{name}({{0}}, {{1}})", x, b.partner(x), exact=True)

    ROWS[_name] = _compare

for _name in ("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor"):

    def _logic(b: Builder, name: str = _name) -> object:
        x = b.ints() if b.rng.random() < 0.35 else b.bools()
        return _either_way(b, f"torch.{name}({{0}}, {{1}})", x, b.partner(x), exact=True)

    ROWS[_name] = _logic


@row("where")
def where(b: Builder) -> object:
    condition = b.bools()
    x = b.pick(lambda v: v.dtype is not torch.bool and _broadcast(v.shape, condition.shape))
    if b.rng.random() < 0.3:
        number = b.number() if x.dtype is torch.float32 else b.rng.randint(-9, 9)
        form = b.rng.choice([f"torch.where({{0}}, {{1}}, {number})", f"{{1}}.masked_fill({{0}}, {number})"])
        if form.startswith("{1}") and not _expands(condition.shape, x.shape):
            raise Unfit("shape")
        return b.add(form, condition, x, exact=True)
    y = b.partner(x)
    if not _broadcast(y.shape, condition.shape):
        raise Unfit("shape")
    return b.add("torch.where({0}, {1}, {2})", condition, x, y, exact=True)


def _expands(a: tuple[int, ...], to: tuple[int, ...]) -> bool:
    return len(a) <= len(to) and all(m in (1, n) for m, n in zip(reversed(a), reversed(to), strict=False))


# ---- reduction ----


def _over_axes(b: Builder, call: str, x: Info, *, exact: bool = False, inner: str = "") -> object:
    if b.rng.random() < 0.15:
        return b.add(f"{call}({{0}})", x, exact=exact, inner=inner.format("{0}", "") if inner else "")
    axes, keep = b.axes(x), b.flag()
    return b.add(f"{call}({{0}}, dim={axes}, keepdim={keep})", x, exact=exact)


@row("sum")
def sum_(b: Builder) -> object:
    x = b.anything(1)
    return _over_axes(b, "torch.sum", x)


@row("mean")
def mean(b: Builder) -> object:
    return _over_axes(b, "torch.mean", b.floats(1))


for _name in ("amax", "amin"):

    def _extreme(b: Builder, name: str = _name) -> object:
        x = b.ints(1) if b.rng.random() < 0.25 else b.floats(1)
        return _over_axes(b, f"torch.{name}", x, exact=True)

    ROWS[_name] = _extreme

for _name in ("any", "all"):

    def _logical(b: Builder, name: str = _name) -> object:
        return _over_axes(b, f"torch.{name}", b.bools(1), exact=True)

    ROWS[_name] = _logical


@row("prod")
def prod(b: Builder) -> object:
    x = b.positive(0.2)
    if x.rank == 0:
        raise Unfit("rank")
    return b.add(f"torch.prod({{0}}, dim={b.axis(x)}, keepdim={b.flag()})", x)


@row("var")
def var(b: Builder) -> object:
    x = b.floats(1)
    axes = b.axes(x)
    count = 1
    for axis in axes:
        count *= x.shape[axis]
    correction = b.rng.choice([0, 1]) if count > 1 else 0
    keep = b.flag()
    inner = f"({{0}} * {{0}}).mean({axes}, keepdim={keep})"
    return b.add(f"torch.var({{0}}, dim={axes}, correction={correction}, keepdim={keep})", x, inner=inner)


for _name in ("argmax", "argmin"):

    def _position(b: Builder, name: str = _name) -> object:
        x = b.ints(1) if b.rng.random() < 0.2 else b.floats(1)
        form = b.rng.choice(["dim", "dim", "all"])
        if form == "all":
            return b.add(f"torch.{name}({{0}})", x, exact=True)
        if b.flag():
            return b.add(f"torch.{name}({{0}}, dim={b.axis(x)}, keepdim={b.flag()})", x, exact=True)
        direction = name.removeprefix("arg")
        return b.add(
            f"torch.{direction}({{0}}, dim={b.axis(x)}, keepdim={b.flag()})", x, exact=True, results=2
        )

    ROWS[_name] = _position


@row("cumsum")
def cumsum(b: Builder) -> object:
    x = b.ints(1) if b.rng.random() < 0.2 else b.floats(1)
    return b.add(
        f"torch.cumsum({{0}}, dim={b.axis(x)})", x, inner="{0}.abs()" if x.dtype is torch.float32 else ""
    )


@row("diff")
def diff(b: Builder) -> object:
    x = b.floats(1)
    axis = b.axis(x)
    if x.shape[axis] < 3:
        raise Unfit("short")
    if b.rng.random() < 0.3:
        return b.add(f"torch.diff({{0}}, dim={axis}, prepend={{0}})", x)
    return b.add(f"torch.diff({{0}}, n={b.rng.choice([1, 1, 2])}, dim={axis})", x)


# ---- normalisation and softmax ----


@row("batch_norm")
def batch_norm(b: Builder) -> object:
    x = b.of_rank(b.rng.choice([2, 3, 4, 4, 5]))
    c = x.shape[1]
    mean_, variance = b.param(c), b.param(c, low=0.3, high=2)
    if b.flag():
        return b.add("torch.nn.functional.batch_norm({0}, {1}, {2})", x, mean_, variance)
    call = "torch.nn.functional.batch_norm({0}, {1}, {2}, {3}, {4}, False, 0.1, 1e-3)"
    return b.add(call, x, mean_, variance, b.param(c), b.param(c))


def _normalized(b: Builder) -> tuple[Info, list[int]]:
    x = b.floats(1)
    shape = list(x.shape[b.rng.randrange(x.rank) :])
    return x, shape


@row("layer_norm")
def layer_norm(b: Builder) -> object:
    x, shape = _normalized(b)
    call = f"torch.nn.functional.layer_norm({{0}}, {shape}"
    if b.flag():
        return b.add(f"{call}, eps=1e-3)", x, inner="{0} * 0 + 1")
    return b.add(f"{call}, {{1}}, {{2}}, 1e-2)", x, b.param(*shape), b.param(*shape), inner="{0} * 0 + 1")


@row("rms_norm")
def rms_norm(b: Builder) -> object:
    x, shape = _normalized(b)
    call = f"torch.nn.functional.rms_norm({{0}}, {shape}"
    return b.add(f"{call}, {{1}}, 1e-3)", x, b.param(*shape)) if b.flag() else b.add(f"{call}, eps=1e-4)", x)


@row("group_norm")
def group_norm(b: Builder) -> object:
    x = b.of_rank(b.rng.choice([2, 3, 4, 4]))
    c = x.shape[1]
    groups = b.rng.choice([g for g in (1, 2, 3, 4, c) if c % g == 0])
    if x.numel // x.shape[0] // groups < 2:
        raise Unfit("one element")
    call = f"torch.nn.functional.group_norm({{0}}, {groups}"
    if b.flag():
        return b.add(f"{call}, eps=1e-2)", x, inner="{0} * 0 + 1")
    return b.add(f"{call}, {{1}}, {{2}}, 1e-2)", x, b.param(c), b.param(c), inner="{0} * 0 + 1")


@row("softmax")
def softmax(b: Builder) -> object:
    x = b.floats(1)
    return b.add(f"torch.softmax({{0}}, dim={b.axis(x)})", x)


@row("safe_softmax")
def safe_softmax(b: Builder) -> object:
    x = b.floats(1)
    return b.add(f"torch.ops.aten._safe_softmax({{0}}, {b.axis(x)})", x)


@row("log_softmax")
def log_softmax(b: Builder) -> object:
    x = b.floats(1)
    return b.add(f"torch.log_softmax({{0}}, dim={b.axis(x)})", x, inner="{0}.abs() + 1")


# ---- pooling and resampling ----


def _window(b: Builder, x: Info, n: int) -> tuple[list[int], list[int], list[int]]:
    kernel = [b.rng.randint(1, min(4, extent)) for extent in x.shape[-n:]]
    return kernel, [b.rng.randint(1, 3) for _ in kernel], [b.rng.randint(0, k // 2) for k in kernel]


@row("avg_pool")
def avg_pool(b: Builder) -> object:
    n = b.rng.choice([1, 2, 2, 2])
    x = b.of_rank(n + b.rng.choice([1, 2, 2]))
    kernel, stride, padding = _window(b, x, n)
    text = f"{kernel}, {stride}, {padding}, ceil_mode={b.flag()}, count_include_pad={b.flag()}"
    if n == 2 and b.rng.random() < 0.2:
        text += f", divisor_override={b.rng.randint(1, 5)}"
    return b.add(f"torch.nn.functional.avg_pool{n}d({{0}}, {text})", x)


@row("max_pool")
def max_pool(b: Builder) -> object:
    n = b.rng.choice([1, 2, 2, 2])
    x = b.of_rank(n + b.rng.choice([1, 2, 2]))
    kernel, stride, padding = _window(b, x, n)
    text = f"{kernel}, {stride}, {padding}, ceil_mode={b.flag()}"
    return b.add(f"torch.nn.functional.max_pool{n}d({{0}}, {text})", x, exact=True)


@row("adaptive_avg_pool")
def adaptive_avg_pool(b: Builder) -> object:
    n = b.rng.choice([1, 2, 2])
    x = b.of_rank(n + b.rng.choice([1, 2, 2]))
    size = [b.rng.randint(1, extent) for extent in x.shape[-n:]]
    return b.add(f"torch.nn.functional.adaptive_avg_pool{n}d({{0}}, {size})", x)


@row("resize")
def resize(b: Builder) -> object:
    x = b.of_rank(4)
    if x.numel > 256:
        raise Unfit("size")
    mode = b.rng.choice(["nearest", "bilinear"])
    corners = f", align_corners={b.flag()}" if mode == "bilinear" else ""
    if b.flag():
        target = f"scale_factor={b.rng.choice([2, 2, 3])}"
    else:
        size = [max(1, extent * b.rng.choice([1, 2, 3]) - b.rng.choice([0, 1])) for extent in x.shape[2:]]
        target = f"size={size}"
    return b.add(f"torch.nn.functional.interpolate({{0}}, {target}, mode={mode!r}{corners})", x)


# ---- shape and data movement ----


@row("reshape")
def reshape(b: Builder) -> object:
    x = b.anything()
    roll = b.rng.random()
    if roll < 0.4:
        return b.add(
            f"{{0}}.reshape({b.factors(x.numel, b.rng.randint(0 if x.numel == 1 else 1, 5))})", x, exact=True
        )
    if roll < 0.7:
        return b.add(f"{{0}}.unsqueeze({b.rng.randrange(-x.rank - 1, x.rank + 1)})", x, exact=True)
    return b.add(b.rng.choice(["{0}.flatten()", "{0}.squeeze()"]), x, exact=True)


@row("clone")
def clone(b: Builder) -> object:
    return b.add(b.rng.choice(["{0}.clone()", "{0}.contiguous()", "{0}.detach()"]), b.anything(), exact=True)


@row("permute")
def permute(b: Builder) -> object:
    x = b.anything(2)
    if b.flag():
        return b.add(f"{{0}}.transpose({b.axis(x)}, {b.axis(x)})", x, exact=True)
    perm = list(range(x.rank))
    b.rng.shuffle(perm)
    return b.add(f"{{0}}.permute({perm})", x, exact=True)


@row("expand")
def expand(b: Builder) -> object:
    x = b.anything()
    shape = [b.rng.randint(2, 4) if extent == 1 else -1 for extent in x.shape]
    if x.rank < 4 and b.flag():
        shape = [b.rng.randint(1, 3), *shape]
    return b.add(f"{{0}}.expand({shape})", x, exact=True)


@row("repeat")
def repeat(b: Builder) -> object:
    x = b.anything()
    repeats = [b.rng.choice([1, 1, 2, 3]) for _ in range(x.rank)]
    if x.rank < 4 and b.flag():
        repeats = [b.rng.randint(1, 2), *repeats]
    return b.add(f"{{0}}.repeat({repeats})", x, exact=True)


@row("cat")
def cat(b: Builder) -> object:
    x = b.anything(1)
    axis = b.rng.randrange(x.rank)
    others = [
        v
        for v in b.infos.values()
        if v.dtype is x.dtype
        and v.rank == x.rank
        and all(i == axis or m == n for i, (m, n) in enumerate(zip(v.shape, x.shape, strict=True)))
    ]
    parts = [b.rng.choice(others) for _ in range(b.rng.randint(1, 3))] + [x]
    names = ", ".join(f"{{{i}}}" for i in range(len(parts)))
    return b.add(f"torch.cat([{names}], dim={axis})", *parts, exact=True)


@row("stack")
def stack(b: Builder) -> object:
    x = b.anything()
    others = [v for v in b.infos.values() if v.dtype is x.dtype and v.shape == x.shape]
    parts = [x, *(b.rng.choice(others) for _ in range(b.rng.randint(1, 2)))]
    names = ", ".join(f"{{{i}}}" for i in range(len(parts)))
    return b.add(
        f"torch.stack([{names}], dim={b.rng.randrange(-x.rank - 1, x.rank + 1)})", *parts, exact=True
    )


@row("split")
def split(b: Builder) -> object:
    x = b.anything(1)
    axis = b.axis(x)
    extent = x.shape[axis]
    if extent < 2:
        raise Unfit("short")
    if b.flag():
        size = b.rng.randint(1, extent - 1)
        return b.add(f"torch.split({{0}}, {size}, dim={axis})", x, exact=True, results=-(-extent // size))
    first = b.rng.randint(1, extent - 1)
    return b.add(f"torch.split({{0}}, [{first}, {extent - first}], dim={axis})", x, exact=True, results=2)


@row("unbind")
def unbind(b: Builder) -> object:
    x = b.anything(1)
    axis = b.axis(x)
    if x.shape[axis] > 5:
        raise Unfit("long")
    return b.add(f"torch.unbind({{0}}, dim={axis})", x, exact=True, results=x.shape[axis])


@row("select")
def select(b: Builder) -> object:
    x = b.anything(1)
    axis = b.axis(x)
    return b.add(f"{{0}}.select({axis}, {b.rng.randrange(-x.shape[axis], x.shape[axis])})", x, exact=True)


@row("slice")
def slice_(b: Builder) -> object:
    x = b.anything(1)
    axis = b.rng.randrange(x.rank)
    extent = x.shape[axis]
    start = b.rng.randint(0, extent - 1)
    end = b.rng.randint(start + 1, extent)
    step = b.rng.choice([1, 1, 2, 3])
    return b.add(f"{{0}}[{':, ' * axis}{start}:{end}:{step}]", x, exact=True)


@row("flip")
def flip(b: Builder) -> object:
    x = b.anything(1)
    return b.add(f"torch.flip({{0}}, {b.axes(x)})", x, exact=True)


@row("pad")
def pad(b: Builder) -> object:
    mode = b.rng.choice(["constant", "constant", "reflect", "replicate", "circular"])
    if mode == "constant":
        x = b.anything(1)
        count = b.rng.randint(1, min(3, x.rank))
        low = -1 if b.rng.random() < 0.2 and min(x.shape) > 2 else 0
        padding = [b.rng.randint(low, 2) for _ in range(2 * count)]
        value = b.number() if x.dtype is torch.float32 else b.rng.randint(0, 1)
        return b.add(f"torch.nn.functional.pad({{0}}, {padding}, value={value})", x, exact=True)
    n = b.rng.choice([1, 2])
    x = b.of_rank(n + 2)
    if min(x.shape[2:]) < 2:
        raise Unfit("short")
    padding = [b.rng.randint(0, min(2, x.shape[-1 - i // 2] - 1)) for i in range(2 * n)]
    return b.add(f"torch.nn.functional.pad({{0}}, {padding}, mode={mode!r})", x, exact=True)


for _name in ("tril", "triu"):

    def _triangle(b: Builder, name: str = _name) -> object:
        return b.add(f"torch.{name}({{0}}, {b.rng.randint(-2, 2)})", b.anything(2), exact=True)

    ROWS[_name] = _triangle


@row("gather")
def gather(b: Builder) -> object:
    x = b.anything(1)
    axis = b.rng.randrange(x.rank)
    shape = [b.rng.randint(1, extent) for extent in x.shape]
    shape[axis] = b.rng.randint(1, 4)
    return b.add(f"torch.gather({{0}}, {axis}, {{1}})", x, b.index(x.shape[axis], *shape), exact=True)


@row("index_select")
def index_select(b: Builder) -> object:
    x = b.anything(1)
    axis = b.rng.randrange(x.rank)
    return b.add(
        f"torch.index_select({{0}}, {axis}, {{1}})",
        x,
        b.index(x.shape[axis], b.rng.randint(1, 5)),
        exact=True,
    )


@row("index")
def index(b: Builder) -> object:
    x = b.anything(1)
    axis = b.rng.randrange(x.rank)
    shape = b.rng.choice([(2,), (3,), (2, 2), (1,)])
    first = b.index(x.shape[axis], *shape)
    if axis + 1 < x.rank and b.flag():
        second = b.index(x.shape[axis + 1], *b.rng.choice([shape, (1,)]))
        return b.add(f"{{0}}[{':, ' * axis}{{1}}, {{2}}]", x, first, second, exact=True)
    return b.add(f"{{0}}[{':, ' * axis}{{1}}]", x, first, exact=True)


@row("embedding")
def embedding(b: Builder) -> object:
    table = b.param(b.rng.randint(2, 9), b.rng.randint(1, 6))
    shape = b.rng.choice([(3,), (2, 3), (1,), (2, 1, 2)])
    return b.add(
        "torch.nn.functional.embedding({0}, {1})", b.index(table.shape[0], *shape), table, exact=True
    )


# ---- creation ----


@row("arange")
def arange(b: Builder) -> object:
    x = b.floats(1)
    return b.add(f"{{0}} + torch.arange({x.shape[-1]}, dtype=F) * {b.number(0.1, 1)}", x)


@row("full")
def full(b: Builder) -> object:
    x = b.floats()
    return b.add(f"{{0}} * torch.full({list(x.shape)}, {b.number(0.2, 2)}, dtype=F)", x)
