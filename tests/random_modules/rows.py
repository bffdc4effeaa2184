"""Steps that `random_graphs` lacks: views, writes into parts, masks, large constants, dtypes, states."""

from __future__ import annotations

from collections.abc import Callable

import torch
from random_graphs.builder import Info, Unfit

from random_modules.building import ModuleBuilder

__all__ = ["MODULE_ROWS"]

ModuleRow = Callable[[ModuleBuilder], object]
MODULE_ROWS: dict[str, ModuleRow] = {}
_LARGE = ("-1e4", "-1e9", "1e9", "-3e4", "torch.finfo(torch.float32).min", 'float("-inf")', "-1e30", "1e30")
_DTYPES = (torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


def _row(make: ModuleRow) -> ModuleRow:
    MODULE_ROWS[make.__name__.strip("_")] = make
    return make


# ---- views ----


def _part(b: ModuleBuilder, x: Info) -> str:
    """Returns a basic index: integers, slices with steps, None and an ellipsis."""
    if x.rank == 0:
        return "..."
    parts = []
    for extent in x.shape:
        low = b.rng.randint(0, max(extent - 1, 0))
        high = b.rng.randint(low, extent)
        kinds = [":", ":", f"{low}:{max(high, low + 1)}", f"::{b.rng.randint(1, 3)}", f"{low}:", f":{high}"]
        if extent:
            kinds += [str(low), str(low - extent)]
        if b.rng.random() < 0.06:
            kinds = [f"{low}:{low}"]
        parts.append(b.rng.choice(kinds))
        if b.rng.random() < 0.08:
            parts.append("None")
    if b.rng.random() < 0.3:
        parts = [*parts[: b.rng.randint(1, len(parts))], "..."]
    return ", ".join(parts)


@_row
def view(b: ModuleBuilder) -> object:
    """A view of a value, which later statements may write into."""
    x = b.anything(1)
    axis, other = b.axis(x), b.axis(x)
    extent = x.shape[axis]
    kinds = [
        f"{{0}}[{_part(b, x)}]",
        f"{{0}}.transpose({axis}, {other})",
        f"{{0}}.unsqueeze({axis})",
        f"{{0}}.flatten({min(axis % x.rank, other % x.rank)}, {max(axis % x.rank, other % x.rank)})",
        f"{{0}}.movedim({axis}, {other})",
        f"{{0}}.swapaxes({axis}, {other})",
        "{0}.squeeze()",
        "{0}.contiguous()",
        "{0}.detach()",
        "{0}.view_as({0})",
        "torch.ops.aten.alias({0})",
        f"{{0}}.reshape({b.factors(x.numel, b.rng.randint(1, 4)) if x.numel else [-1]})",
        f"torch.atleast_{b.rng.randint(1, 3)}d({{0}})",
        "{0}.ravel()",
        "torch.nn.functional.dropout({0}, 0.5, training=False)",
        "torch.nn.Identity()({0})",
        f"{{0}}.{b.rng.choice(['to(F)', 'to(F, copy=True)', 'type(F)', 'clone()', 'float()'])}",
        f"{{0}}.expand({b.rng.randint(1, 2)}, *{{0}}.shape)",
    ]
    if x.rank >= 2:
        kinds += [f"{{0}}.diagonal({b.rng.choice([0, 0, 1, -1])})", "{0}.mT"]
    if extent:
        start = b.rng.randrange(extent)
        size, step = b.rng.randint(1, extent), b.rng.randint(1, extent)
        kinds += [
            f"{{0}}.narrow({axis}, {start}, {b.rng.randint(int(b.rng.random() >= 0.1), extent - start)})",
            f"{{0}}.select({axis}, {start})",
            f"{{0}}.chunk({b.rng.randint(1, 3)}, {axis})[0]",
            f"{{0}}.unsafe_chunk({b.rng.randint(1, 3)}, {axis})[-1]",
            f"{{0}}.split({size}, {axis})[-1]",
            f"{{0}}.unsafe_split({size}, {axis})[0]",
            f"{{0}}.tensor_split({b.rng.randint(1, 3)}, {axis})[-1]",
            f"{{0}}.unbind({axis})[{start}]",
            f"{{0}}.unfold({axis}, {size}, {step})",
            f"{{0}}.unflatten({axis}, ({extent}, 1))",
        ]
    template = b.rng.choice(kinds)
    if x.dtype is torch.bool and ("F" in template or "float" in template):
        raise Unfit("dtype")
    return b.add(template, x, exact=True)


# ---- writes ----


def _target(b: ModuleBuilder) -> Info:
    """Returns a value to write into: a view of another value in half of the cases."""
    x = b.pick(lambda v: v.dtype is torch.float32 and not v.name.startswith("w"))
    if b.rng.random() < 0.5 and x.rank:
        return b.add(f"{{0}}[{_part(b, x)}]", x, exact=True)
    return x


def _addend(b: ModuleBuilder, shape: tuple[int, ...]) -> Info:
    """Returns a value or parameter that may be broadcast to this shape."""
    try:
        if b.rng.random() < 0.7:
            return b.pick(lambda v: v.dtype is torch.float32 and _expands(v.shape, shape))
    except Unfit:
        pass
    found = [1 if b.rng.random() < 0.3 else extent for extent in shape]
    return b.param(*found[b.rng.randint(0, len(found)) if b.rng.random() < 0.3 else 0 :])


def _expands(a: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return len(a) <= len(shape) and all(
        m in (1, n) for m, n in zip(reversed(a), reversed(shape), strict=False)
    )


@_row
def write_elements(b: ModuleBuilder) -> object:
    """An in-place call of one operand."""
    x = _target(b)
    number = b.number()
    exact = ["fill_({})", "zero_()", "neg_()", "abs_()", "relu_()", "clamp_(-1.0, {})", "clamp_min_({})"]
    rounds = ["mul_({})", "add_({})", "sub_({})", "div_(2.5)", "sigmoid_()", "tanh_()", "square_()"]
    moved = b.rng.random() < 0.5
    call = b.rng.choice(exact if moved else rounds).format(abs(number))
    if b.rng.random() < 0.2:
        function = b.rng.choice(["relu", "leaky_relu", "hardtanh", "silu", "hardswish", "elu", "relu6"])
        return b.write(f"torch.nn.functional.{function}({{0}}, inplace=True)", x)
    return b.write(f"{{0}}.{call}", x, exact=moved)


@_row
def write_operand(b: ModuleBuilder) -> object:
    """An in-place call with another operand."""
    x = _target(b)
    y = _addend(b, x.shape)
    call = b.rng.choice(
        ["add_({1})", "mul_({1})", "sub_({1}, alpha=0.5)", "copy_({1})", "add_({1}, alpha=2)"]
    )
    if b.rng.random() < 0.15:
        return b.write("{0}.addcmul_({1}, {2}, value=0.5)", x, y, _addend(b, x.shape))
    if b.rng.random() < 0.15:
        return b.write("{0}.lerp_({1}.expand_as({0}), 0.25)", x, y)
    return b.write(f"{{0}}.{call}", x, y, exact=call == "copy_({1})")


@_row
def write_part(b: ModuleBuilder) -> object:
    """An assignment to a part: ``x[1:, 0] = y`` or ``x[1:, 0] += y``."""
    x = b.pick(lambda v: v.dtype is torch.float32 and v.rank > 0 and not v.name.startswith("w"))
    part = _part(b, x)
    if b.rng.random() < 0.3:
        number = b.rng.choice([str(b.number()), "0.0", "0.0", "1.0", b.rng.choice(_LARGE)])
        return b.write(f"{{0}}[{part}] = {number}", x, exact=True)
    shape = tuple(eval(f"x[{part}]", {"x": torch.empty(x.shape)}).shape)
    y = _addend(b, shape)
    if b.flag():
        return b.write(f"{{0}}[{part}] = {{1}}", x, y, exact=True)
    return b.write(f"{{0}}[{part}] {b.rng.choice(['+=', '*=', '-='])} {{1}}", x, y)


@_row
def write_indices(b: ModuleBuilder) -> object:
    """In-place calls with indices or a mask: index_put_, index_copy_, scatter_, masked_fill_ and others."""
    x = b.pick(
        lambda v: v.dtype is torch.float32 and v.rank > 0 and v.numel > 0 and not v.name.startswith("w")
    )
    axis = b.axis(x)
    extent = x.shape[axis]
    count = b.rng.randint(1, extent)
    picked = sorted(b.rng.sample(range(extent), count))
    index = f"torch.tensor({picked})"
    shape = list(x.shape)
    shape[axis] = count
    kind = b.rng.randrange(7)
    if kind == 0:
        return b.write(f"{{0}}.index_copy_({axis}, {index}, {{1}})", x, b.param(*shape), exact=True)
    if kind == 1:
        return b.write(f"{{0}}.index_add_({axis}, {index}, {{1}})", x, b.param(*shape))
    if kind == 2:
        return b.write(f"{{0}}.index_fill_({axis}, {index}, {b.number()})", x, exact=True)
    if kind == 3:
        indices = b.index(extent, *shape)
        return b.write(f"{{0}}.scatter_({axis}, {{1}}, {b.number()})", x, indices, exact=True)
    if kind == 4:
        indices = b.index(extent, *shape)
        return b.write(f"{{0}}.scatter_add_({axis}, {{1}}, {{2}})", x, indices, b.param(*shape))
    if kind == 5:
        mask = b.pick(lambda v: v.dtype is torch.bool and _expands(v.shape, x.shape))
        number = b.rng.choice([str(b.number()), "0.0", *_LARGE])
        return b.write(f"{{0}}.masked_fill_({{1}}, {number})", x, mask, exact=True)
    repeated = b.rng.choice(["accumulate=True", "accumulate=False"])
    rows = b.param(count, *x.shape[1:])
    picked = sorted(b.rng.sample(range(x.shape[0]), min(count, x.shape[0])))
    rows = b.param(len(picked), *x.shape[1:])
    text = f"{{0}}.index_put_((torch.tensor({picked}),), {{1}}, {repeated})"
    return b.write(text, x, rows, exact="False" in repeated)


@_row
def write_strided(b: ModuleBuilder) -> object:
    """A write through a chain of two views."""
    x = b.pick(lambda v: v.dtype is torch.float32 and v.rank > 1 and not v.name.startswith("w"))
    first = b.rng.choice(["{0}.transpose(0, -1)", "{0}.flatten()", "{0}.unsqueeze(0)", "{0}.reshape(-1, 1)"])
    v = b.add(first, x, exact=True)
    w = b.add(f"{{0}}[{_part(b, v)}]", v, exact=True)
    return b.write(b.rng.choice(["{0}.mul_(0.5)", "{0}.add_(1.0)", "{0}.zero_()", "{0}.copy_({0}.abs())"]), w)


# ---- masks and large constants ----


def _mask(b: ModuleBuilder, x: Info) -> Info:
    """Returns a truth value that broadcasts to `x`: a parameter, an input, or a comparison."""
    roll = b.rng.random()
    if roll < 0.35:
        shape = [1 if b.rng.random() < 0.3 else extent for extent in x.shape]
        shape = shape[b.rng.randint(0, len(shape)) if b.rng.random() < 0.3 else 0 :]
        return b.leaf(b.rng.choice(["input", "parameter"]), torch.bool, shape, 0, 1)
    if roll < 0.5 and x.rank >= 2:
        text = f"torch.ones({x.shape[-2]}, {x.shape[-1]}, dtype=torch.bool).triu(1)"
        return b.add(text, exact=True)
    if roll < 0.7:
        return b.add(f"{{0}} > {b.number(-0.5, 0.5)}", x, exact=True)
    return b.pick(lambda v: v.dtype is torch.bool and _expands(v.shape, x.shape))


_READERS = (
    "torch.softmax({0}, -1)",
    "torch.softmax({0}, -1)",
    "{0}.amax(-1)",
    "{0}.clamp(-5.0, 5.0)",
    "torch.sigmoid({0})",
    "torch.softmax({0} * 0.5, -1)",
    "torch.relu({0})",
    "torch.maximum({0}, torch.zeros_like({0}))",
    "torch.exp({0})",
    "torch.tanh({0})",
    "{0}.argmax(-1)",
    "torch.softmax({0} + 0.25, -1)",
    "{0}.amin(0)",
    "torch.log_softmax({0}, -1).exp()",
    "({0} > -100)",
)


def _read(b: ModuleBuilder, x: Info) -> Info:
    if b.rng.random() < 0.12 or not x.rank:
        return x
    template = b.rng.choice(_READERS)
    return b.add(template, x, exact=any(n in template for n in ("argmax", ">", "amax", "amin")))


@_row
def masked(b: ModuleBuilder) -> object:
    """Scores that are masked by a large constant, and an operator that reads them."""
    x = b.floats(1)
    large = b.rng.choice(_LARGE)
    kind = b.rng.randrange(5)
    if kind == 0:
        y = b.add(f"{{0}}.masked_fill({{1}}, {large})", x, _mask(b, x), exact=True)
    elif kind == 1:
        y = b.add(f"torch.where({{1}}, {{0}}, {large})", x, _mask(b, x), exact=True)
    elif kind == 2:
        shape = [1 if b.rng.random() < 0.3 else extent for extent in x.shape]
        mask = b.leaf(b.rng.choice(["input", "parameter"]), torch.bool, shape, 0, 1)
        large = b.rng.choice(["-1e4", "-1e9", "-3e4"])
        y = b.add(f"{{0}} + (1 - {{1}}.to(F)) * {large}", x, mask, inner="{0}")
    elif kind == 3:
        y = b.add(f"torch.where({{1}}, {large}, {{0}} * 0.125)", x, _mask(b, x))
    else:
        text = 'torch.nan_to_num(torch.softmax({0}.masked_fill({1}, float("-inf")), -1), 0.0)'
        return b.add(text, x, _mask(b, x))
    return _read(b, y)


@_row
def joined_constant(b: ModuleBuilder) -> object:
    """A huge or tiny constant that a join, pad or scatter brings next to other numbers."""
    x = b.floats(1)
    axis = b.axis(x)
    large = b.rng.choice(["-1e4", "-1e9", "1e9", "1e-30", "1e4", "-1e30"])
    kind = b.rng.randrange(4)
    if kind == 0:
        y = b.add(f"torch.cat([{{0}}, torch.full_like({{0}}, {large})], {axis})", x, exact=True)
    elif kind == 1:
        y = b.add(f"torch.nn.functional.pad({{0}}, (1, 0), value={large})", x, exact=True)
    elif kind == 2:
        y = b.add(f"torch.stack([{{0}}, torch.full_like({{0}}, {large})], {axis})", x, exact=True)
    else:
        index = b.index(max(x.shape[axis], 1), *x.shape)
        y = b.add(f"torch.scatter({{0}}, {axis}, {{1}}, {large})", x, index, exact=True)
    return _read(b, y)


@_row
def attention(b: ModuleBuilder) -> object:
    """scaled_dot_product_attention with a mask that is a parameter or an input, of truth values or floats."""
    q = b.of_rank(b.rng.choice([3, 4]))
    if max(-q.low, q.high) > 20 or not q.numel:
        raise Unfit("saturated")
    length, depth = b.rng.randint(2, 5), q.shape[-1]
    key, value = b.param(*q.shape[:-2], length, depth), b.param(*q.shape[:-2], length, 4)
    kind = b.rng.choice(["input", "parameter"])
    mask = b.leaf(kind, torch.bool, (q.shape[-2], length), 0, 1)
    call = "torch.nn.functional.scaled_dot_product_attention({0}, {1}, {2}, attn_mask="
    if b.flag():
        float_mask = (
            f"torch.zeros({q.shape[-2]}, {length}).to(F).masked_fill(~{{3}}, {b.rng.choice(_LARGE[:2])})"
        )
        return b.add(f"{call}{float_mask})", q, key, value, mask, inner="{0}.abs().amax()")
    return b.add(f"torch.nan_to_num({call}{{3}}))", q, key, value, mask, inner="{0}.abs().amax()")


# ---- dtypes ----


@_row
def narrow_input(b: ModuleBuilder) -> object:
    """An input of 8 or 16 bits, moved, and cast to float."""
    dtype = b.rng.choice(_DTYPES)
    shape = [b.rng.choice([1, 2, 3, 5]) for _ in range(b.rng.randint(1, 4))]
    low, high = (0, 100) if dtype is torch.uint8 else (-100, 100) if dtype is torch.int8 else (-3000, 3000)
    if dtype.is_floating_point:
        low, high = -4, 4
    x = b.leaf(b.rng.choice(["input", "input", "parameter"]), dtype, shape, low, high)
    if b.flag():
        x = b.add(
            b.rng.choice(["{0}.flip(0)", "{0}.transpose(0, -1)", "{0}[..., :2]", "{0}.clone()"]),
            x,
            exact=True,
        )
    y = b.add("{0}.to(F)", x, exact=True)
    return b.add(f"{{0}} * {0.5 if dtype.is_floating_point else round(1.0 / high, 5)}", y)


@_row
def through_dtype(b: ModuleBuilder) -> object:
    """A cast to a narrow dtype and back, on numbers that it represents exactly."""
    x = b.floats()
    dtype = b.rng.choice(["torch.float16", "torch.bfloat16", "torch.int8", "torch.int16", "torch.int32"])
    y = b.add("torch.round({0} * 4).clamp(-100, 100)", x, stepped=True)
    z = b.add(f"{{0}}.to({dtype})", y, exact=True)
    return b.add("{0}.to(F)", z, exact=True)


# ---- states ----


@_row
def state(b: ModuleBuilder) -> object:
    """A buffer that persists: a moving average, a counter, a cache that is shifted or written at a place."""
    if sum(leaf.kind == "state" for leaf in b.leaves) >= 3:
        raise Unfit("enough states")
    x = b.floats(0, 4, 512)
    kind = b.rng.randrange(5)
    if kind == 0:
        s = b.leaf("state", torch.float32, x.shape, -1.0, 1.0)
        b.write("{0}.mul_(0.75).add_({1}, alpha=0.25)", s, x)
        return b.add("{0} + {1}", s, x)
    if kind == 1:
        s = b.leaf("state", torch.float32, x.shape, -1.0, 1.0)
        y = b.add("{0} - {1}", x, s)
        b.write("{0}.copy_({1})", s, x, exact=True)
        return y
    if kind == 2 and x.rank:
        extents = (x.shape[0] + b.rng.randint(1, 3), *x.shape[1:])
        s = b.leaf("state", torch.float32, extents, 0.0, 0.0)
        y = b.add("torch.cat([{0}, {1}])[-{0}.shape[0]:]", s, x, exact=True)
        b.write("{0}.copy_({1})", s, y, exact=True)
        return b.add("{0} * 0.5", s)
    if kind == 3 and x.rank:
        s = b.leaf("state", torch.float32, (b.rng.randint(2, 4), *x.shape), 0.0, 0.0)
        b.write(f"{{0}}[{b.rng.randrange(s.shape[0])}] = {{1}}", s, x, exact=True)
        return b.add("{0}.mean(0)", s)
    s = b.leaf("state", torch.int64, (), 0, 0)
    b.write("{0}.add_(1)", s, exact=True)
    return b.add("{1} * {0}", s, x)


# ---- layers ----


@_row
def layer(b: ModuleBuilder) -> object:
    """A few calls that networks are made of, in one step each."""
    kind = b.rng.randrange(5)
    if kind == 0:
        x = b.of_rank(4)
        channels = x.shape[1]
        if channels == 0:  # torch's result has no channels then, whatever the weights have
            return b.add("torch.relu({0})", x)
        y = b.add(
            "torch.nn.functional.conv2d({0}, {1}, {2}, padding=1)", x, b.param(4, channels, 3, 3), b.param(4)
        )
        return b.add(b.rng.choice(["torch.relu({0})", "torch.nn.functional.hardswish({0})"]), y)
    if kind == 1:
        x = b.floats(2)
        y = b.add("torch.nn.functional.linear({0}, {1}, {2})", x, b.param(6, x.shape[-1]), b.param(6))
        return b.add("torch.nn.functional.gelu({0})", y, inner="{0}.abs()")
    if kind == 2:
        x = b.floats(1, 4)
        return b.add(f"{{0}} + torch.nn.functional.layer_norm({{0}}, ({x.shape[-1]},))", x, inner="{0}")
    if kind == 3:
        x = b.floats(1, 3)
        table = b.param(7, 4)
        return b.add(
            "torch.nn.functional.embedding({1}, {0})", table, b.index(7, b.rng.randint(1, 4)), exact=True
        )
    x = b.of_rank(4)
    return b.add("{0} * torch.sigmoid({0}.mean((2, 3), keepdim=True))", x)


@_row
def several_results(b: ModuleBuilder) -> object:
    """Calls that return several tensors."""
    x = b.floats(1)
    if not x.numel:
        raise Unfit("empty")
    axis = b.axis(x)
    kind = b.rng.choice([0, 0, 0, 0, 3, 3, 3, 3, 1, 2])
    if kind == 0:
        return b.add(f"torch.max({{0}}, {axis})", x, results=2, exact=True)
    if kind == 1:  # of equal elements, torch may return any position
        return b.add(f"torch.topk({{0}}, {b.rng.randint(1, x.shape[axis])}, {axis})[0]", x, exact=True)
    if kind == 2:
        return b.add(f"torch.sort({{0}}, {axis}, stable=True)", x, results=2, exact=True)
    return b.add(f"torch.var_mean({{0}}, {axis}, correction=0)", x, results=2)


@_row
def empty(b: ModuleBuilder) -> object:
    """A value without elements, and an operator that reads it."""
    x = b.floats(1)
    axis = b.axis(x)
    y = b.add(f"{{0}}.narrow({axis}, 0, 0)", x, exact=True)
    z = b.add(b.rng.choice(["torch.relu({0})", "{0} * 2.0", "{0}.transpose(0, -1)", "{0}.flatten()"]), y)
    if b.flag():
        return b.add(f"{{0}}.sum({axis if z.shape == y.shape else 0})", z)
    return b.add(f"torch.cat([{{0}}, {{1}}], {axis})", x, y, exact=True)
