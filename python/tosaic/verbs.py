"""The implementation of each verb; see `tosaic.base.verbs`.

No module of the package imports this one, only `import tosaic` does. The functions here run when a verb is
called for the first time.
"""

from __future__ import annotations

from tosaic.base.bindings import BINDINGS

__all__: list[str] = []


def _describe() -> None:
    from tosaic.base.reportable import describe
    from tosaic.report.registry import describe as function

    describe.bind(function)


def _save_pte() -> None:
    from tosaic.program.prepared import save_pte
    from tosaic.pte.save import save_pte as function

    save_pte.bind(function)


def _compare_programs() -> None:
    from tosaic.comparing.compare_programs import compare_programs as function
    from tosaic.partitions.split_lowered import compare_programs

    compare_programs.bind(function)


def _edge_dialect() -> None:
    from tosaic.executorch.edge_dialect import EdgeDialect
    from tosaic.fx.dialects import edge_dialect

    edge_dialect.bind(EdgeDialect)


def _decompose_for_arm() -> None:
    from tosaic.executorch.decomposition import decompose_for_arm as function
    from tosaic.fx.quantizer.quantizer import decompose_for_arm

    decompose_for_arm.bind(function)


def _export_recipe() -> None:
    from tosaic.executorch.export_recipes import export_recipe as function
    from tosaic.recipes.recipe import export_recipe

    export_recipe.bind(function)


BINDINGS.update(
    describe=_describe,
    save_pte=_save_pte,
    compare_programs=_compare_programs,
    edge_dialect=_edge_dialect,
    decompose_for_arm=_decompose_for_arm,
    export_recipe=_export_recipe,
)
