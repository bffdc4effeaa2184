"""`KernelList`: the kernels that a runtime has to register, as data.

A list consists of uses: which program and method calls an operator with which tensors, and how often. The
union of lists has the uses of both, so a list over several programs is the smallest list for all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

from tosaic import _core
from tosaic.base.options import checked, invalid
from tosaic.base.reportable import Reportable
from tosaic.base.visible import one_line
from tosaic.base.writing import write_text

_CODES = {name: code for code, name, _, _ in _core.pte_scalar_types()}


@dataclass(frozen=True, order=True)
class KernelVariant:
    """The tensors with which a kernel is called.

    Attributes
    ----------
    dtypes : tuple of str
        The dtype of each tensor argument, as torch names it: ``float32``. Results count twice, because
        ExecuTorch lists them again at the end of a call. A list counts as its first tensor.
    dim_orders : tuple of tuple of int
        The dim order of each of these tensors.
    """

    dtypes: tuple[str, ...]
    dim_orders: tuple[tuple[int, ...], ...]

    @property
    def key(self) -> str:
        """The kernel key of ExecuTorch: ``v1/6;0,1|6;0,1``, with the numbers of dtypes and the dim orders."""
        tensors = [
            f"{_CODES[dtype]};{','.join(map(str, order))}"
            for dtype, order in zip(self.dtypes, self.dim_orders, strict=True)
        ]
        return "/".join(["v1", "|".join(tensors)] if tensors else ["v1"])


@dataclass(frozen=True, order=True)
class KernelUse:
    """The calls of an operator with the same dtypes and dim orders by one method.

    Attributes
    ----------
    operator : str
        Name and overload: ``aten::add.out``.
    variant : KernelVariant
    source : str
        The file or program.
    method : str
    calls : int
    """

    operator: str
    variant: KernelVariant
    source: str
    method: str
    calls: int


@dataclass(frozen=True, order=True)
class BackendUse:
    """The delegates of one method that a backend runs.

    Attributes
    ----------
    backend : str
        The id of the backend: ``EthosUBackend``.
    source, method : str
    delegates : int
    """

    backend: str
    source: str
    method: str
    delegates: int


@dataclass(frozen=True)
class Kernel:
    """A kernel that a runtime has to register.

    Attributes
    ----------
    operator : str
        Name and overload: ``aten::add.out``.
    uses : tuple of KernelUse
        Sorted.
    """

    operator: str
    uses: tuple[KernelUse, ...]

    @property
    def variants(self) -> tuple[KernelVariant, ...]:
        """The dtypes and dim orders with which it is called, sorted."""
        return tuple(dict.fromkeys(each.variant for each in self.uses))

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes of all its tensor arguments, sorted."""
        return tuple(sorted({dtype for each in self.uses for dtype in each.variant.dtypes}))

    @property
    def dim_orders(self) -> tuple[tuple[int, ...], ...]:
        """The dim orders of all its tensor arguments, sorted."""
        return tuple(sorted({order for each in self.uses for order in each.variant.dim_orders}))

    @property
    def calls(self) -> int:
        """How many instructions call it."""
        return sum(each.calls for each in self.uses)

    @property
    def users(self) -> tuple[tuple[str, str], ...]:
        """The pairs of source and method that call it, sorted."""
        return tuple(sorted({(each.source, each.method) for each in self.uses}))


@dataclass(frozen=True)
class KernelList(Reportable):
    """The kernels and backends that a runtime has to register for some programs.

    ``a | b`` is the list for the programs of both. A use that is equal in both counts once, so a program that
    is in both lists is not counted twice.

    Attributes
    ----------
    uses : tuple of KernelUse
        Sorted, each once.
    backend_uses : tuple of BackendUse
        Sorted, each once.

    Examples
    --------
    >>> kernels = tosaic.registration.kernel_list(["detector.pte", "tracker.pte"])  # doctest: +SKIP
    >>> kernels.save("selected_operators.yaml")  # doctest: +SKIP
    """

    uses: tuple[KernelUse, ...] = ()
    backend_uses: tuple[BackendUse, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "uses", tuple(sorted(set(self.uses))))
        object.__setattr__(self, "backend_uses", tuple(sorted(set(self.backend_uses))))

    @classmethod
    def union(cls, lists: Iterable[KernelList]) -> KernelList:
        """Returns the list for the programs of all lists."""
        every = list(lists)
        return cls(
            tuple(use for each in every for use in each.uses),
            tuple(use for each in every for use in each.backend_uses),
        )

    def __or__(self, other: object) -> KernelList:
        return self.union((self, other)) if isinstance(other, KernelList) else NotImplemented

    @cached_property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels by the name of their operator."""
        by_operator = groupby(self.uses, key=lambda use: use.operator)
        return tuple(Kernel(operator, tuple(uses)) for operator, uses in by_operator)

    @property
    def operators(self) -> tuple[str, ...]:
        """The names of the operators, sorted."""
        return tuple(each.operator for each in self.kernels)

    @property
    def backends(self) -> tuple[str, ...]:
        """The ids of the backends that run delegates, sorted."""
        return tuple(sorted({each.backend for each in self.backend_uses}))

    @property
    def sources(self) -> tuple[str, ...]:
        """The files and programs that call a kernel or a delegate, sorted."""
        called = {each.source for each in self.uses}
        return tuple(sorted(called | {each.source for each in self.backend_uses}))

    def __len__(self) -> int:
        return len(self.kernels)

    def __iter__(self) -> Iterator[Kernel]:
        return iter(self.kernels)

    def __contains__(self, operator: object) -> bool:
        return operator in self.operators

    def __getitem__(self, operator: str) -> Kernel:
        """Returns the kernel of an operator.

        Raises
        ------
        InvalidGraph
            No program calls it.
        """
        for kernel in self.kernels:
            if kernel.operator == operator:
                return kernel
        raise invalid(
            "kernel_list",
            "no program calls this operator",
            expected=", ".join(self.operators) or "nothing: all is in delegates",
            got=repr(operator),
        )

    @checked
    def to_yaml(self, *, dtypes: bool = True) -> str:
        """Returns the text of ``selected_operators.yaml``, which ExecuTorch's selective build reads.

        Parameters
        ----------
        dtypes : bool
            Write for each kernel its dtypes and dim orders, so that a build with dtype selection contains
            only these. Otherwise, the build contains all dtypes.

        Raises
        ------
        InvalidGraph
            The list is empty: delegates compute everything, so no kernel is needed.
        """
        from tosaic.pte.selected_operators import selected_operators

        return selected_operators(self, dtypes)

    @checked
    def save(self, path: str | os.PathLike[str], *, dtypes: bool = True) -> None:
        """Writes the text of `to_yaml` to a file.

        Raises
        ------
        InvalidGraph
            The list is empty.
        WriteError
            The file cannot be written.
        """
        write_text(path, self.to_yaml(dtypes=dtypes))

    def __repr__(self) -> str:
        return one_line(f"<tosaic.registration.KernelList: {', '.join(self.operators) or 'no kernels'}>")
