"""Allowed dependencies: between C++ layers, on third-party headers, and on the optional Python packages.

The table of layers is read from CMakeLists.txt, which links the libraries by the same table. Each rule is a
function that takes the root of a source tree and returns a list of violations. The tests run each rule on our
sources, and on small source trees with a planted violation.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CPP_SUFFIXES = {".h", ".cpp", ".def", ".inc"}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.MULTILINE)

# Pattern of a header's name -> pattern of the files that may include it, as paths from the root.
THIRD_PARTY_HEADERS = {
    r"(unsupported/)?Eigen/": r"cpp/tosaic/quant/accuracy/(.*\.cpp|moment_matrix\.h)",
    r"tosa_generated\.h": r"cpp/tosaic/tosa/([^/]*\.cpp|(reader|writer)/(?!reader\.h|writer\.h).*)",
    r"pte_generated\.h": r"cpp/tosaic/pte/([^/]*\.cpp|reader/(?!reader\.h).*)",
    r"flatbuffers/": r"cpp/tosaic/(tosa|pte)/([^/]*\.cpp|(reader|writer)/(?!reader\.h|writer\.h).*)",
    r"pybind11/|Python\.h|numpy/": r"bindings/.*",
}
# Folder of cpp/tosaic/ -> the layers that it may include in addition to itself, if it may include fewer
# layers than its own layer may.
SELF_CONTAINED_FOLDERS = {"layout/solver": {"base"}}
# Python package -> the only folders of python/tosaic that may import it. Programs of ExecuTorch are torch's.
OWNERS = {"torch": ("fx", "executorch"), "torchao": ("fx",), "executorch": ("executorch",)}
OWNING_FOLDERS = {folder for folders in OWNERS.values() for folder in folders}


def layer_dependencies(root: Path) -> dict[str, set[str]]:
    """Returns, for each layer, the layers that it may include: those before it in CMakeLists.txt."""
    text = (root / "CMakeLists.txt").read_text()
    table = re.search(r"set\(TOSAIC_LAYER_RANKS([^)]*)\)", text)
    assert table, "CMakeLists.txt has no TOSAIC_LAYER_RANKS"
    allowed: dict[str, set[str]] = {}
    for rank in re.findall(r'"([^"]+)"', table[1]):
        below = set(allowed)
        allowed |= dict.fromkeys(rank.split(), below)
    return allowed


def included(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yields the line, the kind of quote and the name of each include of a file."""
    text = path.read_text()
    for match in INCLUDE.finditer(text):
        yield text.count("\n", 0, match.start()) + 1, match[1], match[2]


def cpp_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in CPP_SUFFIXES)


def layer_violations(root: Path) -> list[str]:
    """Finds unknown layers, includes of layers that are not below, and includes without their full path."""
    allowed = layer_dependencies(root)
    base = root / "cpp" / "tosaic"
    found = []
    for path in cpp_files(base):
        where = path.relative_to(root).as_posix()
        layer = path.relative_to(base).parts[0]
        if layer not in allowed:
            found.append(f"{where}: layer '{layer}' is not in TOSAIC_LAYER_RANKS")
            continue
        for line, quote, name in included(path):
            parts = name.split("/")
            if parts[0] == "tosaic" and len(parts) > 2:
                if parts[1] != layer and parts[1] not in allowed[layer]:
                    found.append(f'{where}:{line}: {layer} may not include "{name}"')
            elif quote == '"' and name != "tosa_generated.h":
                found.append(
                    f'{where}:{line}: include "{name}" by its path from cpp/, "tosaic/<layer>/<file>"'
                )
    return found


def private_header_violations(root: Path) -> list[str]:
    """Finds includes of a private header by a file outside the folder of that header.

    A folder inside a layer, such as `passes/qdq`, has one public header at most, named as the folder:
    `passes/qdq/qdq.h`. Its other headers are for its own files.
    """
    found = []
    for path in cpp_files(root / "cpp") + cpp_files(root / "bindings"):
        where = path.relative_to(root).as_posix()
        for line, _, name in included(path):
            parts = name.split("/")
            if len(parts) != 4 or parts[0] != "tosaic" or parts[3] == f"{parts[2]}.h":
                continue
            folder = "/".join(["cpp", *parts[:3]])
            if path.relative_to(root).parent.as_posix() != folder:
                found.append(f"{where}:{line}: {name} is private to {folder}")
    return found


def self_contained_violations(root: Path) -> list[str]:
    """Finds includes of a self-contained folder that are not of the folder or of its listed layers."""
    found = []
    for folder, layers in SELF_CONTAINED_FOLDERS.items():
        for path in cpp_files(root / "cpp" / "tosaic" / folder):
            where = path.relative_to(root).as_posix()
            for line, _, name in included(path):
                parts = name.split("/")
                is_ours = parts[0] == "tosaic" and len(parts) > 2
                if is_ours and parts[1] not in layers and not name.startswith(f"tosaic/{folder}/"):
                    found.append(f'{where}:{line}: {folder} may not include "{name}"')
    return found


def third_party_violations(root: Path) -> list[str]:
    """Finds includes of third-party headers in files that may not include them."""
    found = []
    for path in cpp_files(root / "cpp") + cpp_files(root / "bindings"):
        where = path.relative_to(root).as_posix()
        for line, _, name in included(path):
            for header, place in THIRD_PARTY_HEADERS.items():
                if re.match(header, name) and not re.fullmatch(place, where):
                    found.append(f"{where}:{line}: {name} belongs to {place}")
    return found


def is_type_checking(node: ast.AST) -> bool:
    if not isinstance(node, ast.If):
        return False
    test = node.test
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def python_imports(
    tree: ast.Module, package: list[str], *, with_types: bool = False
) -> Iterator[tuple[int, str, bool]]:
    """Yields (line, absolute dotted name, whether it runs when the module is imported) of each import.

    `package` has the parts of the dotted name of the module's package, from which relative imports start.
    Imports under `if TYPE_CHECKING:` never run and are skipped, unless `with_types`.
    """

    def walk(node: ast.AST, at_import: bool) -> Iterator[tuple[int, str, bool]]:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, at_import
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            module = [*start, *([node.module] if node.module else [])]
            for alias in node.names:
                yield node.lineno, ".".join([*module, alias.name]), at_import
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if name in {"import_module", "__import__"} and isinstance(node.args[0].value, str):
                yield node.lineno, node.args[0].value, at_import
        inside = at_import and not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        is_skipped = isinstance(node, ast.If) and is_type_checking(node) and not with_types
        never_runs = node.body if isinstance(node, ast.If) and is_skipped else []
        for child in (child for child in ast.iter_child_nodes(node) if child not in never_runs):
            yield from walk(child, inside)

    yield from walk(tree, True)


def python_violations(root: Path) -> list[str]:
    """Finds imports of optional packages outside their folders, and module-level imports of these folders."""
    base = root / "python" / "tosaic"
    found = []
    for path in sorted(base.rglob("*.py")):
        where = path.relative_to(root).as_posix()
        inside = path.relative_to(base).parts
        folder = inside[0] if len(inside) > 1 else ""
        package = ["tosaic", *inside[:-1]]
        for line, name, at_import in python_imports(ast.parse(path.read_text()), package):
            parts = name.split(".")
            owners = OWNERS.get(parts[0])
            if owners and folder not in owners:
                found.append(f"{where}:{line}: import of {parts[0]} outside python/tosaic/{owners[0]}/")
            owned = parts[1] if parts[0] == "tosaic" and len(parts) > 1 else ""
            if at_import and owned in OWNING_FOLDERS and folder not in OWNING_FOLDERS:
                found.append(
                    f"{where}:{line}: tosaic.{owned} is imported with the module: import it where it is used"
                )
    return found


def test_layers_include_only_what_is_below_them() -> None:
    assert layer_violations(ROOT) == []


def test_third_party_headers_stay_in_their_layer() -> None:
    assert third_party_violations(ROOT) == []


def test_torch_and_executorch_are_imported_by_their_owner_only() -> None:
    assert python_violations(ROOT) == []


@pytest.mark.parametrize("module", ["tosaic", "tosaic.cli"])
def test_importing_the_package_loads_no_optional_package(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({set(OWNERS)!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


def plant(root: Path, files: dict[str, str]) -> Path:
    table = (ROOT / "CMakeLists.txt").read_text()
    for name, text in {"CMakeLists.txt": table, **files}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_the_table_allows_the_designed_dependencies() -> None:
    allowed = layer_dependencies(ROOT)
    assert allowed["base"] == set()
    assert allowed["ir"] == {"base"}
    for layer in ("analysis", "kernels", "target", "tosa"):
        assert allowed[layer] == {"base", "ir"}
    assert allowed["pipeline"] == set(allowed) - {"pipeline", "claimant"}
    assert allowed["claimant"] == set(allowed) - {"claimant"}


@pytest.mark.parametrize(
    ("where", "text", "message"),
    [
        ("ir/a.h", '#include "tosaic/layout/plan.h"', 'a.h:1: ir may not include "tosaic/layout/plan.h"'),
        (
            "base/a.cpp",
            '\n#  include "tosaic/ir/ops.def"',
            'a.cpp:2: base may not include "tosaic/ir/ops.def"',
        ),
        ("ir/a.h", "#include <tosaic/exec/run.h>", 'ir may not include "tosaic/exec/run.h"'),
        ("kernels/isa/a.cpp", '#include "tosaic/tosa/a.h"', 'kernels may not include "tosaic/tosa/a.h"'),
        ("passes/a.cpp", '#include "tosaic/nowhere/a.h"', 'passes may not include "tosaic/nowhere/a.h"'),
        ("passes/a.cpp", '#include "fold.h"', 'include "fold.h" by its path from cpp/'),
        ("misc/a.h", "", "layer 'misc' is not in TOSAIC_LAYER_RANKS"),
    ],
)
def test_a_planted_layer_violation_is_found(tmp_path: Path, where: str, text: str, message: str) -> None:
    (found,) = layer_violations(plant(tmp_path, {f"cpp/tosaic/{where}": text}))
    assert message in found


def test_includes_of_lower_layers_are_allowed(tmp_path: Path) -> None:
    text = '#include "tosaic/base/error.h"\n#include "tosaic/exec/run.h"\n#include <vector>\n'
    assert layer_violations(plant(tmp_path, {"cpp/tosaic/exec/a.cpp": text})) == []


def test_contractions_have_one_header_for_other_files() -> None:
    room = ROOT / "cpp/tosaic/kernels/gemm"
    others = [
        path
        for folder in ("cpp/tosaic", "bindings")
        for path in (ROOT / folder).rglob("*.[ch]*")
        if room not in path.parents
    ]
    found = [
        (path.name, header)
        for path in others
        for header in re.findall(r'"tosaic/kernels/gemm/(.+)"', path.read_text())
        if header != "gemm.h"
    ]
    assert len(others) > 500
    assert found == []


@pytest.mark.parametrize(
    ("where", "header"),
    [
        ("cpp/tosaic/exec/a.cpp", "<Eigen/Core>"),
        ("cpp/tosaic/kernels/matmul.cpp", "<Eigen/Core>"),
        ("cpp/tosaic/quant/accuracy/gptq.h", "<Eigen/Core>"),
        ("cpp/tosaic/tosa/serialize.h", '"flatbuffers/flatbuffers.h"'),
        ("cpp/tosaic/tosa/reader/reader.h", '"tosa_generated.h"'),
        ("cpp/tosaic/passes/a.cpp", '"tosa_generated.h"'),
        ("cpp/tosaic/ir/a.cpp", "<pybind11/pybind11.h>"),
        ("cpp/tosaic/base/a.cpp", "<Python.h>"),
        ("bindings/a.cpp", "<flatbuffers/flatbuffers.h>"),
    ],
)
def test_a_planted_third_party_header_is_found(tmp_path: Path, where: str, header: str) -> None:
    (found,) = third_party_violations(plant(tmp_path, {where: f"#include {header}\n"}))
    assert found.startswith(f"{where}:1: {header[1:-1]} belongs to")


def test_third_party_headers_are_allowed_in_their_layer(tmp_path: Path) -> None:
    files = {
        "cpp/tosaic/quant/accuracy/a.cpp": "#include <Eigen/Core>",
        "cpp/tosaic/tosa/a.cpp": '#include "tosa_generated.h"',
        "cpp/tosaic/tosa/reader/lists.h": "#include <tosa_generated.h>",
        "bindings/a.cpp": "#include <pybind11/pybind11.h>",
    }
    root = plant(tmp_path, files)
    assert third_party_violations(root) == []
    assert layer_violations(root) == []


@pytest.mark.parametrize(
    ("where", "text", "message"),
    [
        ("api/calls.py", "import torch", "api/calls.py:1: import of torch outside python/tosaic/fx/"),
        (
            "api/calls.py",
            "def f():\n    from torch.fx import Node",
            "api/calls.py:2: import of torch outside",
        ),
        ("report/text.py", "import torch.nn as nn", "import of torch outside"),
        (
            "api/calls.py",
            "import importlib\nt = importlib.import_module('torch')",
            "api/calls.py:2: import of torch outside",
        ),
        ("fx/a.py", "import executorch.exir", "import of executorch outside python/tosaic/executorch/"),
        ("executorch/a.py", "import torchao", "import of torchao outside"),
        ("torch_operators/a.py", "import torch", "import of torch outside"),
        ("torch_operators/a.py", "from tosaic.fx.reading.weights import CODE_OF", "tosaic.fx is imported"),
        ("__init__.py", "from .fx import importer", "tosaic.fx is imported with the module"),
        ("__init__.py", "from . import fx", "tosaic.fx is imported with the module"),
        ("report/text.py", "from ..fx.importer import read", "tosaic.fx is imported with the module"),
        (
            "api/calls.py",
            "try:\n    import tosaic.executorch\nexcept ImportError:\n    pass",
            "tosaic.executorch is imported",
        ),
    ],
)
def test_a_planted_python_violation_is_found(tmp_path: Path, where: str, text: str, message: str) -> None:
    (found,) = python_violations(plant(tmp_path, {f"python/tosaic/{where}": text}))
    assert message in found


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("fx/reading/importer.py", "import torch\nfrom torchao.quantization import pt2e"),
        ("fx/reading/importer.py", "from .names import x\nfrom ..report import y"),
        ("executorch/a.py", "from executorch import exir\nfrom tosaic.fx import importer"),
        ("api/calls.py", "def f():\n    from .fx import importer"),
        ("api/calls.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
        ("report/torch.py", "import numpy"),
    ],
)
def test_allowed_python_imports_are_not_reported(tmp_path: Path, where: str, text: str) -> None:
    assert python_violations(plant(tmp_path, {f"python/tosaic/{where}": text})) == []


def test_private_headers_stay_in_their_folder() -> None:
    # kernels/isa is compiled once for each instruction set; the dispatch in kernels/ includes its headers.
    found = private_header_violations(ROOT)
    assert [line for line in found if "tosaic/kernels/isa/" not in line] == []


def test_a_planted_include_of_a_private_header_is_found(tmp_path: Path) -> None:
    passes = tmp_path / "cpp" / "tosaic" / "passes"
    (passes / "qdq").mkdir(parents=True)
    (tmp_path / "bindings").mkdir()
    (passes / "qdq" / "fold.cpp").write_text('#include "tosaic/passes/qdq/labels.h"\n')
    (passes / "pass.cpp").write_text(
        '#include "tosaic/passes/qdq/qdq.h"\n#include "tosaic/passes/qdq/labels.h"\n'
    )
    assert private_header_violations(tmp_path) == [
        "cpp/tosaic/passes/pass.cpp:2: tosaic/passes/qdq/labels.h is private to cpp/tosaic/passes/qdq"
    ]


def test_self_contained_folders_include_only_themselves_and_their_listed_layers() -> None:
    for folder in SELF_CONTAINED_FOLDERS:
        assert cpp_files(ROOT / "cpp" / "tosaic" / folder), f"{folder} has no files"
    assert self_contained_violations(ROOT) == []


@pytest.mark.parametrize("header", ["tosaic/ir/graph.h", "tosaic/layout/plan.h", "tosaic/layout/solvers/a.h"])
def test_a_planted_include_in_a_self_contained_folder_is_found(tmp_path: Path, header: str) -> None:
    allowed = '#include <vector>\n#include "tosaic/base/error.h"\n#include "tosaic/layout/solver/cut.h"\n'
    root = plant(tmp_path, {"cpp/tosaic/layout/solver/a.cpp": f'{allowed}#include "{header}"\n'})
    assert self_contained_violations(root) == [
        f'cpp/tosaic/layout/solver/a.cpp:4: layout/solver may not include "{header}"'
    ]


# ---- results and reports ----

# Modules and folders of python/tosaic that may import tosaic.report. `base/reportable.py` asks for a report,
# `verbs.py` says who makes it; the others print.
MAY_IMPORT_REPORT = (
    "base/reportable.py",
    "verbs.py",
    "__init__.py",
    "cli/demo.py",
    "cli/",
    "report/",
    "testing/",
)


def report_violations(root: Path) -> list[str]:
    """Finds imports of tosaic.report in modules of results or logic, also in functions and for types."""
    base = root / "python" / "tosaic"
    found = []
    for path in sorted(base.rglob("*.py")):
        inside = path.relative_to(base)
        if inside.as_posix().startswith(MAY_IMPORT_REPORT):
            continue
        package = ["tosaic", *inside.parts[:-1]]
        for line, name, _ in python_imports(ast.parse(path.read_text()), package, with_types=True):
            if name.split(".")[:2] == ["tosaic", "report"]:
                found.append(f"python/tosaic/{inside.as_posix()}:{line}: results do not import {name}")
    return found


def test_results_do_not_import_reports() -> None:
    assert report_violations(ROOT) == []


@pytest.mark.parametrize(
    "text",
    [
        "from tosaic.report import Report",
        "from tosaic import report",
        "def f():\n    from ..report.layout import describe_layout",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tosaic.report.document import Report",
    ],
)
def test_a_planted_import_of_a_report_is_found(tmp_path: Path, text: str) -> None:
    (found,) = report_violations(plant(tmp_path, {"python/tosaic/lowering/layout.py": text}))
    assert "lowering/layout.py:" in found
    assert "results do not import tosaic.report" in found


# ---- settings of the process ----

# Calls that change a setting of the whole process. Only python/tosaic/base/process.py makes them, in context
# managers that restore the setting. The command line owns its process.
SETTINGS = re.compile(
    r"gc\.(disable|enable|freeze|set_\w+)|warnings\.(simplefilter|filterwarnings)|signal\.signal"
    r"|sys\.set\w+|(np|numpy)\.(seterr|set_printoptions|random\.seed)|random\.seed|locale\.setlocale"
    r"|os\.(chdir|putenv|unsetenv|umask|dup2)|os\.environ\.(update|setdefault|pop|clear)"
    r"|torch\.(set_\w+|manual_seed|use_deterministic_algorithms)"
    r"|logging\.(basicConfig|disable)|.*\.setLevel"
)
MAY_CHANGE_SETTINGS = ("base/process.py", "cli/")
RESTORES = re.compile(r"torch\.random\.fork_rng|warnings\.catch_warnings")


def setting_violations(root: Path) -> list[str]:
    """Finds changes of settings of the whole process outside of the context managers that restore them."""
    base = root / "python" / "tosaic"
    found: list[str] = []

    def visit(node: ast.AST, where: str) -> None:
        changed = ""
        if isinstance(node, ast.With) and any(
            RESTORES.match(ast.unparse(i.context_expr)) for i in node.items
        ):
            return
        if isinstance(node, ast.Call) and SETTINGS.fullmatch(ast.unparse(node.func)):
            changed = ast.unparse(node.func)
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.Delete):
            targets = [node.target] if isinstance(node, ast.AugAssign) else node.targets
            changed = next((text for text in map(ast.unparse, targets) if text.startswith("os.environ[")), "")
        if changed:
            found.append(f"{where}:{getattr(node, 'lineno', 0)}: {changed} changes the whole process")
        for child in ast.iter_child_nodes(node):
            visit(child, where)

    for path in sorted(base.rglob("*.py")):
        inside = path.relative_to(base).as_posix()
        if not inside.startswith(MAY_CHANGE_SETTINGS):
            visit(ast.parse(path.read_text()), f"python/tosaic/{inside}")
    return found


def test_settings_of_the_process_are_changed_in_context_managers_only() -> None:
    assert setting_violations(ROOT) == []


@pytest.mark.parametrize(
    "text",
    [
        "import gc\ngc.disable()",
        "def f():\n    warnings.simplefilter('ignore')",
        "torch.set_num_threads(1)",
        "logging.getLogger('x').setLevel(10)",
        "os.environ['A'] = 'b'",
        "del os.environ['A']",
        "os.dup2(1, 2)",
        "torch.manual_seed(0)",
    ],
)
def test_a_planted_change_of_a_setting_is_found(tmp_path: Path, text: str) -> None:
    (found,) = setting_violations(plant(tmp_path, {"python/tosaic/fx/a.py": text}))
    assert "changes the whole process" in found


def test_changes_that_are_restored_are_allowed(tmp_path: Path) -> None:
    text = (
        "with torch.random.fork_rng():\n    torch.manual_seed(0)\nwith np.errstate(all='ignore'):\n    pass\n"
    )
    files = {"python/tosaic/fx/a.py": text, "python/tosaic/base/process.py": "import gc\ngc.disable()\n"}
    assert setting_violations(plant(tmp_path, files)) == []


# ---- ranks of Python folders ----

# The folders of python/tosaic, lowest first, and the table of verbs, which is above them. A module may import
# modules of its own folder and of folders before it in this list, and none of later ones, not even inside a
# function or for a type.
PYTHON_RANKS = (
    "base",
    "ports",
    "memory",
    "profiling",
    "torch_operators",
    "program",
    "lowering",
    "devices",
    "partitions",
    "cost",
    "pte",
    "registration",
    "pt2",
    "annotation",
    "calibration",
    "fx",
    "opening",
    "comparing",
    "quantizing",
    "api",
    "recipes",
    "exporting",
    "executorch",
    "report",
    "testing",
    "cli",
    "verbs",
)
MOST_UPWARD = 5
# Imports of higher folders. None runs when a module is loaded, and none closes a circle. Entries may only be
# removed.
UPWARD = {
    ("tosaic.base.reportable", "tosaic.report.document"),
    ("tosaic.partitions.claimant", "tosaic.opening.sources"),
    ("tosaic.program.mutated_inputs", "tosaic.fx.running.written"),
    ("tosaic.program.prepared", "tosaic.devices.engines"),
    ("tosaic.recipes.kernels", "tosaic.executorch.cortex_m.program"),
}
# Modules that import what a table of theirs names, or what a user or a file names. The names in the tables
# are counted as imports.
MAY_COMPUTE_IMPORTS = {
    "tosaic.base.public_names",
    "tosaic.cli.named",
    "tosaic.fx.files.libraries",
    "tosaic.recipes.written",
    "tosaic.report.registry",
}


def python_modules(root: Path) -> dict[str, Path]:
    """Returns the modules of the package by dotted name; a package has the name of its folder."""
    base = root / "python" / "tosaic"
    found = {}
    for path in sorted(base.rglob("*.py")):
        parts = ["tosaic", *path.relative_to(base).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def ranked_imports(root: Path) -> Iterator[tuple[str, str, int, str]]:
    """Yields (module, imported module, line, kind) of all imports between modules of the package.

    The kind is "load" for an import that runs with the module, "type" for one that never runs, else
    "deferred". A string that is the whole name of a module counts as an import of it, since the name may be
    in a table from which modules are imported. A package imports the modules of its stub when it is asked for
    a name.
    """
    modules = python_modules(root)
    files = {name for name, path in modules.items() if path.name != "__init__.py"}
    for name, path in modules.items():
        tree = ast.parse(path.read_text())
        package = (name if path.name == "__init__.py" else name.rpartition(".")[0]).split(".")
        runs = {(line, target) for line, target, _ in python_imports(tree, package)}
        for line, target, at_import in python_imports(tree, package, with_types=True):
            kind = "type" if (line, target) not in runs else "load" if at_import else "deferred"
            module = target if target in modules else target.rpartition(".")[0]
            if module in modules and module != name and target != "tosaic._core":
                yield name, module, line, kind
        for node in ast.walk(tree):
            named = node.value if isinstance(node, ast.Constant) else None
            if isinstance(named, str) and named in files and named != name:
                yield name, named, node.lineno, "deferred"
        stub = path.with_suffix(".pyi")
        if path.name == "__init__.py" and stub.exists():
            for line, target, _ in python_imports(ast.parse(stub.read_text()), package):
                module = target if target in modules else target.rpartition(".")[0]
                if module in modules and module != name:
                    yield name, module, line, "deferred"


def computed_imports(root: Path) -> list[str]:
    """Finds imports of modules whose names are computed, outside of the modules that may do so."""
    found = []
    for name, path in python_modules(root).items():
        text = path.read_text()
        if name in MAY_COMPUTE_IMPORTS or not re.search(r"importlib|__import__", text):
            continue
        calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
        found += [
            f"{name}:{call.lineno}: the name of the imported module is computed"
            for call in calls
            if re.fullmatch(r"(importlib\.)?import_module|__import__", ast.unparse(call.func))
            and not (call.args and isinstance(call.args[0], ast.Constant))
        ]
    return found


def rank_violations(root: Path) -> list[str]:
    """Finds modules in folders without a rank, and imports of higher folders that are not in the list.

    Public names are for users: a module of the package imports from the module that a stub names.
    """
    found, used = [], set()
    stubs = {name for name, path in python_modules(root).items() if path.with_suffix(".pyi").exists()}
    for name, module, line, kind in ranked_imports(root):
        folder, other = (f"{each}.".split(".")[1] for each in (name, module))
        if not folder or name == "tosaic.__main__":
            continue
        if not other or module in stubs:
            found.append(f"{name}:{line}: import what is needed from its module, not from {module}")
        elif folder not in PYTHON_RANKS:
            found.append(f"{name}: folder '{folder}' has no rank")
        elif PYTHON_RANKS.index(other) > PYTHON_RANKS.index(folder):
            used.add((name, module))
            if (name, module) not in UPWARD or kind == "load":
                found.append(f"{name}:{line}: {folder} may not import {module} ({kind})")
    return found + [f"{a} does not import {b} any more: shorten the list" for a, b in UPWARD - used]


def strong_components(imports: dict[str, set[str]]) -> list[list[str]]:
    """Returns the sets of modules that import each other through others, by Tarjan's algorithm."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_modules: list[str] = []
    found: list[list[str]] = []
    for start in sorted(imports):
        walk = [] if start in number else [(start, iter(sorted(imports[start])))]
        if walk:
            number[start] = lowest[start] = len(number)
            open_modules.append(start)
        while walk:
            module, targets = walk[-1]
            target = next(targets, None)
            if target is None:
                walk.pop()
                if walk:
                    above = walk[-1][0]
                    lowest[above] = min(lowest[above], lowest[module])
                if lowest[module] == number[module]:
                    at = open_modules.index(module)
                    found.append(sorted(open_modules[at:]))
                    del open_modules[at:]
            elif target not in number:
                number[target] = lowest[target] = len(number)
                open_modules.append(target)
                walk.append((target, iter(sorted(imports[target]))))
            elif target in open_modules:
                lowest[module] = min(lowest[module], number[target])
    return [each for each in found if len(each) > 1 or each[0] in imports[each[0]]]


def circle_through(start: str, imports: dict[str, set[str]]) -> str:
    """Returns a shortest circle of a module that has one: ``a -> b -> a``."""
    came_from = {start: ""}
    queue = [start]
    for module in queue:
        for target in sorted(imports[module]):
            if target == start:
                path = [start]
                while module:
                    path.insert(0, module)
                    module = came_from[module]
                return " -> ".join(path)
            if target not in came_from:
                came_from[target] = module
                queue.append(target)
    raise AssertionError(f"{start} has no circle")


def circles(root: Path) -> list[str]:
    """Returns a circle of imports for each set of modules that import each other.

    Imports inside functions count; imports for types, which never run, do not. The package itself, which each
    of its modules loads, is left out.
    """
    imports: dict[str, set[str]] = {name: set() for name in python_modules(root)}
    for name, module, _, kind in ranked_imports(root):
        if kind != "type" and "tosaic" not in (name, module):
            imports[name].add(module)
    found = strong_components(imports)
    return [f"{len(each)} modules: {circle_through(each[0], imports)}" for each in found]


def test_modules_import_lower_folders_only() -> None:
    assert rank_violations(ROOT) == []
    assert len(UPWARD) <= MOST_UPWARD


def test_no_module_imports_itself_through_others_not_even_in_functions() -> None:
    assert circles(ROOT) == []


def test_names_of_imported_modules_are_written_where_they_are_counted() -> None:
    assert computed_imports(ROOT) == []
    assert python_modules(ROOT).keys() >= MAY_COMPUTE_IMPORTS


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"base/a.py": "def f():\n    from tosaic.api import b"},
            "tosaic.base.a:2: base may not import tosaic.api.b",
        ),
        (
            {"base/a.py": "if TYPE_CHECKING:\n    from tosaic.api.b import B"},
            "may not import tosaic.api.b (type)",
        ),
        ({"base/a.py": "SERVICES = {'b': ('tosaic.api.b', 'B')}"}, "base may not import tosaic.api.b"),
        ({"api/b.py": "from tosaic import lower"}, "tosaic.api.b:1: import what is needed from its module"),
        (
            {
                "base/__init__.py": "",
                "base/__init__.pyi": "from tosaic.base.a import A as A",
                "api/b.py": "from tosaic.base import A",
            },
            "tosaic.api.b:1: import what is needed from its module, not from tosaic.base",
        ),
        (
            {"base/__init__.py": "", "base/__init__.pyi": "from tosaic.api.b import B as B"},
            "tosaic.base:1: base may not import tosaic.api.b (deferred)",
        ),
        ({"odd/c.py": "from tosaic.base.a import A"}, "folder 'odd' has no rank"),
        ({"verbs.py": "", "cli/c.py": "from tosaic.verbs import V"}, "cli may not import tosaic.verbs"),
    ],
)
def test_a_planted_import_of_a_higher_folder_is_found(
    tmp_path: Path, files: dict[str, str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = {"__init__.py": "", "base/a.py": "", "api/b.py": "", **files}
    root = plant(tmp_path, {f"python/tosaic/{name}": text for name, text in planted.items()})
    monkeypatch.setattr("test_layering.UPWARD", frozenset())
    assert any(message in found for found in rank_violations(root))


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            {"a": "def f():\n    from tosaic.api.b import g", "b": "from tosaic.api.a import f"},
            ["2 modules: tosaic.api.a -> tosaic.api.b -> tosaic.api.a"],
        ),
        (
            {"a": "T = {'g': ('tosaic.api.b', 'g')}", "b": "def g():\n    import tosaic.api.a"},
            ["2 modules: tosaic.api.a -> tosaic.api.b -> tosaic.api.a"],
        ),
        (
            {
                "a": "from tosaic.api.b import f",
                "b": "from tosaic.api.c import f",
                "c": "def f():\n    from tosaic.api import a",
                "d": "from tosaic.api.a import f",
            },
            ["3 modules: tosaic.api.a -> tosaic.api.b -> tosaic.api.c -> tosaic.api.a"],
        ),
        (
            {
                "a": "from tosaic.api.b import f",
                "b": "if TYPE_CHECKING:\n    from tosaic.api.a import f",
                "c": "from tosaic.api import a, b",
            },
            [],
        ),
    ],
)
def test_a_planted_circle_is_found(tmp_path: Path, files: dict[str, str], expected: list[str]) -> None:
    planted = {"__init__.py": "", **{f"api/{name}.py": text for name, text in files.items()}}
    root = plant(tmp_path, {f"python/tosaic/{name}": text for name, text in planted.items()})
    assert circles(root) == expected


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("from importlib import import_module\nimport_module(f'tosaic.{name}')", 1),
        ("import importlib\nimportlib.import_module(NAMES[0])", 1),
        ("__import__(name)", 1),
        ("from importlib import import_module\nimport_module('tosaic.api.b')", 0),
        ("from tosaic.fx.modules import import_module\nimport_module(model)", 0),
    ],
)
def test_a_planted_import_of_a_computed_name_is_found(tmp_path: Path, text: str, count: int) -> None:
    assert len(computed_imports(plant(tmp_path, {"python/tosaic/api/a.py": text}))) == count


def test_the_hall_of_the_package_is_nearly_empty() -> None:
    files = [path.name for path in (ROOT / "python" / "tosaic").iterdir() if path.is_file()]
    assert len([name for name in files if not name.endswith(".so")]) <= 12


# ---- private attributes ----

NAMED_TUPLE = {"_asdict", "_field_defaults", "_fields", "_make", "_replace"}  # public, as Python defines


def class_definitions(root: Path) -> Iterator[ast.ClassDef]:
    for path in python_modules(root).values():
        yield from (each for each in ast.walk(ast.parse(path.read_text())) if isinstance(each, ast.ClassDef))


def own_private_names(kind: ast.ClassDef) -> set[str]:
    """Returns the attributes with an underscore that a class defines, in its body or on ``self``."""
    found: set[str] = set()
    for node in kind.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {ast.unparse(target) for target in targets}
    for node in ast.walk(kind):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node.value):
            found.add(node.attr)
    return {name for name in found if name.startswith("_") and not name.startswith("__")} - NAMED_TUPLE


def is_own(value: ast.expr) -> bool:
    """True for ``self``, ``cls`` and ``super()``."""
    return ast.unparse(value) in ("self", "cls") or (
        isinstance(value, ast.Call) and ast.unparse(value.func) == "super"
    )


def may_be_of_the_class(value: ast.expr) -> bool:
    """True for what may be an object of the class whose method reads it: a variable, or what a call made.

    An object that another object holds, as in ``self.source._x``, is of another class.
    """
    return isinstance(value, ast.Name | ast.Call)


def private_reads(root: Path) -> list[str]:
    """Finds attributes with an underscore that are read or written outside of their class and its subclasses.

    Attributes that no class of tosaic defines, such as those of torch, are not looked at.
    """
    own: dict[str, set[str]] = {}
    bases: dict[str, set[str]] = {}
    for kind in class_definitions(root):
        own.setdefault(kind.name, set()).update(own_private_names(kind))
        names = (ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in kind.bases)
        bases.setdefault(kind.name, set()).update(names)
    private: set[str] = set().union(*own.values())

    def inherited(name: str, seen: frozenset[str] = frozenset()) -> set[str]:
        above = bases.get(name, set()) - seen
        return own.get(name, set()).union(*(inherited(base, seen | {name}) for base in above - {name}))

    found: list[str] = []

    def visit(node: ast.AST, where: str, kind: str) -> None:
        kind = node.name if isinstance(node, ast.ClassDef) else kind
        if isinstance(node, ast.Attribute) and node.attr in private and not is_own(node.value):
            may_read = node.attr in inherited(kind) and may_be_of_the_class(node.value)
            found.extend([] if may_read else [f"{where}:{node.lineno}: {ast.unparse(node)} is private"])
        for child in ast.iter_child_nodes(node):
            visit(child, where, kind)

    for name, path in python_modules(root).items():
        visit(ast.parse(path.read_text()), name, "")
    return found


def test_private_attributes_are_read_by_their_own_class() -> None:
    assert private_reads(ROOT) == []


OWNER = """class A:
    _field: int = 0
    def __init__(self):
        self._x = 1
    def _f(self):
        return self._x
"""


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def f(a):\n    return a._x", "a._x"),
        ("def f(a):\n    a._field = 1", "a._field"),
        ("class B:\n    def f(self, a):\n        return a._f()", "a._f"),
        ("class B:\n    def f(self):\n        return self.a._x", "self.a._x"),
        ("class B(A):\n    def f(self):\n        return self.held._x", "self.held._x"),
        ("def f(a):\n    return lambda: [each._x for each in a]", "each._x"),
        ("class B(A):\n    def f(self, other):\n        return self._x, other._x, super()._f()", ""),
        ("class B:\n    @classmethod\n    def f(cls):\n        return cls._x", ""),
        ("import torch\ndef f(op):\n    return op._schema, torch._ops", ""),
        ("def f(point):\n    return point._replace(x=1)", ""),
    ],
)
def test_a_planted_read_of_a_private_attribute_is_found(tmp_path: Path, text: str, found: str) -> None:
    files = {"python/tosaic/base/a.py": OWNER, "python/tosaic/base/b.py": text}
    assert [line.split()[1] for line in private_reads(plant(tmp_path, files))] == ([found] if found else [])
