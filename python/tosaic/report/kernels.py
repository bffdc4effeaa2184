"""The report of a list of kernels that a runtime has to register."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tosaic.report.document import Report
from tosaic.report.numbers import count
from tosaic.report.parts import Section, table

if TYPE_CHECKING:
    from tosaic.pte.kernel_names import Kernel, KernelList, KernelVariant


def describe_kernels(kernels: KernelList) -> Report:
    """Makes a report of kernels and backends with their users, and of calls by dtypes and dim orders."""
    programs = kernels.sources
    sections = []
    if len(kernels):
        rows = [_row(kernel, len(programs)) for kernel in kernels]
        sections.append(
            Section("kernels", table(("operator", "calls", "dtypes", "dim orders", "used by"), rows))
        )
    if kernels.backend_uses:
        delegates = [
            (each.backend, each.source, each.method, str(each.delegates)) for each in kernels.backend_uses
        ]
        sections.append(Section("backends", table(("backend", "program", "method", "delegates"), delegates)))
    if len(kernels):
        calls = [
            (
                use.operator,
                use.source,
                use.method,
                str(use.calls),
                _variant_text(use.variant),
                use.variant.key,
            )
            for use in kernels.uses
        ]
        columns = ("operator", "program", "method", "calls", "tensors", "kernel key")
        sections.append(Section("calls", table(columns, calls), folded=True))
    title = f"{count(len(kernels), 'kernel')} for {count(len(programs), 'program')}"
    if not len(kernels):
        title = f"no kernels for {count(len(programs), 'program')}: nothing is left to the host"
    return Report(
        title,
        facts=(
            ("programs", ", ".join(programs) or "none"),
            ("backends", ", ".join(kernels.backends) or "none"),
        ),
        sections=tuple(sections),
        data={
            "programs": list(programs),
            "kernels": [_data(kernel) for kernel in kernels],
            "backends": list(kernels.backend_uses),
        },
    )


def _row(kernel: Kernel, programs: int) -> tuple[str, ...]:
    sources = dict.fromkeys(source for source, _ in kernel.users)
    users = "all" if len(sources) == programs else ", ".join(sources)
    orders = " ".join(_order_text(order) for order in kernel.dim_orders)
    return (kernel.operator, str(kernel.calls), " ".join(kernel.dtypes), orders, users)


def _order_text(order: tuple[int, ...]) -> str:
    return f"({','.join(map(str, order))})"


def _variant_text(variant: KernelVariant) -> str:
    pairs = zip(variant.dtypes, variant.dim_orders, strict=True)
    return ", ".join(f"{dtype} {_order_text(order)}" for dtype, order in pairs)


def _data(kernel: Kernel) -> dict[str, Any]:
    return {
        "operator": kernel.operator,
        "calls": kernel.calls,
        "dtypes": list(kernel.dtypes),
        "dim_orders": [list(order) for order in kernel.dim_orders],
        "kernel_keys": [variant.key for variant in kernel.variants],
        "users": [
            {"program": use.source, "method": use.method, "kernel_key": use.variant.key, "calls": use.calls}
            for use in kernel.uses
        ],
    }
