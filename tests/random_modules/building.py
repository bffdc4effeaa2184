"""Builds a random module step by step. Candidate steps are evaluated, and accepted if they are sound.

Compared with the builder of `random_graphs`, results may be empty, large or not finite, may have 16-bit and
narrow dtypes, and may share memory; statements write into values. A rejected statement is undone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from random_graphs.builder import MAX_ELEMENTS, MAX_INTEGER, MAX_NOISE, Builder, Info, Unfit
from random_graphs.programs import Leaf

from random_modules.programs import ModuleStep, ModuleValues, RandomModule

__all__ = ["ModuleBuilder"]

_LARGE = 1e4
"""Values beyond this are picked by few rows, so that large constants do not spread to all values."""
_KINDS = {"input": "x", "parameter": "w", "state": "s"}
_WIDE = (torch.float32, torch.float64)


@dataclass
class _Undo:
    """The contents of the memory before a statement wrote into it, and the infos of its values."""

    steps: int
    contents: list[tuple[torch.Tensor, torch.Tensor]]
    infos: dict[str, Info]


@dataclass
class _Marks:
    leaves: int
    steps: int
    used: set[str] = field(default_factory=set)


class ModuleBuilder(Builder):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.module_values = self.evaluation = ModuleValues(seed)  # type: ignore[assignment]
        self._undo: list[_Undo] = []

    def leaf(self, kind: str, dtype: torch.dtype, shape: object, low: float, high: float) -> Info:
        count = sum(leaf.kind == kind for leaf in self.leaves)
        leaf = Leaf(f"{_KINDS[kind]}{count}", kind, dtype, tuple(shape), low, high)  # type: ignore[arg-type]
        self.evaluation.add_leaf(leaf)  # first, since it raises for a leaf that cannot be drawn
        self.leaves.append(leaf)
        return self._note(leaf.name)

    def _note(self, name: str) -> Info:
        value = self.evaluation.values[name][1]
        numbers = value.double()
        numbers = numbers[torch.isfinite(numbers)] if value.dtype.is_floating_point else numbers
        bounds = (float(numbers.min()), float(numbers.max())) if numbers.numel() else (0.0, 0.0)
        if value.dtype.is_floating_point and not bool(torch.isfinite(value).all()):
            bounds = (-torch.inf, torch.inf)
        dtype = torch.float32 if value.dtype in _WIDE else value.dtype
        info = Info(name, dtype, tuple(value.shape), *bounds)
        self.infos[name] = info
        return info

    def add(
        self,
        template: str,
        *operands: Info,
        exact: bool = False,
        stepped: bool = False,
        inner: str = "",
        results: int = 0,
    ) -> Info:
        first = sum(len(step.results) for step in self.steps)
        names = tuple(f"v{first + i}" for i in range(max(results, 1)))
        given = tuple(o.name for o in operands)
        step = ModuleStep(names, template, given, exact, stepped, inner, results > 0)
        try:
            values = self.evaluation.of_step(step)
        except Exception as error:
            raise Unfit(str(error)) from None
        for per_variant in values:
            if reason := self._unsound(per_variant, stepped):
                raise Unfit(reason)
        shares = self.module_values.shares(given, values)
        self._accept(ModuleStep(names, template, given, exact, stepped, inner, results > 0, shares=shares))
        for name, per_variant in zip(names, values, strict=True):
            self.evaluation.values[name] = per_variant
            self._note(name)
        return self.infos[names[0]]

    def write(self, template: str, *operands: Info, exact: bool = False) -> None:
        """Adds a statement that writes into the memory of its first operand, or raises Unfit."""
        target = operands[0]
        if target.name.startswith("w") or self._overlaps(target):
            raise Unfit("not writable")
        step = ModuleStep((), template, tuple(o.name for o in operands), exact, writes=True)
        changed = [
            name
            for name in self.infos
            if self.module_values.shares([name], [self.evaluation.values[target.name]])
        ]
        if not changed and target.numel:
            raise Unfit("no memory")
        undo = _Undo(
            len(self.steps),
            [
                (whole, whole.clone())
                for whole in (_whole(x) for x in self.evaluation.values[target.name])
                if whole.numel()
            ],
            {name: self.infos[name] for name in changed},
        )
        self._undo.append(undo)
        try:
            self.evaluation.of_step(step)
            reasons = [self._unsound(self.evaluation.values[name], False) for name in changed]
        except Exception as error:
            reasons = [str(error)]
        if any(reasons):
            self._restore()
            raise Unfit(next(filter(None, reasons)))
        self._accept(step)
        for name in changed:
            self._note(name)

    def _accept(self, step: ModuleStep) -> None:
        self.steps.append(step)
        self.used.update(step.operands)
        self.module_values.count += 1

    def _restore(self) -> None:
        undo = self._undo.pop()
        for whole, content in undo.contents:
            whole.copy_(content)
        self.infos.update(undo.infos)

    def rollback(self, mark: tuple[int, int]) -> None:
        while self._undo and self._undo[-1].steps >= mark[1]:
            self._restore()
        self.module_values.count = mark[1]
        super().rollback(mark)

    def factors(self, count: int, rank: int) -> list[int]:
        if count == 0:
            raise Unfit("empty")
        return super().factors(count, rank)

    def _overlaps(self, info: Info) -> bool:
        value = self.evaluation.values[info.name][0]
        return any(s == 0 and n > 1 for s, n in zip(value.stride(), value.shape, strict=True))

    def _unsound(self, variants: list[torch.Tensor], stepped: bool) -> str:
        f32, f64, noisy = variants[0], variants[1], variants[2:]
        if f64.numel() > MAX_ELEMENTS or f64.dim() > 6:
            return "size"
        if any(value.shape != f64.shape for value in variants):
            return "shape"
        if f64.numel() == 0:
            return ""
        if not f64.dtype.is_floating_point:
            if f64.dtype is not torch.bool and float(f64.double().abs().max()) > MAX_INTEGER:
                return "large"
            return "" if all(torch.equal(value, f64) for value in (f32, *noisy)) else "near a tie"
        if f64.dtype not in _WIDE:
            same = all(torch.equal(value, f64) for value in (f32, *noisy))
            return "" if same and bool(torch.isfinite(f64).all()) else "near a tie"
        if f64.dtype is not torch.float64 or f32.dtype is not torch.float32:
            return "dtype"
        finite = torch.isfinite(f64)
        if any(not torch.equal(torch.isfinite(value), finite) for value in variants):
            return "not finite"
        if bool(torch.isnan(f64).any()):
            return "nan"
        infinite = [value[~finite].double() for value in variants]
        if any(not torch.equal(value, infinite[0]) for value in infinite):
            return "not finite"
        exact, single, others = f64[finite], f32[finite].double(), [value[finite] for value in noisy]
        if exact.numel() == 0:
            return ""
        largest = float(exact.abs().max())
        if stepped and not all(torch.equal(value, exact) for value in (single, *others)):
            return "near a tie"
        if max(float((value - exact).abs().max()) for value in others) > MAX_NOISE * largest:
            return "drowned in noise"
        near = torch.stack([(value - exact).abs() for value in others[:4]]).amax(0)
        if bool(((single - exact).abs() > 4 * near + 1e-6 * (largest + 1e-30)).any()):
            return "float32 and float64 differ"
        return ""

    def pick(self, fits: Callable[[Info], bool]) -> Info:
        """As in `random_graphs`. Values that are large or not finite are picked in one of ten cases."""
        if self.rng.random() < 0.1:
            return super().pick(fits)
        return super().pick(lambda v: max(-v.low, v.high) <= _LARGE and fits(v))

    def program(self, outputs: object) -> RandomModule:
        steps = tuple(self.steps)
        return RandomModule(self.seed, tuple(self.leaves), steps, tuple(outputs)).pruned()  # type: ignore[arg-type]


def _whole(x: torch.Tensor) -> torch.Tensor:
    """Returns the whole memory that a tensor is a view of, as one axis."""
    count = x.untyped_storage().nbytes() // x.element_size()
    return torch.as_strided(x.detach(), (count,), (1,), 0)
